"""Held-out training samples or clients, on which the candidates of a tuning are judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples
from fedkin.keys import rng

__all__ = ["HoldOut", "held_out"]


@dataclass(frozen=True)
class HoldOut:
    """The held-out data: a share of every client's training samples, or of the clients."""

    what: str
    share: float

    @classmethod
    def parse(cls, text: str) -> HoldOut:
        """Read "samples:0.2" or "clients:0.25"; raises ConfigError.

        >>> HoldOut.parse("clients:0.25")
        HoldOut(what='clients', share=0.25)
        """
        what, _, number = text.partition(":")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if what not in ("samples", "clients") or not 0 < share < 1:
            raise ConfigError(
                f'--hold-out {text!r}: expected "samples:SHARE" or "clients:SHARE" with a share between 0 and 1'
            )
        return cls(what, share)

    def __str__(self) -> str:
        return f"{self.what}:{self.share:g}"


def held_out(federation: Federation, hold: HoldOut, seed: int) -> Federation:
    """Return the clients that take part, with some of their training samples as test samples.

    By samples: `share` of each client's training samples become test samples, at least one and never all; a client with
    one sample is not tested. By clients: `share` of the clients become unseen, and are tested on all their training
    samples. The draws are keyed by the seed and the client's id. The original test samples and unseen clients are not
    in the result.
    """
    seen = federation.seen
    unseen: set[str] = set()
    if hold.what == "clients":
        if len(seen) < 2:
            raise ConfigError(f"--hold-out {hold}: one client takes part, so that none can be held out")
        count = min(max(1, round(hold.share * len(seen))), len(seen) - 1)
        unseen = {seen[place] for place in rng(seed, "hold-out").permutation(len(seen))[:count]}

    def split(id: str, train: Samples, phase: int) -> tuple[Samples, Samples]:
        if hold.what == "clients":
            return (train.take([]), train) if id in unseen else (train, train.take([]))
        order = rng(seed, "hold-out", id, phase).permutation(len(train))
        count = min(max(1, round(hold.share * len(train))), len(train) - 1)
        return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))

    def judged(client: Client) -> Client:
        train, test = split(client.id, client.train, 0)
        changes = []
        for phase, change in enumerate(client.changes, 1):
            later_train, later_test = split(client.id, change.train, phase)
            changes.append(replace(change, train=later_train, test=later_test))
        return replace(client, train=train, test=test, seen=client.id not in unseen, changes=tuple(changes))

    return Federation([judged(federation[id]) for id in seen], federation.task, federation.name)
