"""Whether the fits of several clients with one net can be one batched computation, and why not."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from fedkin.learning.frozen import trunk_of
from fedkin.learning.net import Net

__all__ = ["stackable", "why_alone"]

_KNOWN: WeakKeyDictionary[Net, str] = WeakKeyDictionary()


def stackable(net: Net) -> bool:
    """Whether stacking gives the same numbers and is no slower; see `why_alone`."""
    return not why_alone(net)


def why_alone(net: Net) -> str:
    """Return why clients with this net are trained one by one; empty if they can be stacked.

    >>> why_alone(Net(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)), nn.Linear(2, 2)))
    'the net has dropout (body.1)'
    """
    if net not in _KNOWN:
        _KNOWN[net] = _reason(net)
    return _KNOWN[net]


def _reason(net: Net) -> str:
    if net.computing.precision != "float32":
        return f"run.precision = {net.computing.precision!r} is computed one client at a time"
    trunk = trunk_of(net.module.body)
    if trunk is not None and trunk.keep:
        return "the features of the frozen body are computed once for each sample, and kept"
    moving = [name for name, _ in net.module.named_buffers() if name in net.initial]
    if moving:
        return f"training can change the net's buffer {moving[0]}"
    still = set() if trunk is None else set(trunk.modules())
    drops = [
        name for name, module in net.module.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and module not in still
    ]  # fmt: skip
    return f"the net has dropout ({drops[0]})" if drops else ""
