"""The nets of a run, and the data sets that the server owns, made from settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import nn

from fedkin.data import SOURCES, Dataset
from fedkin.data.sources import Source
from fedkin.engines.roster import Roster
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.keys import key
from fedkin.learning.computing import DEFAULT, Computing
from fedkin.learning.models import Model
from fedkin.learning.models.backbones import Tokens
from fedkin.learning.net import Net
from fedkin.settings import choose, parse

__all__ = ["check_padding", "nets_for", "public_from"]


def nets_for(
    model: Model, federation: Federation | Roster, seed: int, dtype: torch.dtype, computing: Computing = DEFAULT
) -> tuple[Net, dict[str, Net] | None]:
    """Return the server's net, and each client's own net (None if all clients have the server's net).

    Different bodies get heads with equal values, so that clients that share heads start from the same one. If all
    clients have the same body, they share one net.
    """
    deal: Callable[..., Mapping[str, Model]] | None = getattr(model, "deal_bodies", None)
    if deal is None:
        return Net.build(lambda: model.build(federation.task), key(seed, "net"), dtype, computing), None
    dealt = deal(sorted(federation), seed)
    made: dict[str, Net] = {}
    head: nn.Module | None = None
    for own in sorted({repr(own): own for own in dealt.values()}.items()):
        name, body = own
        make = partial(body.build, federation.task)
        net = Net.build(make, key(seed, "net", name), dtype, computing)
        if head is None:
            head = net.module.head
        elif repr(head) != repr(net.module.head):
            raise ConfigError(
                f"model: all bodies need the same head, and {body.name!r} has {net.module.head}, another {head}"
            )
        made[name] = Net(net.module.body, head, dtype, computing=computing)
    nets = {id: made[repr(own)] for id, own in dealt.items()}
    return nets[min(nets)], nets if len(made) > 1 else None


def check_padding(source: Source, nets: Iterable[Net]) -> None:
    """Raise ConfigError if a net takes another id for padding than the one with which the source fills texts up."""
    given = getattr(source, "padding", None)
    if given is None or getattr(source, "tokens", None) is None:
        return
    for net in nets:
        for module in net.module.modules():
            if isinstance(module, Tokens) and module.padding != given:
                raise ConfigError(
                    f"data.padding: texts are filled up with {given}, and padding is {module.padding} to the model; "
                    f"set data.padding = {module.padding}"
                )


def public_from(data_root: Path) -> Callable[[str], Dataset]:
    """Return a function that reads the named data sets in this folder, each of them once."""

    @lru_cache(maxsize=4)
    def public(name: str) -> Dataset:
        source = parse(choose(SOURCES, name, "the server's data set"), {"source": name}, "the server's data set")
        dataset: Dataset = source.load(data_root)
        return dataset

    return public
