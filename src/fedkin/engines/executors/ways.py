"""In which way each net is trained with each loss, and why not in a faster one."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from fedkin.learning.losses import Loss, Proximal
from fedkin.learning.net import Net

__all__ = ["ALONE", "MAPPED", "WRITTEN", "WRITTEN_BUT_LOSS", "Way", "Ways"]

ALONE, MAPPED, WRITTEN = "one by one", "mapped by vmap", "written out"
WRITTEN_BUT_LOSS = "written out, its loss mapped by vmap"


class Way(NamedTuple):
    """How a net is trained with a loss, and why; why is empty if there is nothing to say."""

    net: str
    loss: str
    way: str
    why: str


class Ways:
    """The ways that fits have taken, each once, in the order in which they were first met."""

    def __init__(self) -> None:
        self.met: dict[Way, None] = {}
        self.names: WeakKeyDictionary[Net, str] = WeakKeyDictionary()

    def note(self, net: Net, loss: Loss, way: str, why: str = "") -> None:
        """Note that clients were trained in this way."""
        if net not in self.names:
            self.names[net] = f"{type(net.module.body).__name__}, {net.parameters():,} parameters"
        self.met[Way(self.names[net], _named(loss), way, why)] = None

    def __call__(self) -> list[Way]:
        return list(self.met)


def _named(loss: Loss) -> str:
    name = type(loss).__name__
    return f"{name} of {_named(loss.loss)}" if isinstance(loss, Proximal) else name
