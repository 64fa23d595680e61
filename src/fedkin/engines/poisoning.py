"""Poisoned samples: what adversaries train on in place of their own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedkin.engines.adversaries import Attacks
from fedkin.engines.setup import Setup
from fedkin.federation import Client, Samples
from fedkin.keys import rng

__all__ = ["poisoned"]


def poisoned(setup: Setup, attacks: Attacks | None, adversaries: frozenset[str]) -> Setup:
    """Return the setup in which the adversaries have the samples that their attacks give them.

    sybil: all have those of the adversary with the first id, also when its data drift. label-flip, model-replacement:
    y becomes classes - 1 - y, for each training sample with the probability of label-flip's strength.
    """
    flips = attacks.of("label-flip", "model-replacement") if attacks else []
    same = bool(attacks and attacks.of("sybil"))
    if not flips and not same:
        return setup
    federation, seed = setup.federation, setup.seed
    first = federation[min(adversaries)]
    share = min(attack.strength if attack.kind == "label-flip" else 1.0 for attack in flips) if flips else 0.0

    def changed(client: Client) -> Client:
        if client.id not in adversaries:
            return client
        made = replace(first, id=client.id) if same else client
        return _each(made, lambda samples: _flipped(samples, federation.task.classes, share, seed, client.id))

    clients = [changed(client) for client in federation.values()]
    return replace(setup, federation=type(federation)(clients, federation.task, federation.name))


def _each(client: Client, change: Callable[[Samples], Samples]) -> Client:
    """Return the client with all its training samples changed."""
    changes = tuple(replace(other, train=change(other.train)) for other in client.changes)
    return replace(client, train=change(client.train), changes=changes)


def _flipped(samples: Samples, classes: int, share: float, seed: int, id: str) -> Samples:
    if not share:
        return samples
    own = samples.own()
    hit = torch.from_numpy(rng(seed, id, "label flip").random(len(own)) < share)
    return replace(own, y=torch.where(hit, classes - 1 - own.y, own.y))
