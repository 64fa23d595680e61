"""Stand-ins for a batch and for weights, which note the layers that a `forward` applies and refuse everything else.

They are tensors of torch to whoever asks, so that code for tensors meets them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

__all__ = ["NotWritten", "Noted", "Rows", "Step", "Value", "Weight"]

# A layer by its name, or a function by its own and as a new layer; whether it is a dropout that is on.
Step = tuple[str, nn.Module | None, bool]


class NotWritten(Exception):
    """This net, loss or these samples cannot be trained by written-out steps; the message says why."""


class Rows(nn.Module):
    """What view(-1, width) does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def extra_repr(self) -> str:
        return str(self.width)


class Noted:
    """The steps that a value went through; label: whose they are."""

    def __init__(self, label: str) -> None:
        self.label, self.steps = label, list[Step]()
        self.last: Value | None = None

    def refuse(self, what: str) -> NoReturn:
        """Raise NotWritten, which says what the module does."""
        raise NotWritten(f"{self.label} {what}")

    def layer(self, place: str) -> Callable[..., Value]:
        """Return the forward of a layer, which notes it."""

        def forward(*given: Any, **named: Any) -> Value:
            if len(given) != 1 or named or not isinstance(given[0], Value):
                self.refuse(f"gives {place} other inputs than the output of one layer")
            return given[0].through(place, None)

        return forward


class _Stand(Tensor):
    """A stand-in for a tensor, whose attributes are its own and those of `_FREE`, and no others."""

    noted: Noted
    origin: str
    _FREE = frozenset({"__class__", "__dict__", "noted", "origin"})

    def __new__(cls, *_: object) -> Self:
        return torch.empty(0, device="meta").as_subclass(cls)

    def __init__(self, noted: Noted, origin: str) -> None:
        own = object.__getattribute__(self, "__dict__")
        own["noted"], own["origin"] = noted, origin

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def _refused(self, name: str) -> NoReturn:
        self.noted.refuse(f"asks {self.origin} for its {name}")

    def __getattribute__(self, name: str) -> Any:
        kind = object.__getattribute__(self, "__class__")
        if name in kind._FREE or name in kind.__dict__ or name == "_refused":
            return object.__getattribute__(self, name)
        return self._refused(name)

    def __setattr__(self, name: str, value: object) -> None:
        self._refused(name)

    def __delattr__(self, name: str) -> None:
        self._refused(name)


class Weight(_Stand):
    """A stand-in for a parameter or a buffer, which layers alone may use."""

    def _refused(self, name: str) -> NoReturn:
        self.noted.refuse(f"reads or changes {self.origin} itself ({name})")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        weights = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Weight)]
        return weights[0]._refused(getattr(func, "__name__", str(func)))


class Value(_Stand):
    """A stand-in for the output [b, ...] of a layer: it can be handed to one further layer or function."""

    _FREE = _Stand._FREE | {"used"}

    def __init__(self, noted: Noted, origin: str) -> None:
        super().__init__(noted, origin)
        object.__getattribute__(self, "__dict__")["used"] = False
        noted.last = self

    def through(self, place: str, layer: nn.Module | None, drops: bool = False) -> Value:
        """Return the output of this layer."""
        if self.used:
            self.noted.refuse(f"uses {self.origin} twice")
        if not torch.is_grad_enabled():
            self.noted.refuse(f"computes {place} without gradients")
        self.__dict__["used"] = True
        self.noted.steps.append((place, layer, drops))
        return Value(self.noted, f"the output of {place}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Value:
        values = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Value)]
        name = getattr(func, "__name__", str(func))
        if func not in _FUNCTIONS or len(values) != 1 or not (args and isinstance(args[0], Value)):
            values[0].noted.refuse(f"calls {name} on {' and '.join(value.origin for value in values)}")
        return _FUNCTIONS[func](*args, **(kwargs or {}))

    def size(self, axis: int | None = None) -> Any:
        return _Shape(self) if axis is None else _Shape(self)[axis]

    @property
    def shape(self) -> _Shape:  # type: ignore[override]
        return _Shape(self)

    def __getattribute__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args, **kwargs: _METHODS[name](self, *args, **kwargs)
        return super().__getattribute__(name)

    def __bool__(self) -> bool:
        return self.noted.refuse(f"branches on {self.origin}")

    def __len__(self) -> int:
        return self.noted.refuse(f"asks {self.origin} for its len(); write .size(0)")


class _Shape:
    """The shape of a value, of which only the number of rows may be asked for."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __getitem__(self, axis: object) -> _Count:
        if axis != 0:
            self.value.noted.refuse(f"looks at the shape of {self.value.origin}")
        return _Count(self.value)

    def _refuse(self, *_: object) -> NoReturn:
        self.value.noted.refuse(f"looks at the shape of {self.value.origin}")

    __iter__ = __len__ = __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class _Count:
    """The number of rows of a value, which may be handed to view or reshape."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def _refuse(self, *_: object) -> NoReturn:
        self.value.noted.refuse(f"computes with the number of rows of {self.value.origin}")

    __bool__ = __index__ = __int__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _combined(name: str) -> Callable[..., NoReturn]:
    def combined(self: Value, *others: object) -> NoReturn:
        with_others = "".join(f" and {other.origin}" for other in others if isinstance(other, Value))
        self.noted.refuse(f"computes with {self.origin}{with_others} ({name})")

    return combined


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge",
              "iter", "float", "int", "index", "iadd", "isub", "imul", "radd", "rsub", "rmul", "rmatmul",
              "setitem"):  # fmt: skip
    setattr(Value, f"__{_name}__", _combined(_name))
    setattr(Weight, f"__{_name}__", lambda self, *_, _name=_name: self._refused(_name))
for _name in ("bool", "len"):
    setattr(Weight, f"__{_name}__", lambda self, _name=_name: self._refused(_name))


def _relu(x: Value, inplace: bool = False) -> Value:
    return x.through("relu", nn.ReLU())


def _leaky(x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return x.through("leaky_relu", nn.LeakyReLU(negative_slope))


def _gelu(x: Value, *, approximate: str = "none") -> Value:
    return x.through("gelu", nn.GELU(approximate))


def _silu(x: Value, inplace: bool = False) -> Value:
    return x.through("silu", nn.SiLU())


def _tanh(x: Value) -> Value:
    return x.through("tanh", nn.Tanh())


def _sigmoid(x: Value) -> Value:
    return x.through("sigmoid", nn.Sigmoid())


def _dropout(x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    return x.through("dropout", nn.Dropout(p), bool(training) and p > 0)


def _flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    if (start_dim, end_dim) != (1, -1):
        x.noted.refuse(f"flattens {x.origin} otherwise than from the second axis on")
    return x.through("flatten", nn.Flatten())


def _view(x: Value, *shape: Any) -> Value:
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    rows, width = shape if len(shape) == 2 else (None, None)
    if isinstance(rows, _Count) and width is not None and not isinstance(width, _Count) and width == -1:
        return x.through("flatten", nn.Flatten())
    if isinstance(rows, _Count | int) and (isinstance(rows, _Count) or rows == -1) and isinstance(width, int):
        return x.through("view", Rows(width))
    return x.noted.refuse(f"gives {x.origin} another shape than (rows, -1)")


_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    F.relu: _relu, torch.relu: _relu, F.leaky_relu: _leaky, F.gelu: _gelu, F.silu: _silu, torch.tanh: _tanh,
    torch.sigmoid: _sigmoid, F.dropout: _dropout, torch.flatten: _flatten, torch.reshape: _view,
}  # fmt: skip
_METHODS: dict[str, Callable[..., Value]] = {
    "relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid, "flatten": _flatten, "view": _view, "reshape": _view,
}  # fmt: skip
