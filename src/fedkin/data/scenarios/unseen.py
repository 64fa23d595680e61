"""Clients that never take part: chosen by their share, their ids or their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Client, Federation, Samples
from fedkin.federation.inputs import joined
from fedkin.keys import rng

__all__ = ["GROUP", "Unseen", "UnseenTest", "groups_of", "set_apart"]

Unseen = float | str | tuple[str, ...]
UnseenTest = Literal["test", "all"]

GROUP = "group:"


def set_apart(federation: Federation, unseen: Unseen, test: UnseenTest, seed: int) -> Federation:
    """The federation with these clients unseen.

    unseen: a share of the clients, drawn by the seed; or ids and groups, the latter as "group:NAME". test: the samples
    an unseen client is tested on: its test samples, or all its samples, so that none are left for training.
    Raises ConfigError for an unknown name, or if no client would be left.
    """
    ids = _drawn(federation, unseen, seed) if isinstance(unseen, float) else _named(federation, unseen)
    if len(ids) == len(federation):
        raise ConfigError(
            f"scenario.unseen: {unseen!r} makes all {len(ids)} clients unseen; leave at least one client to train"
        )
    clients = [_apart(client, test) if id in ids else client for id, client in federation.items()]
    return type(federation)(clients, federation.task, federation.name)


def groups_of(federation: Federation) -> list[str]:
    """The groups that can be left out one after another, sorted; raises ConfigError for fewer than two."""
    groups = sorted({client.group for client in federation.values() if client.group is not None})
    if len(groups) < 2:
        raise ConfigError(
            f"--leave-out each: {federation.name} has {'one group' if groups else 'no groups'} of clients; it takes "
            "two or more, such as the domains of a folder of images"
        )
    return groups


def _drawn(federation: Federation, share: float, seed: int) -> set[str]:
    """A share of the clients, at least one; independent of their order."""
    ids = sorted(federation)
    count = max(1, round(share * len(ids)))
    return {ids[place] for place in rng(seed, "unseen").permutation(len(ids))[:count]}


def _named(federation: Federation, unseen: str | Sequence[str]) -> set[str]:
    """Clients by id, or by their group."""
    found: set[str] = set()
    for name in (unseen,) if isinstance(unseen, str) else unseen:
        if name.startswith(GROUP):
            wanted = name.removeprefix(GROUP)
            mine = {id for id, client in federation.items() if client.group == wanted}
            known = {client.group for client in federation.values() if client.group is not None}
            if not mine:
                hint = nearest(wanted, known) if known else f"the clients of {federation.name} are in no groups"
                raise ConfigError(f"scenario.unseen: no client is in group {wanted!r}; {hint}")
            found |= mine
        elif name in federation:
            found.add(name)
        else:
            raise ConfigError(
                f'scenario.unseen: no client {name!r}; {nearest(name, federation)} (a group is "{GROUP}NAME")'
            )
    return found


def _apart(client: Client, test: UnseenTest) -> Client:
    if test == "test":
        return replace(client, seen=False)
    changes = tuple(
        replace(change, train=_none(change.train), test=_joined(change.train, change.test)) for change in client.changes
    )
    return replace(
        client, seen=False, train=_none(client.train), test=_joined(client.train, client.test), changes=changes
    )


def _none(samples: Samples) -> Samples:
    return samples.take([])


def _joined(train: Samples, test: Samples) -> Samples:
    """Both as one; copied, because they are in two arrays."""
    if not len(test):
        return train
    if train.scale != test.scale:
        raise ConfigError('scenario.unseen_test: "all" needs training and test samples on one scale; use "test"')
    x, y = joined([train.own().x, test.own().x]), torch.cat([train.labels(), test.labels()])
    return Samples(x, y, scale=train.scale)
