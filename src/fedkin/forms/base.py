"""What all forms share: the context of a message, lengths and limits, and what can be wrong."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
    "Context",
    "Dim",
    "Form",
    "Problem",
    "Upto",
    "bad_form",
    "bad_value",
    "fits",
    "kind_of",
    "length_of",
    "shape_of",
    "shortened",
    "tensor_problem",
    "unsound",
]  # fmt: skip


class Problem(NamedTuple):
    """What is wrong with a message: its form (keys, types, shapes), or a value of the right form; and in words."""

    kind: str
    words: str


@dataclass(eq=False)
class Context:
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


# A length or a limit: a number; "classes", "width" (of features), "size" (of a sample); or what depends on the context.
# As a length, another name is free, but equal wherever the message has it.
Dim: TypeAlias = int | str | Upto | Callable[[Context], int]


class Form(ABC):
    """The form of one field. `form | None` may be missing; `form.when(...)` is there only under a condition."""

    @abstractmethod
    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        """What is wrong with this value; `lengths` has the free lengths so far, and takes new ones."""

    def wanted(self, context: Context) -> bool | None:
        """Whether the field must be there (True), must not (False), or may (None)."""
        return True

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

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        return self.form.problem(value, context, lengths)

    def wanted(self, context: Context) -> bool | None:
        return None if self.condition is None else self.condition(context)


def unsound(tensor: Tensor) -> Problem | None:
    """A problem unless all numbers are finite, and small enough for their squares to be finite too.

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


def tensor_problem(value: Any, shape: torch.Size | None, dtype: torch.dtype) -> Problem | None:
    """A problem unless this is a dense tensor in memory of this type, and of this shape if one is given."""
    if not isinstance(value, Tensor):
        return bad_form(f"expected a tensor, got {kind_of(value)}")
    if value.layout != torch.strided or value.device.type != "cpu":
        return bad_form(f"expected a dense tensor in memory, got {value.layout} on {value.device}")
    if value.dtype != dtype:
        return bad_form(f"expected {dtype}, got {value.dtype}")
    return None if shape is None or value.shape == shape else bad_form(f"expected {list(shape)}, got {shape_of(value)}")


def fits(length: int, dim: Dim, context: Context, lengths: dict[str, int]) -> bool:
    """Whether this is the length; a free length is the first one that its name was seen with."""
    if isinstance(dim, Upto):
        return 1 <= length <= length_of(dim.most, context)
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return lengths.setdefault(dim, length) == length
    return length == length_of(dim, context)


def length_of(dim: Dim, context: Context) -> int:
    """Return a length or a limit that is a number, a name, or depends on the context."""
    if isinstance(dim, str):
        return context.task.classes if dim == "classes" else context.width if dim == "width" else context.size
    assert not isinstance(dim, Upto)
    return dim if isinstance(dim, int) else dim(context)


def bad_form(words: str) -> Problem:
    """Return a problem of keys, types or shapes."""
    return Problem("form", words)


def bad_value(words: str) -> Problem:
    """Return a problem of a value."""
    return Problem("value", words)


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
