"""The contrastive losses' gradients, written out for a stack, against autograd's of each client alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedkin.learning.contrasted import Unit, prototype_slopes, supervised_slope, uniformity_slope
from fedkin.learning.contrastive import prototype_loss, supervised_contrastive, uniformity_loss

FORMS = pytest.mark.parametrize("form", ["paper", "released"])
SEEDS = st.integers(0, 2**32 - 1)


def wanted(loss: Callable[..., Tensor], *given: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The value, and autograd's gradients by these tensors."""
    leaves = [t.detach().clone().requires_grad_() for t in given]
    value = loss(*leaves)
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return value.detach(), [torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)]


def near(got: Tensor, want: Tensor) -> bool:
    return torch.allclose(got, want, rtol=1e-9, atol=1e-9)


def batch(members: int, samples: int, width: int, classes: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets and masks of clients with 1 to all of the samples."""
    p = torch.randn(members, samples, width, generator=draw, dtype=torch.float64)
    y = torch.randint(classes, (members, samples), generator=draw)
    counts = torch.randint(1, samples + 1, (members, 1), generator=draw)
    return p, y, (torch.arange(samples) < counts).double()


@FORMS
@given(SEEDS, st.integers(1, 3), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 5))
def test_supervised(
    form: Any, seed: int, members: int, samples: int, width: int, classes: int, temperature: float
) -> None:
    """With classes that are empty and samples alone in theirs."""
    p, y, mask = batch(members, samples, width, classes, torch.Generator().manual_seed(seed))
    unit = Unit(p)
    values, slope = supervised_slope(unit.rows, y, mask, temperature, form)
    below = unit.back(slope)
    for k in range(members):
        value, (grad,) = wanted(
            lambda own, k=k: supervised_contrastive(own, y[k], mask[k], temperature, form), p[k]
        )  # fmt: skip
        assert near(values[k], value)
        assert near(below[k], grad)


@FORMS
@given(SEEDS, st.integers(1, 3), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 5))
def test_prototypes(
    form: Any, seed: int, members: int, samples: int, width: int, classes: int, temperature: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    p, y, mask = batch(members, samples, width, classes, draw)
    xi = torch.randn(members, classes, width, generator=draw, dtype=torch.float64)
    unit = Unit(p)
    values, slope, by_xi = prototype_slopes(unit.rows, y, mask / mask.sum(1, True), xi, temperature, form)
    below = unit.back(slope)
    for k in range(members):
        value, grads = wanted(
            lambda own, xi, k=k: prototype_loss(own, y[k], mask[k], xi, temperature, form), p[k], xi[k]
        )  # fmt: skip
        assert near(values[k], value)
        assert near(below[k], grads[0])
        assert near(by_xi[k], grads[1])


@FORMS
@given(SEEDS, st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.floats(1, 100))
def test_uniformity(form: Any, seed: int, members: int, classes: int, width: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    xi = torch.randn(members, classes, width, generator=draw, dtype=torch.float64)
    values, slope = uniformity_slope(xi, temperature, form)
    for k in range(members):
        value, (grad,) = wanted(lambda own: uniformity_loss(own, temperature, form), xi[k])
        assert near(values[k], value)
        assert near(slope[k], grad)


def test_rows_of_zeros_and_very_short_ones() -> None:
    """Features after a ReLU can all be 0; F.normalize divides short rows by 1e-12."""
    rows = torch.tensor([[[0.0, 0.0], [1e-13, -2e-13], [3.0, 4.0]]], dtype=torch.float64)
    back = torch.tensor([[[0.3, 0.1], [0.2, -0.5], [0.7, 0.9]]], dtype=torch.float64)
    unit = Unit(rows)
    leaf = rows.clone().requires_grad_()
    made = F.normalize(leaf, dim=2)
    torch.testing.assert_close(unit.rows, made.detach())
    (grad,) = torch.autograd.grad(made, leaf, back)
    torch.testing.assert_close(unit.back(back), grad, rtol=1e-12, atol=0)
