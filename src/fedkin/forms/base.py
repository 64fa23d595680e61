"""What all forms share: the place of a message, lengths and limits, and what can be wrong."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedkin.federation import Task
    from fedkin.learning.net import Net

__all__ = [
    "Dim",
    "Fault",
    "Form",
    "Place",
    "Upto",
    "bad_form",
    "bad_value",
    "fits",
    "kind_of",
    "length_of",
    "shape_of",
    "shortened",
    "sound_together",
    "tensor_fault",
    "unsound",
]  # fmt: skip


# Numbers of a tensor that is looked at together with others: to copy more takes longer than a look at each.
_FEW = 1 << 12
_MANY = 1 << 20  # numbers of a stack at most


class Fault(NamedTuple):
    """What is wrong with a message: its form (keys, types, shapes), or a value of the right form; and in words."""

    kind: str
    words: str


@dataclass(eq=False)
class Place:
    """What forms depend on: the method with its settings, the sender's net, the task, and the limits of the run.

    most_n: largest number of samples. most_bytes: largest size of a message. asked: the message that is answered.
    """

    method: Any
    net: Net
    task: Task
    most_n: int = 10**9
    most_bytes: int = 2**30
    asked: Mapping[str, Any] = field(default_factory=dict)

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


# A length or a limit: a number; "classes", "width" (of features), "size" (of a sample); or what depends on the place.
# As a length, another name is free, but equal wherever the message has it.
Dim: TypeAlias = int | str | Upto | Callable[[Place], int]


class Form(ABC):
    """The form of one field. `form | None` may be missing; `form.when(...)` is there only under a condition."""

    @abstractmethod
    def fault(self, value: Any, place: Place, known: dict[str, int]) -> Fault | None:
        """What is wrong with this value; `known` has the free lengths found so far, and takes new ones."""

    def all_fine(self, values: Sequence[Any], place: Place) -> bool:
        """Whether `fault` finds nothing in any of these values, by one look at all; False: it needs a look at each."""
        return False

    def wanted(self, place: Place) -> bool | None:
        """Whether the field must be there (True), must not (False), or may (None)."""
        return True

    def __or__(self, other: None) -> Form:
        return Sometimes(self, None)

    def when(self, condition: Callable[[Place], bool]) -> Form:
        """Return the form of a field that is there if and only if the condition holds."""
        return Sometimes(self, condition)


@dataclass(frozen=True)
class Sometimes(Form):
    """A field that may be missing, or depends on a condition."""

    form: Form
    condition: Callable[[Place], bool] | None

    def fault(self, value: Any, place: Place, known: dict[str, int]) -> Fault | None:
        return self.form.fault(value, place, known)

    def wanted(self, place: Place) -> bool | None:
        return None if self.condition is None else self.condition(place)


def unsound(tensor: Tensor) -> Fault | None:
    """A fault unless all numbers are finite, and small enough for their squares to be finite too.

    The largest number is the square root of the largest one of the type, about 1.8e19 in single precision: from models
    with larger ones no distance or inner product can be computed.
    """
    if not tensor.is_floating_point():
        return None
    flat = tensor.detach().reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        # A sum of squares is finite only if every number is; on a CPU, this is far faster than torch.isfinite.
        numbers = flat.numpy()
        with np.errstate(all="ignore"):
            total = np.dot(numbers, numbers)
        if math.isfinite(total):
            return None
    wrong = flat.numel() - int(torch.isfinite(flat).sum())
    if wrong:
        return bad_value(f"{wrong:,} of {flat.numel():,} numbers are not finite")
    largest, most = float(flat.abs().max()) if flat.numel() else 0.0, math.sqrt(torch.finfo(flat.dtype).max)
    if largest > most and flat.dtype != torch.float16:
        return bad_value(f"a number of size {largest:.3g}; squares of those above {most:.2g} are not finite")
    return None


def sound_together(fields: Iterable[Sequence[Any]], like: Iterable[tuple[torch.Size, torch.dtype]]) -> bool:
    """Whether the tensors of each field are dense, in memory, and of its shape and type, and all numbers are sound.

    False: one of them needs a closer look. This runs for the tensors of all replies of a round, and is written for
    speed: small ones are stacked, and the stack is asked what holds for all of them.
    """
    fields, like = list(fields), list(like)
    if not {dtype for _, dtype in like} <= {torch.float32, torch.float64, torch.int64}:
        return False
    for tensors, (shape, dtype) in zip(fields, like, strict=True):
        if set(map(type, tensors)) != {Tensor} or {tensor.dtype for tensor in tensors} != {dtype}:
            return False
        # Before they are stacked: an expanded tensor may have any size.
        if {tensor.numel() for tensor in tensors} != {math.prod(shape)}:
            return False
        # Views and placeholders that numpy cannot see are resolved in a stack.
        if any(tensor.is_neg() or tensor._is_zerotensor() for tensor in tensors):
            return False
    total = 0.0
    with np.errstate(all="ignore"):
        for tensors, (shape, dtype) in zip(fields, like, strict=True):
            for part, several in _in_parts(tensors, math.prod(shape)):
                if part.shape[several:] != shape or part.requires_grad:
                    return False
                if not part.is_cpu or part.layout != torch.strided:
                    return False
                if dtype.is_floating_point:
                    flat = part.reshape(-1).numpy()
                    total += float(np.dot(flat, flat))
    # The sum of squares of all is finite only if every number is.
    return math.isfinite(total)


def _in_parts(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield stacks of small tensors, with few numbers at once, and large ones alone; and whether it is a stack."""
    if size > _FEW:
        yield from ((tensor, False) for tensor in tensors)
        return
    at_once = _MANY // max(size, 1)
    for begun in range(0, len(tensors), at_once):
        yield torch.stack(tuple(tensors[begun : begun + at_once])), True


def tensor_fault(value: Any, shape: torch.Size | None, dtype: torch.dtype) -> Fault | None:
    """A fault unless this is a dense tensor in memory of this type, and of this shape if one is given."""
    if not isinstance(value, Tensor):
        return bad_form(f"expected a tensor, got {kind_of(value)}")
    if value.layout != torch.strided or value.device.type != "cpu":
        return bad_form(f"expected a dense tensor in memory, got {value.layout} on {value.device}")
    if value.dtype != dtype:
        return bad_form(f"expected {dtype}, got {value.dtype}")
    return None if shape is None or value.shape == shape else bad_form(f"expected {list(shape)}, got {shape_of(value)}")


def fits(length: int, dim: Dim, place: Place, known: dict[str, int]) -> bool:
    """Whether this is the length; a free length is the first one that its name was seen with."""
    if isinstance(dim, Upto):
        return 1 <= length <= length_of(dim.most, place)
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return known.setdefault(dim, length) == length
    return length == length_of(dim, place)


def length_of(dim: Dim, place: Place) -> int:
    """Return a length or a limit that is a number, a name, or depends on the place."""
    if isinstance(dim, str):
        return place.task.classes if dim == "classes" else place.width if dim == "width" else place.size
    assert not isinstance(dim, Upto)
    return dim if isinstance(dim, int) else dim(place)


def bad_form(words: str) -> Fault:
    """Return a fault of keys, types or shapes."""
    return Fault("form", words)


def bad_value(words: str) -> Fault:
    """Return a fault of a value."""
    return Fault("value", words)


def kind_of(value: Any) -> str:
    """Return a few words on a value, for a message."""
    return f"shape {shape_of(value)}" if isinstance(value, Tensor) else f"{type(value).__name__} {shortened(value)}"


def shape_of(tensor: Tensor) -> str:
    """Return a shape as text."""
    return str(list(tensor.shape))


def shortened(value: object) -> str:
    """Return at most 60 characters of what a stranger sent, without line breaks and control characters."""
    try:
        text = str(value) if isinstance(value, (str, Exception)) else repr(value)
    except Exception:
        text = "?"
    text = "".join(letter if letter.isprintable() else "?" for letter in text[:61])
    return text if len(text) <= 60 else text[:57] + "..."
