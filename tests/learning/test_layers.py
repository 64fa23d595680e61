"""The layers that are written out for a stack, each alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkin.learning.layers import Columns, Now


class Nowhere:
    """A sink that keeps nothing."""

    def product(self, name: str, weight: Tensor, left: Tensor, right: Tensor) -> None:
        pass

    def total(self, name: str, bias: Tensor, rows: Tensor) -> None:
        pass

    more = whole = total


def normalised(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """What `Columns` gives for x [K, b, d], and the sums over the batch of its gradients by x."""
    members, rows, width = x.shape
    layer, share = Columns("scale", "shift", 1e-5), x.new_full((members, rows), 1 / rows)
    layer.bind({"scale": x.new_ones(members, width), "shift": x.new_zeros(members, width)}, members)
    n = layer.forward(x, Now(share, [rows] * members, x.new_full((members,), rows), ()))
    return n.clone(), layer.backward(slope.clone(), Nowhere(), True).sum(1)


@pytest.mark.parametrize("rows", [10, 240, 1000])
def test_columns_far_from_0_are_centred(rows: int) -> None:
    """The gradient of a bias before them is 0, and must not be the rounding of one sum over large numbers."""
    draw = torch.Generator().manual_seed(rows)
    x = (3 + 0.1 * torch.randn(4, rows, 40, generator=draw)).float()
    slope = torch.randn(4, rows, 40, generator=draw)
    got, below = normalised(x, slope)
    want, exact = normalised(x.double(), slope.double())
    torch.testing.assert_close(got, want.float(), rtol=0, atol=3e-6)
    torch.testing.assert_close(got.mean(1), torch.zeros(4, 40), rtol=0, atol=3e-7)
    torch.testing.assert_close(below, exact.float(), rtol=0, atol=2e-5 * rows**0.5)
