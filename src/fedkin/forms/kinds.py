"""The forms that fields can have."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.forms.base import (
    Context,
    Dim,
    Form,
    Problem,
    Upto,
    bad_form,
    bad_value,
    fits,
    kind_of,
    length_of,
    shape_of,
    shortened,
    tensor_problem,
    unsound,
)

if TYPE_CHECKING:
    from fedkin.learning.net import Net

__all__ = [
    "BODY",
    "COUNT",
    "HEAD",
    "NET",
    "TRAINABLE",
    "Bytes",
    "Choice",
    "Each",
    "Fields",
    "Flag",
    "Number",
    "Shaped",
    "Sums",
    "Weights",
    "Whole",
    "Wholes",
]  # fmt: skip

Fields: TypeAlias = Mapping[str, Form]

_LARGEST = 1e150  # the square of a larger number is not finite


@dataclass(frozen=True)
class Weights(Form):
    """Tensors with names, order, shapes and types of the net's.

    `only` those, or all `but` those, with a prefix; of these, those that `part` names.
    """

    only: str = ""
    but: str = "\0"
    part: Callable[[Net], Collection[str]] | None = None

    def names(self, net: Net) -> list[str]:
        """Return the names of the tensors, in the net's order."""
        part = net.initial if self.part is None else set(self.part(net))
        return [n for n in net.initial if n in part and n.startswith(self.only) and not n.startswith(self.but)]

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        if not isinstance(value, Mapping):
            return bad_form(f"expected tensors by name, got {kind_of(value)}")
        expected = self._expected(context)
        if list(value) != list(expected):
            odd = sorted(map(repr, set(value) ^ set(expected)))
            return bad_form(f"not the net's tensors: {', '.join(odd[:3])}" if odd else "not in the net's order")
        if _sound(value, expected):
            return None
        for name, (shape, dtype) in expected.items():
            problem = tensor_problem(value[name], shape, dtype) or unsound(value[name])
            if problem is not None:
                return problem._replace(words=f"{name}: {problem.words}")
        return None

    def _expected(self, context: Context) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """The shape and type of each tensor."""
        expected = context.weights.get(self)
        if expected is None:
            initial = context.net.initial
            expected = context.weights[self] = {
                n: (initial[n].shape, initial[n].dtype) for n in self.names(context.net)
            }
        return expected


def _sound(value: Mapping[str, Any], expected: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
    """Whether all is well at first sight, which is most of the time; False: it needs a closer look.

    This runs for every tensor of every reply, and is written for speed.
    """
    total = 0.0
    for name, (shape, dtype) in expected.items():
        tensor = value[name]
        if type(tensor) is not Tensor or tensor.shape != shape or tensor.dtype is not dtype:
            return False
        if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
            return False
        if dtype is torch.float32 or dtype is torch.float64:
            # A sum of squares is finite only if every number is.
            numbers = tensor.numpy()
            total += np.vdot(numbers, numbers)
        elif tensor.is_floating_point():
            return False
    return math.isfinite(total)


@dataclass(frozen=True)
class Shaped(Form):
    """A tensor of these lengths. dtype: None is the net's."""

    dims: tuple[Dim, ...]
    dtype: torch.dtype | None = None

    def __init__(self, *dims: Dim, dtype: torch.dtype | None = None) -> None:
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "dtype", dtype)

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        problem = tensor_problem(value, None, context.net.dtype if self.dtype is None else self.dtype)
        if problem is not None:
            return problem
        if value.ndim != len(self.dims):
            return bad_form(f"expected {len(self.dims)} axes, got shape {shape_of(value)}")
        for length, dim in zip(value.shape, self.dims, strict=True):
            if not fits(length, dim, context, lengths):
                return bad_form(f"shape {shape_of(value)}: a length of {length} is not the expected one")
        return unsound(value)


class Sums(Shaped):
    """A tensor of sums over a client's samples, which have no bound: clipped, they would mean nothing."""


@dataclass(frozen=True)
class Whole(Form):
    """A whole number from `low` to `high`; None: to the largest number of samples (`run.largest_n`)."""

    low: int = 0
    high: Dim | None = None

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        if type(value) is not int:
            return bad_form(f"expected a whole number, got {kind_of(value)}")
        high = context.most_n if self.high is None else length_of(self.high, context)
        return (
            None
            if self.low <= value <= high
            else bad_value(f"{shortened(value)} is not within {self.low} and {high:g}")
        )


@dataclass(frozen=True)
class Number(Form):
    """A finite number of at least `low`, as a float or as a 0-d tensor."""

    low: float = -math.inf

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        if isinstance(value, Tensor):
            problem = tensor_problem(value, torch.Size(()), value.dtype) or unsound(value)
            if problem is not None:
                return problem
            value = value.item()
        if type(value) not in (int, float):
            return bad_form(f"expected a number, got {kind_of(value)}")
        if not abs(value) < _LARGEST:
            return bad_value(f"{shortened(value)} is not a finite number")
        return None if value >= self.low else bad_value(f"{shortened(value)} is below {self.low:g}")


@dataclass(frozen=True)
class Flag(Form):
    """True or False."""

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        return None if type(value) is bool else bad_form(f"expected true or false, got {kind_of(value)}")


@dataclass(frozen=True)
class Choice(Form):
    """One of these texts."""

    texts: tuple[str, ...]

    def __init__(self, *texts: str) -> None:
        object.__setattr__(self, "texts", texts)

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        fits = isinstance(value, str) and value in self.texts
        return None if fits else bad_form(f"expected one of {', '.join(self.texts)}, got {kind_of(value)}")


@dataclass(frozen=True)
class Wholes(Form):
    """A list of whole numbers from `low` to below `below` (None: to `run.largest_n`). rising: each above the last."""

    dim: Dim
    low: int = 0
    below: Dim | None = None
    rising: bool = False

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        if not isinstance(value, (list, tuple)) or any(type(item) is not int for item in value):
            return bad_form(f"expected a list of whole numbers, got {kind_of(value)}")
        if not fits(len(value), self.dim, context, lengths):
            return bad_form(f"a list of {len(value)} is not as long as the others")
        most = context.most_n if self.below is None else length_of(self.below, context) - 1
        if value and not self.low <= min(value) <= max(value) <= most:
            return bad_value(
                f"{shortened(min(value))} to {shortened(max(value))} are not within {self.low} and {most:g}"
            )
        if self.rising and any(after <= before for before, after in pairwise(value)):
            return bad_value("the list does not rise")
        return None


@dataclass(frozen=True)
class Each(Form):
    """Any number of values of one form, by name."""

    form: Form

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        if not isinstance(value, Mapping):
            return bad_form(f"expected values by name, got {kind_of(value)}")
        return next(
            (problem for item in value.values() if (problem := self.form.problem(item, context, lengths))), None
        )


@dataclass(frozen=True)
class Bytes(Form):
    """A tensor of at most `most` bytes. reads: a function that raises FedkinError for bytes that make no sense.

    usual: about how many bytes it has, where that is far less than it may have.
    """

    most: int
    reads: Callable[[bytes], object] | None = None
    usual: int | None = None

    def problem(self, value: Any, context: Context, lengths: dict[str, int]) -> Problem | None:
        problem = Shaped(Upto(self.most), dtype=torch.uint8).problem(value, context, lengths)
        if problem is None and self.reads is not None:
            try:
                self.reads(value.numpy().tobytes())
            except (FedkinError, ValueError, OverflowError) as error:
                return bad_value(str(error))
        return problem


NET = Weights()
HEAD = Weights(only="head.")
BODY = Weights(but="head.")
TRAINABLE = Weights(part=lambda net: net.trainable)
COUNT = Whole(1)
