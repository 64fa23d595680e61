"""The chain of layers that a module with a `forward` of its own applies, read by running it on a stand-in.

The stand-in notes which layers and functions it goes through, and refuses everything else: branches on its values, sums
of two layers' outputs, shapes beyond the number of rows. Nothing of torch is patched, so that other threads may compute
meanwhile. What was read is then compared with the module itself, bit for bit, on a trial batch.
"""

from __future__ import annotations

import copy
import random  # noqa: TID251 (to see whether a forward draws)
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fedkin.untrusted import said

__all__ = ["NotWritten", "chain_of"]

_TRIAL = 7  # samples


class NotWritten(Exception):
    """This net, loss or these samples cannot be trained by written-out steps; the message says why."""


def chain_of(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers that the module applies, in order, by name; raises NotWritten if it does anything else.

    A function such as F.relu is given as its layer. A layer that is applied twice comes twice.
    """
    for part in module.modules():
        kind = type(part)
        if kind.train is not nn.Module.train or kind.__call__ is not nn.Module.__call__:
            raise NotWritten(f"{kind.__name__} has a train or __call__ of its own")
        if kind.__module__.startswith("torch._dynamo") or hasattr(kind.forward, "_torchdynamo_orig_callable"):
            raise NotWritten(f"{kind.__name__} is compiled")
    label = f"{name}, a {type(module).__name__},"
    drawn = _random_states()
    try:
        training, resting = (_steps(label, copy.deepcopy(module).train(mode)) for mode in (True, False))
        chain = _chain(label, module, training, resting)
        alike = _alike(module, [layer for _, layer in chain])
    except NotWritten:
        raise
    except Exception as error:  # whatever a forward of the user's does
        raise NotWritten(f"{label} was not understood ({type(error).__name__}: {said(error)})") from None
    if _random_states() != drawn:
        raise NotWritten(f"{label} draws random numbers")
    if not alike:
        raise NotWritten(f"{label} gives other numbers than its layers")
    return [(f"{name}.{place}", layer) for place, layer in chain]


# A layer by its name, or a function by its own and as a new layer; whether it is a dropout that is on.
_Step = tuple[str, nn.Module | None, bool]


def _chain(
    label: str, module: nn.Module, training: Sequence[_Step], resting: Sequence[_Step]
) -> list[tuple[str, nn.Module]]:
    """Return the chain, by what was noted in training and in evaluation."""
    if [(place, repr(layer)) for place, layer, _ in training] != [(place, repr(layer)) for place, layer, _ in resting]:
        raise NotWritten(f"{label} has other layers in evaluation")
    if any(drops for *_, drops in resting):
        raise NotWritten(f"{label} drops in evaluation too; write F.dropout(..., training=self.training)")
    chain: list[tuple[str, nn.Module]] = []
    width = 0  # of the rows, if it is known
    for number, (place, function, drops) in enumerate(training):
        layer = module.get_submodule(place) if function is None else function
        if isinstance(layer, _Rows):
            given = [module.get_submodule(later) for later, kind, _ in training[number:] if kind is None]
            width = width or next((each.in_features for each in given if isinstance(each, nn.Linear)), 0)
            if layer.width != width:
                raise NotWritten(f"{label} may change the number of rows by view(..., {layer.width})")
            layer = nn.Flatten()
        elif isinstance(layer, nn.Linear):
            width = layer.out_features
        if drops or not isinstance(function, nn.Dropout):
            chain.append((place, layer))
    return chain


class _Rows(nn.Module):
    """What view(-1, width) does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def extra_repr(self) -> str:
        return str(self.width)


def _random_states() -> tuple[Any, ...]:
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002 (a forward may draw from it)
    return random.getstate(), repr(numpys), torch.get_rng_state().tolist()


def _steps(label: str, module: nn.Module) -> list[_Step]:
    """Return what the module does to its input; the module is changed."""
    noted = _Noted(label)
    for place, part in module.named_modules():
        if type(part).__module__.startswith("torch.nn.") and not isinstance(part, nn.Sequential):
            part.forward = noted.layer(place)
    before = list(_held(module))
    with torch.enable_grad():
        given = module(_Value(noted, "the input"))
    after = list(_held(module))
    if given is not noted.last:
        noted.refuse("does not return what its last layer gives")
    if len(after) != len(before) or any(a is not b or n != m for (a, n), (b, m) in zip(after, before, strict=True)):
        noted.refuse("changes the module")
    return noted.steps


def _held(module: nn.Module) -> Iterator[tuple[object, int]]:
    """Yield all that the parts of the module hold, and how often it was written to."""
    for part in module.modules():
        for value in vars(part).values():
            inside: Iterable[object] = value.values() if isinstance(value, dict) else ()
            inside = value if isinstance(value, list | tuple | set) else inside
            for each in (value, *inside):
                yield each, each._version if isinstance(each, Tensor) else 0


def _alike(module: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Whether module and chain give the same bits on a trial batch, in training and in evaluation, and gradients."""
    sized = next((layer for layer in layers if isinstance(layer, nn.Linear | nn.LayerNorm | nn.BatchNorm1d)), None)
    first = next(module.parameters(), None)
    dtype, width = torch.float32 if first is None else first.dtype, 5 if sized is None else _taken(sized)
    x = torch.linspace(-2, 2, _TRIAL * width, dtype=dtype).reshape(_TRIAL, width)
    whole, _ = copy.deepcopy((module, layers))
    free, parts = copy.deepcopy((module, layers))
    one, other = _answers(whole, whole, x), _answers(free, nn.Sequential(*parts), x)
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def _taken(layer: Any) -> int:
    if isinstance(layer, nn.LayerNorm):
        return layer.normalized_shape[-1]
    return layer.in_features if isinstance(layer, nn.Linear) else int(layer.num_features)


def _answers(module: nn.Module, called: nn.Module, x: Tensor) -> list[Tensor | None]:
    """Return what is given in training and in evaluation, and its gradients for x and the module's parameters."""
    free = [p for p in module.parameters() if p.requires_grad]
    made: list[Tensor | None] = []
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        for mode in (True, False):
            torch.manual_seed(1)
            leaf = x.clone().requires_grad_()
            out = called.train(mode)(leaf * 1)  # which a layer may change in place
            made += [out.detach(), *torch.autograd.grad(out.square().sum(), [leaf, *free], allow_unused=True)]
    return made


class _Noted:
    """The steps that a value went through; label: whose they are."""

    def __init__(self, label: str) -> None:
        self.label, self.steps = label, list[_Step]()
        self.last: _Value | None = None

    def refuse(self, what: str) -> NoReturn:
        raise NotWritten(f"{self.label} {what}")

    def layer(self, place: str) -> Callable[..., _Value]:
        """Return the forward of a layer, which notes it."""

        def forward(*given: Any, **named: Any) -> _Value:
            if len(given) != 1 or named or not isinstance(given[0], _Value):
                self.refuse(f"gives {place} other inputs than the output of one layer")
            return given[0].through(place, None)

        return forward


class _Value:
    """A stand-in for the output [b, ...] of a layer: it can be handed to one further layer or function."""

    def __init__(self, noted: _Noted, origin: str) -> None:
        self.noted, self.origin, self.used = noted, origin, False
        noted.last = self

    def through(self, place: str, layer: nn.Module | None, drops: bool = False) -> _Value:
        """Return the output of this layer."""
        if self.used:
            self.noted.refuse(f"uses {self.origin} twice")
        if not torch.is_grad_enabled():
            self.noted.refuse(f"computes {place} without gradients")
        self.used = True
        self.noted.steps.append((place, layer, drops))
        return _Value(self.noted, f"the output of {place}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> _Value:
        values = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, _Value)]
        name = getattr(func, "__name__", str(func))
        if func not in _FUNCTIONS or len(values) != 1 or not (args and isinstance(args[0], _Value)):
            values[0].noted.refuse(f"calls {name} on {' and '.join(value.origin for value in values)}")
        return _FUNCTIONS[func](*args, **(kwargs or {}))

    def size(self, axis: int | None = None) -> Any:
        return _Shape(self) if axis is None else _Shape(self)[axis]

    @property
    def shape(self) -> _Shape:
        return _Shape(self)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args, **kwargs: _METHODS[name](self, *args, **kwargs)
        return self.noted.refuse(f"asks {self.origin} for its {name}")

    def __bool__(self) -> bool:
        return self.noted.refuse(f"branches on {self.origin}")

    def __len__(self) -> int:
        return self.noted.refuse(f"asks {self.origin} for its len(); write .size(0)")


class _Shape:
    """The shape of a value, of which only the number of rows may be asked for."""

    def __init__(self, value: _Value) -> None:
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

    def __init__(self, value: _Value) -> None:
        self.value = value

    def _refuse(self, *_: object) -> NoReturn:
        self.value.noted.refuse(f"computes with the number of rows of {self.value.origin}")

    __bool__ = __index__ = __int__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _combined(name: str) -> Callable[..., NoReturn]:
    def combined(self: _Value, *others: object) -> NoReturn:
        with_others = "".join(f" and {other.origin}" for other in others if isinstance(other, _Value))
        self.noted.refuse(f"computes with {self.origin}{with_others} ({name})")

    return combined


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge",
              "iter", "float", "int", "index", "iadd", "isub", "imul", "radd", "rsub", "rmul", "rmatmul",
              "setitem"):  # fmt: skip
    setattr(_Value, f"__{_name}__", _combined(_name))


def _relu(x: _Value, inplace: bool = False) -> _Value:
    return x.through("relu", nn.ReLU())


def _leaky(x: _Value, negative_slope: float = 0.01, inplace: bool = False) -> _Value:
    return x.through("leaky_relu", nn.LeakyReLU(negative_slope))


def _gelu(x: _Value, *, approximate: str = "none") -> _Value:
    return x.through("gelu", nn.GELU(approximate))


def _silu(x: _Value, inplace: bool = False) -> _Value:
    return x.through("silu", nn.SiLU())


def _tanh(x: _Value) -> _Value:
    return x.through("tanh", nn.Tanh())


def _sigmoid(x: _Value) -> _Value:
    return x.through("sigmoid", nn.Sigmoid())


def _dropout(x: _Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> _Value:
    return x.through("dropout", nn.Dropout(p), bool(training) and p > 0)


def _flatten(x: _Value, start_dim: int = 0, end_dim: int = -1) -> _Value:
    if (start_dim, end_dim) != (1, -1):
        x.noted.refuse(f"flattens {x.origin} otherwise than from the second axis on")
    return x.through("flatten", nn.Flatten())


def _view(x: _Value, *shape: Any) -> _Value:
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    rows, width = shape if len(shape) == 2 else (None, None)
    if isinstance(rows, _Count) and width is not None and not isinstance(width, _Count) and width == -1:
        return x.through("flatten", nn.Flatten())
    if isinstance(rows, _Count | int) and (isinstance(rows, _Count) or rows == -1) and isinstance(width, int):
        return x.through("view", _Rows(width))
    return x.noted.refuse(f"gives {x.origin} another shape than (rows, -1)")


_FUNCTIONS: dict[Any, Callable[..., _Value]] = {
    F.relu: _relu, torch.relu: _relu, F.leaky_relu: _leaky, F.gelu: _gelu, F.silu: _silu, torch.tanh: _tanh,
    torch.sigmoid: _sigmoid, F.dropout: _dropout, torch.flatten: _flatten, torch.reshape: _view,
}  # fmt: skip
_METHODS: dict[str, Callable[..., _Value]] = {
    "relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid, "flatten": _flatten, "view": _view, "reshape": _view,
}  # fmt: skip
