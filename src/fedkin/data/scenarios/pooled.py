"""All participating clients as one: training on all data in one place, the centralised baseline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples
from fedkin.federation.inputs import joined

__all__ = ["POOLED", "pooled"]

POOLED = "pooled"


def pooled(federation: Federation) -> Federation:
    """The federation with one client "pooled" that has the samples of all participating clients; unseen clients stay.

    Samples follow the order of client ids. Raises ConfigError if clients change or join later.
    """
    seen = [federation[id] for id in federation.seen]
    if moving := [client.id for client in seen if client.changes or client.joins > 1]:
        raise ConfigError(
            f"scenario.pooled: client {moving[0]!r} joins later or its data change; pooled data stand still"
        )
    if POOLED in federation.unseen:
        raise ConfigError(f"scenario.pooled: an unseen client has the id {POOLED!r} already")
    train, test = (together([getattr(client, part) for client in seen], part) for part in ("train", "test"))
    others = [federation[id] for id in federation.unseen]
    return Federation([Client(POOLED, train, test), *others], federation.task, federation.name)


def together(parts: Sequence[Samples], name: str) -> Samples:
    """Samples one after another; not copied if all are rows of the same arrays."""
    first = parts[0]
    if any(part.scale != first.scale for part in parts):
        raise ConfigError(f"scenario.pooled: the {name} samples of clients are on unlike scales")
    if all(part.x is first.x and part.y is first.y and part.rows is not None for part in parts):
        rows = torch.cat([part.rows for part in parts if part.rows is not None])
        return Samples(first.x, first.y, rows, first.scale)
    return Samples(joined([p.own().x for p in parts]), torch.cat([p.labels() for p in parts]), scale=first.scale)
