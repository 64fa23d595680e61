"""Forms of messages: what each field of a valid message contains, so that invalid messages are refused before use.

A phase declares the fields of its reply, `@phase(params=NET, n=COUNT)`; a method without a server declares the fields
of each exchange, `shares = {"share": {"params": NET}}`. `problem_of` says what is wrong with a message, if anything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedkin import codec
from fedkin.errors import FedkinError
from fedkin.untrusted import error_text, escaped

if TYPE_CHECKING:
    from fedkin.federation import Task
    from fedkin.learning.net import Net

__all__ = [
    "BODY", "COUNT", "HEAD", "NET", "TRAINABLE", "Bytes", "Context", "Each", "Fields", "Flag", "Form",
    "Integer", "Integers", "Noised", "Number", "Problem", "Shaped", "Sums", "Upto", "Weights", "problem_of",
]  # fmt: skip


class Problem(Exception):
    """What is wrong with a message. kind: its form (keys, types, shapes) or a value. words: the explanation."""

    def __init__(self, kind: Literal["form", "value"], words: str) -> None:
        super().__init__(kind, words)
        self.kind, self.words = kind, words

    def at(self, name: str) -> Problem:
        """Return the same problem, located in the part `name` of a message."""
        return Problem(self.kind, f"{name}: {self.words}")


@dataclass(eq=False)
class Context:
    """What forms depend on: the method with its settings, the sender's net, the task, and the limits of the run.

    most_n: largest number of samples. most_bytes: largest size of a message. asked: the message that this one answers.
    private_signatures: whether information about samples, other than models, has noise (`privacy.signature_epsilon`).
    """

    method: Any
    net: Net
    task: Task
    most_n: int = 10**9
    most_bytes: int = 2**30
    asked: Mapping[str, Any] = field(default_factory=dict)
    private_signatures: bool = False

    @cached_property
    def width(self) -> int:
        """The length of a feature vector."""
        return self.net.width(self.task)

    @cached_property
    def size(self) -> int:
        """The number of values in a sample."""
        return sum(math.prod(shape) for shape in self.task.shapes.values())

    @cached_property
    def weights(self) -> dict[Form, dict[str, tuple[torch.Size, torch.dtype]]]:
        """The shapes and types of parts of the net, by the form that names them."""
        return {}


@dataclass(frozen=True)
class Upto:
    """A length from 1 to `most`."""

    most: Dim


# A length or a limit: a number; "classes", "width" (of features), "size" (of a sample); or a function of the context.
# Any other name is a free length: it may have any value, but the same value everywhere in a message.
Dim: TypeAlias = int | str | Upto | Callable[[Context], int]


class Form(ABC):
    """The form of one field. `form | None` may be missing; `form.when(...)` is there only under a condition."""

    @abstractmethod
    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        """Raise Problem if this value is wrong; `lengths` holds the free lengths so far, and new ones are added."""

    def wanted(self, context: Context) -> bool | None:
        """Whether the field must be there (True), must not (False), or may (None)."""
        return True

    @property
    def bare(self) -> Form:
        """The form of a single value: without a condition, and of one value if there are several by name."""
        return self

    @property
    def is_parameters(self) -> bool:
        """Whether values are parameters of a net: if a run uses secure sums, clients send these only in such sums."""
        return isinstance(self.bare, Weights)

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point numbers, which get noise under `[privacy]`."""
        bare = self.bare
        if isinstance(bare, Shaped):
            return bare.dtype is None or bare.dtype.is_floating_point
        return isinstance(bare, (Weights, Number))

    def __or__(self, other: None) -> Form:
        return Sometimes(self, None)

    def when(self, condition: Callable[[Context], bool]) -> Form:
        """Return the form of a field that is there if and only if the condition holds."""
        return Sometimes(self, condition)


@dataclass(frozen=True)
class Sometimes(Form):
    """A field that may be missing, or depends on a condition."""

    form: Form
    condition: Callable[[Context], bool] | None

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        self.form.check(value, context, lengths)

    def wanted(self, context: Context) -> bool | None:
        return None if self.condition is None else self.condition(context)

    @property
    def bare(self) -> Form:
        return self.form


def check_sound(tensor: Tensor) -> None:
    """Raise Problem unless all numbers are finite, and small enough for their squares to be finite too.

    The limit is the square root of the type's largest number, about 1.8e19 in single precision: with larger numbers, no
    distance or inner product of models can be computed.
    """
    if not tensor.is_floating_point():
        return
    flat = tensor.detach().reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        # A sum of squares is finite only if every number is; on a CPU, this is far faster than torch.isfinite.
        numbers = flat.numpy()
        with np.errstate(all="ignore"):
            total = np.dot(numbers, numbers)
        if math.isfinite(total):
            return
    wrong = flat.numel() - int(torch.isfinite(flat).sum())
    if wrong:
        raise Problem("value", f"{wrong:,} of {flat.numel():,} numbers are not finite")
    largest, most = float(flat.abs().max()) if flat.numel() else 0.0, math.sqrt(torch.finfo(flat.dtype).max)
    if largest > most and flat.dtype != torch.float16:
        raise Problem("value", f"a number of size {largest:.3g}; squares of those above {most:.2g} are not finite")


def check_tensor(value: Any, shape: torch.Size | None, dtype: torch.dtype) -> None:
    """Raise Problem unless this is a dense tensor in memory of this type, and of this shape if one is given."""
    if not isinstance(value, Tensor):
        raise Problem("form", f"expected a tensor, got {kind_of(value)}")
    if value.layout != torch.strided or value.device.type != "cpu":
        raise Problem("form", f"expected a dense tensor in memory, got {value.layout} on {value.device}")
    if value.dtype != dtype:
        raise Problem("form", f"expected {dtype}, got {value.dtype}")
    if shape is not None and value.shape != shape:
        raise Problem("form", f"expected {list(shape)}, got {list(value.shape)}")


def fits(length: int, dim: Dim, context: Context, lengths: dict[str, int]) -> bool:
    """Whether `length` fits `dim`; the first use of a free length's name sets its value."""
    if isinstance(dim, Upto):
        return 1 <= length <= length_of(dim.most, context)
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return lengths.setdefault(dim, length) == length
    return length == length_of(dim, context)


def length_of(dim: Dim, context: Context) -> int:
    """Return a length or a limit as a number."""
    if isinstance(dim, str):
        return context.task.classes if dim == "classes" else context.width if dim == "width" else context.size
    assert not isinstance(dim, Upto)
    return dim if isinstance(dim, int) else dim(context)


def kind_of(value: Any) -> str:
    """Describe a value briefly, for an error message."""
    if isinstance(value, Tensor):
        return f"shape {list(value.shape)}"
    return f"{type(value).__name__} {escaped(repr(value), 60)}"


# -- the forms that fields can have ------------------------------------------------------------------------------------

Fields: TypeAlias = Mapping[str, Form]

_LARGEST = 1e150  # the square of a larger number is not finite


@dataclass(frozen=True)
class Weights(Form):
    """Tensors with the names, order, shapes and types of the net's tensors.

    only: prefix of the names to use. but: prefix of the names to leave out. part: function that returns names to use.
    """

    only: str = ""
    but: str = "\0"
    part: Callable[[Net], Collection[str]] | None = None

    def names(self, net: Net) -> list[str]:
        """Return the names of the tensors, in the net's order."""
        part = net.initial if self.part is None else set(self.part(net))
        return [n for n in net.initial if n in part and n.startswith(self.only) and not n.startswith(self.but)]

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if not isinstance(value, Mapping):
            raise Problem("form", f"expected tensors by name, got {kind_of(value)}")
        if self not in context.weights:
            initial = context.net.initial
            context.weights[self] = {n: (initial[n].shape, initial[n].dtype) for n in self.names(context.net)}
        expected = context.weights[self]
        if list(value) != list(expected):
            names = sorted(map(repr, set(value) ^ set(expected)))[:3]
            raise Problem("form", f"not the net's tensors: {', '.join(names)}" if names else "not in the net's order")
        for name, (shape, dtype) in expected.items():
            try:
                check_tensor(value[name], shape, dtype)
                check_sound(value[name])
            except Problem as problem:
                raise problem.at(name) from None


@dataclass(frozen=True)
class Shaped(Form):
    """A tensor with these lengths. dtype: None means the net's."""

    dims: tuple[Dim, ...]
    dtype: torch.dtype | None = None

    def __init__(self, *dims: Dim, dtype: torch.dtype | None = None) -> None:
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "dtype", dtype)

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        check_tensor(value, None, context.net.dtype if self.dtype is None else self.dtype)
        if value.ndim != len(self.dims):
            raise Problem("form", f"expected {len(self.dims)} axes, got shape {list(value.shape)}")
        for length, dim in zip(value.shape, self.dims, strict=True):
            if not fits(length, dim, context, lengths):
                raise Problem("form", f"shape {list(value.shape)}: a length of {length} is not the expected one")
        check_sound(value)


class Sums(Shaped):
    """A tensor of sums over a client's samples: they have no bound, and clipping would make them meaningless."""


@dataclass(frozen=True)
class Noised(Shaped):
    """A float64 tensor that changes by at most 1, in norm, if one of the client's samples is replaced.

    It is sent only with normal noise, and only once in a run. share: its part of `privacy.signature_epsilon`, as a part
    of 1 / deviation^2.
    """

    share: float = 1.0

    def __init__(self, *dims: Dim, share: float) -> None:
        super().__init__(*dims, dtype=torch.float64)
        object.__setattr__(self, "share", share)


@dataclass(frozen=True)
class Integer(Form):
    """A whole number from `low` to `high` (None: the largest number of samples, `run.largest_n`)."""

    low: int = 0
    high: Dim | None = None

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if type(value) is not int:
            raise Problem("form", f"expected a whole number, got {kind_of(value)}")
        high = context.most_n if self.high is None else length_of(self.high, context)
        if not self.low <= value <= high:
            raise Problem("value", f"{escaped(repr(value), 60)} is not within {self.low} and {high:g}")


@dataclass(frozen=True)
class Number(Form):
    """A finite number of at least `low`, as a float or as a 0-d tensor."""

    low: float = -math.inf

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if isinstance(value, Tensor):
            check_tensor(value, torch.Size(()), value.dtype)
            check_sound(value)
            value = value.item()
        if type(value) not in (int, float):
            raise Problem("form", f"expected a number, got {kind_of(value)}")
        if not abs(value) < _LARGEST:
            raise Problem("value", f"{escaped(repr(value), 60)} is not a finite number")
        if value < self.low:
            raise Problem("value", f"{escaped(repr(value), 60)} is below {self.low:g}")


@dataclass(frozen=True)
class Flag(Form):
    """True or False."""

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if type(value) is not bool:
            raise Problem("form", f"expected true or false, got {kind_of(value)}")


@dataclass(frozen=True)
class Integers(Form):
    """A list of whole numbers from `low` to below `below` (None: to `run.largest_n`). rising: strictly increasing."""

    dim: Dim
    low: int = 0
    below: Dim | None = None
    rising: bool = False

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if not isinstance(value, (list, tuple)) or not set(map(type, value)) <= {int}:
            raise Problem("form", f"expected a list of whole numbers, got {kind_of(value)}")
        if not fits(len(value), self.dim, context, lengths):
            raise Problem("form", f"a list of {len(value)} is not as long as the others")
        most = context.most_n if self.below is None else length_of(self.below, context) - 1
        if value and not self.low <= min(value) <= max(value) <= most:
            ends = f"{escaped(repr(min(value)), 60)} to {escaped(repr(max(value)), 60)}"
            raise Problem("value", f"{ends} are not within {self.low} and {most:g}")
        if self.rising and any(after <= before for before, after in pairwise(value)):
            raise Problem("value", "the list does not rise")


@dataclass(frozen=True)
class Each(Form):
    """Any number of values of one form, by name."""

    form: Form

    @property
    def bare(self) -> Form:
        return self.form

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        if not isinstance(value, Mapping):
            raise Problem("form", f"expected values by name, got {kind_of(value)}")
        for item in value.values():
            self.form.check(item, context, lengths)


@dataclass(frozen=True)
class Bytes(Form):
    """A tensor of at most `most` bytes. reads: a function that raises FedkinError for bytes that make no sense.

    usual: the typical number of bytes, if it is far below `most`.
    """

    most: int
    reads: Callable[[bytes], object] | None = None
    usual: int | None = None

    def check(self, value: Any, context: Context, lengths: dict[str, int]) -> None:
        Shaped(Upto(self.most), dtype=torch.uint8).check(value, context, lengths)
        try:
            if self.reads is not None:
                self.reads(value.numpy().tobytes())
        except (FedkinError, ValueError, OverflowError) as error:
            raise Problem("value", str(error)) from None


NET = Weights()
HEAD = Weights(only="head.")
BODY = Weights(but="head.")
TRAINABLE = Weights(part=lambda net: net.trainable)
COUNT = Integer(1)


# -- messages ----------------------------------------------------------------------------------------------------------


def problem_of(message: Mapping[str, Any], declared: Sequence[Fields] | None, context: Context) -> Problem | None:
    """Return what is wrong with a message, or None; a message that cannot be read has a wrong form.

    declared: the fields, or several possible sets of fields. None: nothing is declared; the message must only be able
    to travel, have finite numbers, and not be too large.

    >>> from torch import nn
    >>> from fedkin.forms import COUNT, NET
    >>> from fedkin.learning.net import Net
    >>> from fedkin.tasks import Task
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> context = Context(None, net, Task(2, (4,)))
    >>> problem_of({"params": net.initial, "n": 3}, [{"params": NET, "n": COUNT}], context)
    >>> problem_of({"params": net.initial, "n": -20}, [{"params": NET, "n": COUNT}], context).words
    'n: -20 is not within 1 and 1e+09'
    """
    try:
        if declared is None:
            _check_undeclared(dict(message), context)
        else:
            _check_declared(dict(message), declared, context)
    except Problem as problem:
        return problem.with_traceback(None)
    except Exception as error:  # an untrusted message may contain anything
        return Problem("form", f"it cannot be read ({type(error).__name__}: {error_text(error)})")
    return None


def _check_declared(message: dict[str, Any], declared: Sequence[Fields], context: Context) -> None:
    problems = [_keys(message, fields, context) for fields in declared]
    if "" not in problems:
        raise Problem("form", problems[0])
    lengths: dict[str, int] = {}
    with np.errstate(all="ignore"):
        for name, form in declared[problems.index("")].items():
            if name in message:
                try:
                    form.check(message[name], context, lengths)
                except Problem as problem:
                    raise problem.at(name) from None


def _keys(message: Mapping[str, Any], fields: Fields, context: Context) -> str:
    """Name a field that is missing or not allowed; empty if there is none."""
    for name, form in fields.items():
        wanted = form.wanted(context)
        if wanted is not None and wanted != (name in message):
            return f"{name} is missing" if wanted else f"{name} was not asked for"
    unexpected = next((name for name in message if name not in fields), None)
    return "" if unexpected is None else f"{escaped(str(unexpected), 60)} is not declared"


def _check_undeclared(message: dict[str, Any], context: Context) -> None:
    size = codec.size(message)[0]
    if size > context.most_bytes:
        raise Problem("value", f"{size:,} bytes are more than run.message_limit_mb allows")
    for name, leaf in codec.leaves(message):
        try:
            if isinstance(leaf, Tensor):
                check_sound(leaf)
            else:
                _check_finite(leaf)
        except Problem as problem:
            raise problem.at(name) from None


def _check_finite(leaf: Any) -> None:
    for item in leaf if isinstance(leaf, list) else ():
        _check_finite(item)
    if isinstance(leaf, float) and not math.isfinite(leaf):
        raise Problem("value", f"{leaf} is not a finite number")
