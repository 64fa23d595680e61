"""Which nets `learning.dense` can train: chains of layers that are written out, and why others are not such chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import RLock
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from fedkin.learning.layers import ACTIVATIONS, Activation, BatchNorm, Dropout, Layer, LayerNorm, Linear
from fedkin.learning.net import Net
from fedkin.learning.traced import NotWritten, chain_of

__all__ = ["LossNotWritten", "NotWritten", "Program", "altered", "program_of"]


class LossNotWritten(NotWritten):
    """It is the loss, so that it is so for all samples."""


class Program(NamedTuple):
    """The layers of a body by name, in order, and its head. flat: the inputs are flattened before the first layer.

    extra: the net's other modules by name, of which only a loss may make use. rows: the class of a body whose
    `written_rows` gives a loss more than the features; None if the loss gets the features.
    """

    flat: bool
    parts: tuple[tuple[str, nn.Module], ...]
    head: nn.Linear
    extra: Mapping[str, nn.Module] = MappingProxyType({})
    rows: type[nn.Module] | None = None

    def layers(self) -> tuple[list[Layer], Linear]:
        """Return new written-out layers: those of the body, and the head."""
        made: list[Layer] = []
        for name, part in self.parts:
            if isinstance(part, nn.Linear):
                made.append(Linear(name, part))
            elif isinstance(part, nn.Dropout):
                made.append(Dropout(part))
            elif isinstance(part, nn.LayerNorm):
                made.append(LayerNorm(name, part))
            elif isinstance(part, nn.BatchNorm1d):
                made.append(BatchNorm(name, part))
            else:
                made.append(Activation(part, bool(made) and made[-1].fresh))
        return made, Linear("head", self.head)

    @property
    def draws(self) -> bool:
        """Whether the net draws random numbers."""
        return any(isinstance(part, nn.Dropout) for _, part in self.parts)

    @property
    def batched(self) -> bool:
        """Whether a sample's features depend on the rest of its batch."""
        return any(isinstance(part, nn.BatchNorm1d) for _, part in self.parts)


_KNOWN: WeakKeyDictionary[Net, dict[bool, Program | str]] = WeakKeyDictionary()
_READING = RLock()  # what a module's own `forward` does is read by the random states of the process


def program_of(net: Net, rows: bool = False) -> Program | str:
    """Return the net as a chain of written-out layers, or why it is none.

    rows: where the body has a method `written_rows`, the chain is the module that this returns: it gives a loss more
    than the features, from the same parameters by the same names.

    >>> program_of(Net(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), nn.Linear(2, 2)))
    'body.1 is a Softmax'
    """
    rows = rows and hasattr(net.module.body, "written_rows")
    with _READING:
        known = _KNOWN.setdefault(net, {})
        if rows not in known:
            try:
                known[rows] = _read(net, rows)
            except NotWritten as why:
                known[rows] = str(why)
        return known[rows]


def _read(net: Net, rows: bool) -> Program:
    module = net.module
    body = module.body
    if net.computing.precision != "float32":
        raise NotWritten(f"run.precision is {net.computing.precision!r}")
    if type(module.head) is not nn.Linear:
        raise NotWritten(f"the head is a {type(module.head).__name__}")
    for name, part in module.named_modules():
        if what := altered(part):
            raise NotWritten(f"{name or 'the net'} has a {what}")
    parts: list[tuple[str, nn.Module]] = []
    flat = False
    for name, part in _chain("body", body.written_rows() if rows else body):  # type: ignore[operator]
        if _flattens(part):
            flat = flat or not parts  # what layers give is flat already
        elif isinstance(part, nn.BatchNorm1d) and any(part is before for _, before in parts):
            raise NotWritten(f"{name} is a BatchNorm1d that was applied before")
        elif _acts(name, part):
            parts.append((name, part))
    program = Program(flat, tuple(parts), module.head, net.extra, type(body) if rows else None)
    layers, head = program.layers()
    found = sorted(name for layer in (*layers, head) for name in layer.names)
    own = sorted(name for name in net.trainable if name.split(".")[0] not in program.extra)
    if found != own:
        odd = sorted({*found} ^ {*own}) or found
        raise NotWritten(f"{odd[0]} is frozen, shared by two layers, or in no layer of the chain")
    return program


def altered(part: nn.Module) -> str:
    """Return what this one module has beside its class: a hook, or a method of its own; empty if nothing."""
    if any(getattr(part, f"_{kind}_hooks") for kind in _HOOKS):
        return "hook"
    replaced = _METHODS & vars(part).keys()
    return f"{min(replaced)} of its own" if replaced else ""


_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")
_METHODS = {"forward", "train", "__call__", "_call_impl"}


def _chain(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that the module applies, in order; one that it applies twice comes twice."""
    kind = type(module)
    if isinstance(module, nn.Sequential) and all(
        getattr(kind, method) is getattr(nn.Sequential, method) for method in ("forward", "train", "__call__")
    ):
        for own, part in module._modules.items():
            if part is not None:
                yield from _chain(f"{name}.{own}", part)
    elif _is_layer(module):
        yield name, module
    else:
        for own, part in module.named_modules():
            if _is_layer(part) and not _flattens(part):
                _acts(f"{name}.{own}", part)
        yield from chain_of(name, module)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a layer of torch's own, rather than made of others."""
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, _MADE_OF_OTHERS)


_MADE_OF_OTHERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def _flattens(part: nn.Module) -> bool:
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _acts(name: str, part: nn.Module) -> bool:
    """Whether a layer changes its input; raises NotWritten for layers that are not written out."""
    kind = type(part)
    if kind in (nn.Linear, *ACTIVATIONS):
        if isinstance(part, nn.LeakyReLU) and part.negative_slope < 0:
            raise NotWritten(f"{name} is a LeakyReLU with a negative slope below 0")
        return True
    if isinstance(part, nn.Dropout) and kind is nn.Dropout and part.p < 1:
        return part.p > 0
    if isinstance(part, nn.LayerNorm) and kind is nn.LayerNorm and len(part.normalized_shape) == 1:
        return True
    if isinstance(part, nn.BatchNorm1d) and kind is nn.BatchNorm1d and part.momentum is not None:
        return True
    if kind is nn.Identity:
        return False
    raise NotWritten(f"{name} is a {kind.__name__}")
