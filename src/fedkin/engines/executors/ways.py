"""In which way each net is trained with each loss, and why not in a faster one."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from fedkin.learning.kernels import trunk_in
from fedkin.learning.losses import Loss, Proximal
from fedkin.learning.net import Net

__all__ = ["ALONE", "BY_KERNELS", "MAPPED", "WRITTEN", "WRITTEN_BUT_LOSS", "Way", "Ways"]

ALONE, MAPPED, WRITTEN = "one by one", "mapped by vmap", "written out"
WRITTEN_BUT_LOSS = "written out, its loss mapped by vmap"
BY_KERNELS = "one by one, its first convolutions by compiled kernels"


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
        self.alone: WeakKeyDictionary[Net, str] = WeakKeyDictionary()  # in which way a client alone is trained

    def note(self, net: Net, loss: Loss, way: str, why: str = "") -> None:
        """Note that clients were trained in this way; of a net with compiled kernels ALONE becomes BY_KERNELS."""
        if net not in self.names:
            self.names[net] = f"{type(net.module.body).__name__}, {net.parameters():,} parameters"
            wanted = net.computing.kernels == "numba" and trunk_in(net.module.body) is not None
            self.alone[net] = BY_KERNELS if wanted else ALONE
        way = self.alone[net] if way == ALONE else way
        self.met[Way(self.names[net], _named(loss), way, why)] = None

    def __call__(self) -> list[Way]:
        return list(self.met)


def _named(loss: Loss) -> str:
    name = type(loss).__name__
    return f"{name} of {_named(loss.loss)}" if isinstance(loss, Proximal) else name
