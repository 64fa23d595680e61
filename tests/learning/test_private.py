"""DP-SGD against a plain loop over samples, one by one, with the same draws; and what it promises, measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, kstest
from torch import Tensor, nn

from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Samples
from fedkin.learning import Net, Training
from fedkin.learning.losses import Batch, CrossEntropy, Loss, Proximal
from fedkin.learning.private import Private, Stream, clipped_sum, drawn_steps, fit_privately
from support import fitted

F64 = torch.float64


def mlp(dtype: torch.dtype = F64) -> Net:
    return Net.build(lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.Linear(7, 3)), 1, dtype)


def cnn() -> Net:
    def make() -> tuple[nn.Module, nn.Module]:
        body = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6)
        )
        return body, nn.Linear(6, 3)

    return Net.build(make, 1, F64)


def samples(shape: tuple[int, ...] = (5,), n: int = 24) -> Samples:
    draw = np.random.default_rng(0)
    return Samples(torch.from_numpy(3 * draw.normal(size=(n, *shape))), torch.from_numpy(draw.integers(3, size=n)))


def trained(
    net: Net, private: Private, training: Training, draws: Any, loss: Any = None, extras: Any = None,
    data: Samples | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    loss, data = loss or CrossEntropy(), data or samples()
    found = fit_privately(net, net.scratch(), net.initial, loss, data, training, extras or {}, private, draws)
    return dict(found.params)


def gradient(module: Any, names: Any, loss: Loss, x: Tensor, y: Tensor, extras: Any) -> list[Tensor]:
    """The gradient of one sample, by autograd."""
    result = loss(module, Batch(x[None], y[None], torch.ones(1, dtype=F64), True), extras, {})
    assert isinstance(result, Tensor)
    named = dict(module.named_parameters())
    return list(torch.autograd.grad(result, [named[name] for name in names]))


def by_loop(
    net: Net, private: Private, lr: float, seed: int, loss: Loss, extras: Any, data: Samples
) -> dict[str, Tensor]:
    """DP-SGD as its paper writes it: sample after sample, and the draws in the order that `drawn_steps` states."""
    draws, module = np.random.default_rng(seed), net.scratch()
    draws.random(1)
    named = dict(module.named_parameters())
    for _ in range(private.steps):
        uniform = draws.random(len(data))
        normal = torch.from_numpy(draws.standard_normal(sum(named[name].numel() for name in net.trainable)))
        total = [torch.zeros_like(named[name]) for name in net.trainable]
        for row in range(len(data)):
            if uniform[row] >= private.rate:
                continue
            at = torch.tensor([row])
            grads = gradient(module, net.trainable, loss, data.inputs(at, F64)[0], data.labels(at)[0], extras)
            norm = math.sqrt(sum(float(one.square().sum()) for one in grads))
            for sum_, one in zip(total, grads, strict=True):
                sum_ += one * min(1.0, private.clip / norm)
        start = 0
        for name, sum_ in zip(net.trainable, total, strict=True):
            noise = normal[start : start + sum_.numel()].view_as(sum_) * private.noise * private.clip
            start += sum_.numel()
            named[name].data -= lr * (sum_ + noise) / (private.rate * len(data))
    return {name: tensor.detach() for name, tensor in named.items()}


@pytest.mark.parametrize("which", ["mlp", "cnn", "proximal"])
def test_it_equals_a_loop_over_samples(which: str) -> None:
    net = cnn() if which == "cnn" else mlp()
    data = samples((2, 6, 6)) if which == "cnn" else samples()
    loss, extras = CrossEntropy(), {}
    if which == "proximal":
        loss, extras = Proximal(loss, 0.5), {"start": {name: t + 0.3 for name, t in net.initial.items()}}  # type: ignore[assignment]
    private = Private(clip=0.8, noise=0.6, rate=0.4, steps=5)
    found = trained(net, private, Training(lr=0.2), np.random.default_rng(7), loss, extras, data)
    expected = by_loop(net, private, 0.2, 7, loss, extras, data)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_without_noise_and_bound_it_is_gradient_descent() -> None:
    net, plain = mlp(), Training(batch_size="all", local_steps=6, lr=0.3, momentum=0.5, weight_decay=0.01)
    private = Private(clip=math.inf, noise=0.0, rate=1.0, steps=6)
    found = trained(net, private, plain, np.random.default_rng(0))
    torch.testing.assert_close(found, fitted(net, samples(), plain).params, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_one_sample_moves_a_sum_by_the_bound_at_most(scale: float) -> None:
    net, clip = mlp(torch.float32), 0.7
    x, y = samples().inputs(slice(None), torch.float32) * scale, samples().labels()
    module = net.scratch()
    whole = clipped_sum(module, net.trainable, CrossEntropy(), x, y, {}, clip)
    moves = []
    for row in range(len(y)):
        rest = torch.arange(len(y)) != row
        less = clipped_sum(module, net.trainable, CrossEntropy(), x[rest], y[rest], {}, clip)
        moves.append(math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(whole, less, strict=True))))
    assert max(moves) <= clip * (1 + 1e-4)
    assert scale < 1 or max(moves) > 0.9 * clip  # the bound is reached, so that it is no larger than it must be


def test_a_sample_whose_gradient_is_not_finite_adds_nothing() -> None:
    net = mlp(torch.float32)
    x, y = samples().inputs(slice(None), torch.float32), samples().labels()
    bad = x.clone()
    bad[3] = math.nan
    rest = torch.arange(len(y)) != 3
    both = [clipped_sum(net.scratch(), net.trainable, CrossEntropy(), a, b, {}, 1.0) for a, b in
            ((bad, y), (x[rest], y[rest]))]  # fmt: skip
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


class Nothing:
    """A loss without a gradient, so that a step is noise alone."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
        value: Tensor = 0 * model(batch.x).sum()
        return value


@pytest.mark.parametrize("secret", [None, b"a key"])
def test_noise_is_normal_and_has_the_stated_deviation(secret: bytes | None) -> None:
    net = Net.build(lambda: (nn.Linear(5, 400), nn.Linear(400, 3)), 1, F64)
    private = Private(clip=2.0, noise=1.5, rate=0.25, steps=4, secret=secret)
    found = trained(net, private, Training(lr=1.0), private.draws(5), Nothing())
    moved = torch.cat([(found[name] - net.initial[name]).flatten() for name in net.trainable]).numpy()
    # Four steps of lr 1, each with noise of 1.5 * 2 over the 6 samples that are expected.
    unit = moved / (1.5 * 2.0 / 6 * math.sqrt(4))
    low, high = (float(chi2.ppf(p, len(unit))) for p in (1e-4, 1 - 1e-4))
    assert low < np.square(unit).sum() < high
    assert kstest(unit, "norm").pvalue > 1e-4


@pytest.mark.parametrize("draws", [np.random.default_rng(1), Stream(b"key")])
def test_each_sample_is_drawn_by_itself(draws: Any) -> None:
    drawn = np.zeros((400, 30))
    for step, (rows, _) in enumerate(drawn_steps(draws, Private(1.0, 1.0, 0.3, 400), 30, 1)):
        drawn[step, rows] = 1
    low, high = (float(binom.ppf(p, 400, 0.3)) for p in (1e-4, 1 - 1e-4))
    assert ((drawn.sum(0) > low) & (drawn.sum(0) < high)).all()
    sizes = drawn.sum(1)  # a batch of fixed size would have no variance
    low, high = (float(chi2.ppf(p, 399)) for p in (1e-4, 1 - 1e-4))
    assert low < 399 * sizes.var() / (30 * 0.3 * 0.7) < high


def test_streams_of_unlike_keys_and_calls_are_unlike() -> None:
    one, other = Stream(b"a"), Stream(b"b")
    first = one.random(50)
    assert not np.isin(first, [*other.random(50), *one.random(50)]).any()
    assert (first == Stream(b"a").random(50)).all()


def test_results_tell_no_loss_and_no_number_of_samples() -> None:
    net = mlp()
    found = [
        fit_privately(net, net.scratch(), net.initial, CrossEntropy(), samples(), Training(), {},
                      Private(1.0, 1.0, 0.25, 8), np.random.default_rng(seed))
        for seed in (0, 1)
    ]  # fmt: skip
    assert [(one.samples, one.steps, one.carry) for one in found] == [(48, 8, {})] * 2
    assert all(math.isnan(one.loss) for one in found)


def test_batch_normalisation_and_a_carry_are_refused() -> None:
    net = Net(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False)), nn.Linear(4, 3), F64)
    with pytest.raises(ConfigError, match=r"body\.1 of the model mixes samples"):
        trained(net, Private(1.0, 1.0, 0.5, 1), Training(), np.random.default_rng(0))

    class Keeping:
        def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any) -> tuple[Tensor, Any]:
            return model(batch.x).sum(), {"seen": batch.x.sum()}

    with pytest.raises(MethodError, match="Keeping: its carry is computed from samples"):
        trained(mlp(), Private(1.0, 1.0, 0.9, 1), Training(), np.random.default_rng(0), Keeping())
