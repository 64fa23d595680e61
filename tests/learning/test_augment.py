"""Random views: shapes, ranges, exactness of each transformation, randomness by torch's generator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.errors import ConfigError
from fedkin.learning.augment import Augment

NOTHING = {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "grey": 0.0, "blur": 0.0}


def images(n: int = 16, channels: int = 3, side: int = 12, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return (x - 0.4) / 0.3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_keep_shape_type_and_range(channels: int, dtype: torch.dtype) -> None:
    x = images(64, channels, dtype=dtype)
    view = Augment()(x)
    assert (view.shape, view.dtype) == (x.shape, x.dtype)
    assert bool(torch.isfinite(view).all())
    low, high = x.flatten(1).min(1).values, x.flatten(1).max(1).values
    assert bool((view.flatten(1) >= low[:, None] - 1e-5).all())
    assert bool((view.flatten(1) <= high[:, None] + 1e-5).all())
    assert not torch.equal(view[0], x[0])


def test_the_seed_decides_and_samples_differ() -> None:
    x = images(8)
    torch.manual_seed(3)
    one = Augment()(x)
    torch.manual_seed(3)
    again = Augment()(x)
    other = Augment()(x)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    same = Augment()(x[:1].repeat(8, 1, 1, 1))
    assert len({tuple(view.flatten().tolist()) for view in same}) == 8


def test_all_off_is_the_identity() -> None:
    x = images()
    assert torch.equal(Augment(on=False)(x), x)
    torch.testing.assert_close(Augment(**NOTHING)(x), x)
    vectors = torch.randn(5, 7)
    assert torch.equal(Augment()(vectors), vectors)
    noisy = Augment(noise=0.1)(torch.zeros(20_000, 1))
    assert float(noisy.std()) == pytest.approx(0.1, rel=0.05)
    assert torch.equal(Augment()(torch.ones(2, 5, 4, 4)), torch.ones(2, 5, 4, 4))  # five channels: no image


def test_flip_mirrors_half_of_the_images() -> None:
    x = images(400, 1, 6)
    view = Augment(**(NOTHING | {"flip": 0.5}))(x)
    mirrored = (view - x.flip(3)).abs().amax((1, 2, 3)) < 1e-5
    kept = (view - x).abs().amax((1, 2, 3)) < 1e-5
    assert bool((mirrored ^ kept).all())
    assert 150 < int(mirrored.sum()) < 250
    torch.testing.assert_close(Augment(**(NOTHING | {"flip": 1.0}))(x), x.flip(3))


def test_a_crop_shows_a_part_of_the_image_enlarged() -> None:
    """On an image that holds its own coordinates, each view is an affine picture of them inside the frame."""
    side = 32
    at = (torch.arange(side) + 0.5) / side
    x = torch.stack([at[None, :].expand(side, side), at[:, None].expand(side, side), torch.zeros(side, side)])
    view = Augment(**(NOTHING | {"crop": 0.2}))(x.repeat(500, 1, 1, 1))
    across, down = view[:, 0], view[:, 1]
    assert float((across - across[:, :1]).abs().max()) < 1e-4  # columns stay columns
    assert float((down - down[:, :, :1]).abs().max()) < 1e-4
    wide = (across[:, 0, -3] - across[:, 0, 2]) * side / (side - 5)
    high = (down[:, -3, 0] - down[:, 2, 0]) * side / (side - 5)
    area, ratio = wide * high, wide / high
    assert 0.15 < float(area.min()) < 0.3
    assert 0.8 < float(area.max()) <= 1.01
    assert float(ratio.max()) < 1.45
    assert float(ratio.min()) > 0.7
    corner = across[:, 0, 0]
    assert float(corner.max()) > 0.4
    assert float(corner.min()) < 0.05


def test_brightness_and_contrast_are_linear_and_keep_black() -> None:
    x = torch.rand(300, 1, 8, 8) * 0.5
    x[:, :, 0, 0] = 0.0
    x[:, :, 0, 1] = 1.0  # room above, so that nothing is clamped at the top
    bright = Augment(**(NOTHING | {"jitter": 1.0, "contrast": 0.0}))(x)
    torch.testing.assert_close(bright[:, :, 0, 0], torch.zeros(300, 1))
    gain = bright[:, 0, 2, 2] / x[:, 0, 2, 2]
    assert 0.6 <= float(gain.min()) < 0.7
    assert 1.3 < float(gain.max()) <= 1.4
    flat = Augment(**(NOTHING | {"jitter": 1.0, "brightness": 0.0}))(x)
    mean = x.mean((1, 2, 3))
    slope = (flat[:, 0, 3, 3] - mean) / (x[:, 0, 3, 3] - mean)
    inside = (x[:, 0, 3, 3] - mean).abs() > 0.05
    assert 0.59 <= float(slope[inside].min()) < 0.7
    assert 1.3 < float(slope[inside].max()) <= 1.41


def test_grey_and_hue_keep_luma() -> None:
    luma = torch.tensor([0.299, 0.587, 0.114])
    x = 0.4 + 0.1 * torch.rand(50, 3, 8, 8)
    x[:, :, 0, 0], x[:, :, 0, 1] = 0.0, 1.0  # black and white: nothing is clamped
    grey = Augment(**(NOTHING | {"grey": 1.0}))(x)
    torch.testing.assert_close(grey, torch.einsum("nchw,c->nhw", x, luma)[:, None].expand_as(x), atol=1e-3, rtol=0)
    none = {"jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0}
    turned = Augment(**(NOTHING | none))(x)
    torch.testing.assert_close(
        torch.einsum("nchw,c->nhw", turned, luma), torch.einsum("nchw,c->nhw", x, luma), atol=1e-3, rtol=0
    )
    assert float((turned - x).abs().max()) > 0.01
    torch.testing.assert_close(turned[:, :, 0, 1], torch.ones(50, 3), atol=2e-3, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_blur_is_a_gaussian_convolution(channels: int) -> None:
    x = images(6, channels, 28)
    view = Augment(**(NOTHING | {"blur": 1.0, "sigma": (0.7, 0.7)}))(x)
    steps = torch.arange(-1.0, 2.0)
    bell = (-0.5 * (steps / 0.7) ** 2).exp()
    kernel = (bell[:, None] * bell[None, :] / bell.sum() ** 2).expand(channels, 1, 3, 3)
    expected = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)
    torch.testing.assert_close(view, expected, atol=1e-5, rtol=1e-5)
    some = Augment(**(NOTHING | {"blur": 0.5}))(images(200, 1, 28))
    untouched = (some - images(200, 1, 28)).abs().amax((1, 2, 3)) < 1e-6
    assert 60 < int(untouched.sum()) < 140


def test_inputs_are_not_changed_in_place() -> None:
    x = images()
    before = x.clone()
    Augment()(x)
    assert torch.equal(x, before)


def test_settings_are_checked() -> None:
    for wrong in ({"crop": 0.0}, {"flip": 1.5}, {"hue": 0.7}, {"sigma": (2.0, 0.1)}, {"blurr": 0.1}):
        with pytest.raises(ConfigError):
            Augment(**wrong)
