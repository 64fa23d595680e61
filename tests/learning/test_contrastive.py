"""Each contrastive loss against its equation written out slowly, and its gradient by finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.learning.contrastive import Projection, prototype_loss, supervised_contrastive, uniformity_loss
from methods.plain_loops import apart, contrast, to_prototypes

FORMS = pytest.mark.parametrize("form", ["paper", "released"])


def made(seed: int = 0, n: int = 9, d: int = 4, classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """(projections, labels, prototypes)."""
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, d, generator=draw, dtype=torch.float64),
        torch.randint(0, classes, (n,), generator=draw),
        torch.randn(classes, d, generator=draw, dtype=torch.float64),
    )


@FORMS
@pytest.mark.parametrize("tau", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_losses_are_their_equations(seed: int, tau: float, form: Any) -> None:
    p, y, xi = made(seed)
    released = form == "released"
    torch.testing.assert_close(supervised_contrastive(p, y, tau, form), contrast(p, y, tau, released))
    torch.testing.assert_close(prototype_loss(p, y, xi, tau, form), to_prototypes(p, y, xi, tau, released))
    torch.testing.assert_close(uniformity_loss(xi, tau, form), apart(xi, tau, released))


@FORMS
def test_samples_alone_in_their_class_count_for_nothing(form: Any) -> None:
    p, _, _ = made(n=3)
    alone = supervised_contrastive(p.requires_grad_(), torch.tensor([0, 1, 2]), 0.1, form)
    (gradient,) = torch.autograd.grad(alone, p)
    assert float(alone.detach()) == 0.0
    assert not gradient.any()
    paired = torch.tensor([0, 0, 2])
    found = supervised_contrastive(p, paired, 0.5, form)
    torch.testing.assert_close(found, contrast(p, paired, 0.5, form == "released"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projection_is_torchs_batch_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = Projection(4, 6, 3).to(dtype)
    norm = nn.BatchNorm1d(6).to(dtype)
    z = torch.randn(8, 4, dtype=dtype)
    expected = ours.out(F.relu(norm(ours.into(z))))
    torch.testing.assert_close(ours(z), expected)
    assert dict(ours.named_buffers()) == {}


def test_the_released_uniformity_of_long_prototypes_has_a_gradient() -> None:
    xi = (30 * torch.eye(4, dtype=torch.float32)).requires_grad_()
    uniformity_loss(xi, 0.1, "released").backward()  # type: ignore[no-untyped-call]
    assert xi.grad is not None
    torch.testing.assert_close(xi.grad, 600 * (1 - torch.eye(4)) / 4)
