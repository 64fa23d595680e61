"""The four small nets: shapes, sizes, and that clients with one of them can be stacked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning import Net
from fedkin.learning.models import MODELS
from fedkin.learning.models.nets import _Pool

SMALL = ("small-plain", "small-residual", "small-separable", "small-wide")
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 13)]

every_net = pytest.mark.parametrize("name", SMALL)


@every_net
@pytest.mark.parametrize("shape", SHAPES)
def test_features_have_the_width_and_are_at_least_zero(name: str, shape: tuple[int, ...]) -> None:
    task = Task(5, shape)
    net = Net.build(lambda: MODELS[name].model_validate({"width": 24}).build(task), 1)
    net.check(task)
    assert net.width(task) == 24
    module = net.scratch()
    z = module.features(torch.randn(3, *shape))
    assert z.shape == (3, 24)
    assert (z >= 0).all()
    assert (z == 0).any()
    assert (z > 0).any()
    assert module(torch.randn(3, *shape)).shape == (3, 5)


@every_net
@given(height=st.integers(8, 40), width=st.integers(8, 40), channels=st.integers(1, 3))
def test_images_of_any_size_are_taken(name: str, height: int, width: int, channels: int) -> None:
    task = Task(2, (channels, height, width))
    Net.build(lambda: MODELS[name].model_validate({}).build(task), 0).check(task)


@every_net
def test_too_small_images_are_refused(name: str) -> None:
    for shape in ((1, 7, 30), (64,)):
        with pytest.raises(ConfigError, match=f"'{name}' needs images .* at least 8 pixels"):
            MODELS[name].model_validate({}).build(Task(3, shape))


@given(st.integers(1, 40), st.integers(1, 40))
def test_pooling_takes_every_place_into_account(height: int, width: int) -> None:
    x = torch.rand(1, 1, height, width, requires_grad=True)
    pooled = _Pool()(x)
    assert max(pooled.shape[-2:]) <= 4
    assert min(pooled.shape[-2:]) == min(4, *pooled.shape[-2:]) >= 1
    pooled.sum().backward()
    assert x.grad is not None
    assert (x.grad > 0).all()
    torch.testing.assert_close(_Pool()(torch.full((1, 1, height, width), 3.0)), torch.full(pooled.shape, 3.0))
