"""Encoders: shapes, what they are trained for, pretraining."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset, Part
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Scale, Task
from fedkin.learning import Batch, Training, encoders
from fedkin.learning.encoders import Reconstruction, View, encoder_net, kind_for, moments, pixels, pretrained
from fedkin.learning.sgd import load
from support import stored

PLAN = Training(optimiser="adam", lr=1e-3, batch_size=16, local_epochs=3)


def images(count: int = 48, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0) -> Samples:
    """Blurred blobs in bytes, with a scale."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (count, *shape)).astype(np.uint8))
    return Samples(x, torch.from_numpy(rng.integers(0, 4, count)), None, Scale((0.3,), (0.5,)))


def dataset(shape: tuple[int, ...] = (1, 8, 8), count: int = 48) -> Dataset:
    samples = images(count, shape)
    part = Part(stored(samples), samples.y)
    return Dataset("blobs", part, part, Task(4, shape), samples.scale)


@pytest.mark.parametrize(
    ("kind", "shape", "dims"),
    [
        ("grey", (1, 28, 28), 128), ("grey", (1, 9, 11), 5), ("grey", (2, 4, 4), 3), ("colour", (3, 32, 32), 128),
        ("colour", (3, 17, 9), 4), ("mlp", (6,), 4), ("mlp", (1, 8, 8), 4), ("linear", (6,), 9), ("linear", (3, 4), 2),
    ],
)  # fmt: skip
def test_codes_and_reconstructions_have_their_shapes(kind: Any, shape: tuple[int, ...], dims: int) -> None:
    module = encoder_net(kind, shape, dims).scratch()
    x = torch.rand(2, *shape)
    z = module.features(x)
    assert z.shape == (2, dims)
    assert module.head(z).shape == x.shape


def test_the_papers_nets_have_the_papers_sizes() -> None:
    grey = encoder_net("grey", (1, 28, 28), 128)
    body = {name: tuple(t.shape) for name, t in grey.initial.items() if name.startswith("body") and "weight" in name}
    assert list(body.values()) == [(16, 1, 3, 3), (4, 16, 3, 3), (128, 196)]
    colour = encoder_net("colour", (3, 32, 32), 128)
    assert any(tuple(t.shape) == (128, 512) for t in colour.initial.values())


def test_equal_arguments_give_one_net_and_another_seed_other_values() -> None:
    assert encoder_net("mlp", (6,), 4, 1) is encoder_net("mlp", (6,), 4, 1)
    one, other = encoder_net("mlp", (6,), 4, 1).initial, encoder_net("mlp", (6,), 4, 2).initial
    assert not torch.equal(one["body.1.weight"], other["body.1.weight"])


def test_a_linear_encoder_starts_as_a_projection_that_keeps_distances() -> None:
    module = encoder_net("linear", (6,), 6).scratch()
    x = torch.randn(5, 6)
    torch.testing.assert_close(torch.cdist(module.features(x), module.features(x)), torch.cdist(x, x))
    torch.testing.assert_close(module(x), x)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((1, 28, 28), "grey"), ((3, 32, 32), "colour"), ((3, 4, 4), "grey"), ((1, 3, 9), "mlp"), ((5,), "mlp"),
     ((2, 7), "mlp"), ((2, 8, 8), "grey")],
)  # fmt: skip
def test_the_kind_suits_the_inputs(shape: tuple[int, ...], kind: str) -> None:
    assert kind_for(shape) == kind
    encoder_net(kind_for(shape), shape, 3)


@pytest.mark.parametrize(("kind", "shape"), [("grey", (6,)), ("colour", (3, 7, 9)), ("grey", (1, 3, 8))])
def test_inputs_that_a_kind_cannot_take_are_refused(kind: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f"method.encoder.kind: '{kind}' needs images.*take 'mlp' or 'linear'"):
        encoder_net(kind, shape, 4)


def test_pixels_take_the_scale_back() -> None:
    samples = images(shape=(3, 8, 8))
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    samples = Samples(samples.x, samples.y, None, scale)
    torch.testing.assert_close(pixels(scale)(samples.inputs(slice(None))), stored(samples) / 255.0)


@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 99))
def test_standardised_features_have_mean_0_and_deviation_1(count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, width + 1)) * 10 ** rng.uniform(-2, 3) + rng.normal() * 5
    x[:, -1] = 7.3
    samples = Samples(torch.from_numpy(x), torch.zeros(count, dtype=torch.int64))
    # Sums of two halves add up to those of the whole.
    halves = [moments(samples.take(range(0, count, 2))), moments(samples.take(range(1, count, 2)))]
    view = encoders.standardised(*(sum(part[k] for part in halves) for k in range(3)))  # type: ignore[arg-type]
    seen = view(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(seen.std(0)[:-1], 1, atol=1e-6)
    assert not seen[:, -1].any()


def test_moments_of_sequences_are_per_channel() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    count, total, squares = moments(Samples(x, torch.zeros(2, dtype=torch.int64)))
    assert count == 8
    torch.testing.assert_close(total, x.double().sum((0, 2)))
    torch.testing.assert_close(squares, x.double().square().sum((0, 2)))


@torch.no_grad()
def test_reconstruction_is_the_mean_squared_error_of_the_unscaled_image() -> None:
    samples, net = images(6), encoder_net("grey", (1, 8, 8), 5)
    module = net.scratch()
    x = samples.inputs(slice(None))
    loss = Reconstruction(pixels(samples.scale))
    value = loss(module, Batch(x, samples.y, torch.ones(6), True), {}, {})
    shown = stored(samples) / 255.0
    expected = sum(float(((module(shown[k : k + 1]) - shown[k : k + 1]) ** 2).mean()) for k in range(6)) / 6
    assert float(value) == pytest.approx(expected, rel=1e-5)
    padded = Batch(torch.cat([x, x[:2] * 9]), samples.y, torch.tensor([1.0] * 6 + [0.0] * 2))
    assert float(loss(module, padded, {}, {})) == pytest.approx(expected, rel=1e-5)


def test_pretraining_lowers_the_error_and_is_cached_by_content() -> None:
    samples, net = images(), encoder_net("grey", (1, 8, 8), 6)
    loss, rows = Reconstruction(pixels(samples.scale)), torch.ones(len(samples))

    def error(params: Any) -> float:
        module = net.scratch()
        load(module, params)
        with torch.no_grad():
            return float(loss(module, Batch(samples.inputs(slice(None)), samples.y, rows, True), {}, {}))

    plan = PLAN.model_copy(update={"local_epochs": 20})
    params = pretrained(net, samples, plan, seed=1)
    assert error(params) < 0.95 * error(net.initial)
    assert pretrained(net, samples, plan, seed=1) is params


@pytest.mark.parametrize("what", ["samples", "scale", "training", "seed", "net", "view"])
def test_whatever_training_depends_on_has_its_own_place_in_the_cache(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_PRETRAINED", {})
    given: dict[str, Any] = {
        "samples": images(20),
        "net": encoder_net("mlp", (1, 8, 8), 3),
        "training": PLAN,
        "seed": 0,
    }
    pretrained(**given)
    bright = Samples(images(20).x, images(20).y, None, Scale((0.3,), (0.5,), 300.0))
    changes: dict[str, Any] = {
        "samples": images(20, seed=9), "scale": bright, "training": PLAN.model_copy(update={"lr": 0.1}), "seed": 1,
        "net": encoder_net("mlp", (1, 8, 8), 3, 5), "view": View((2.0,)),
    }  # fmt: skip
    pretrained(**{**given, "samples" if what == "scale" else what: changes[what]})
    assert len(encoders._PRETRAINED) == 2


def test_classes_and_a_limit_choose_training_samples() -> None:
    data = dataset()
    assert len(encoders.chosen(data, None, None, 0)) == 48
    some = encoders.chosen(data, (1, 3), None, 0)
    assert set(some.labels().tolist()) == {1, 3}
    assert len(some) == int(((data.train.y == 1) | (data.train.y == 3)).sum())
    few = encoders.chosen(data, (1, 3), 5, 0)
    assert len(few) == 5
    assert set(few.rows.tolist()) <= set(some.rows.tolist())  # type: ignore[union-attr]
    assert encoders.chosen(data, None, 5, 0).rows.tolist() != encoders.chosen(data, None, 5, 1).rows.tolist()  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"method.encoder.classes: blobs has no training samples of classes \[7\]"):
        encoders.chosen(data, (1, 7), None, 0)
