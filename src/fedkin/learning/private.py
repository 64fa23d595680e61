"""Local training that is private for each sample: DP-SGD (Abadi et al., CCS 2016).

In each step every sample is drawn independently, with the same probability. The gradient of each drawn sample is
clipped, normal noise is added to their sum, and the sum is divided by the expected number of samples, which does not
reveal how many were drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from fedkin.codec import Params, Tree
from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Samples
from fedkin.learning.devices import arranged, device_of, moved, seeded
from fedkin.learning.losses import Batch, Loss
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.sgd import lay_out, learned, load, seed_torch, stepper
from fedkin.learning.training import Fitted, Training

_AT_ONCE = 1 << 24  # numbers in the per-sample gradients that are in memory at the same time


def uniform(data: bytes) -> npt.NDArray[np.float64]:
    """Return a number for every 8 random bytes: 52 bits, in the middle of their interval, so neither 0 nor 1."""
    whole = np.frombuffer(data, dtype=np.uint64) >> np.uint64(12)
    return (whole.astype(np.float64) + 0.5) * 2.0**-52


class Stream:
    """Pseudo-random draws from a secret key (SHAKE-256); without the key nobody can tell them from random ones.

    >>> bool((Stream(b"key").random(3) == Stream(b"key").random(3)).all())
    True
    """

    def __init__(self, key: bytes) -> None:
        self.key, self.calls = key, 0

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Return numbers between 0 and 1."""
        self.calls += 1
        return uniform(hashlib.shake_256(self.key + self.calls.to_bytes(8, "big")).digest(8 * size))

    def standard_normal(self, size: int) -> npt.NDArray[np.float64]:
        """Return standard normal numbers."""
        drawn: npt.NDArray[np.float64] = ndtri(self.random(size))
        return drawn


Draws: TypeAlias = np.random.Generator | Stream


@dataclass(frozen=True)
class Private:
    """The privacy settings of a fit.

    clip: the largest norm of one sample's gradient. noise: standard deviation of the noise, divided by clip. rate: the
    probability with which a step draws a sample. steps: their number. secret: the key of all draws; None: draws are
    keyed by the job, as in a simulation, and protect nobody.
    """

    clip: float
    noise: float
    rate: float
    steps: int
    secret: bytes | None = None

    def draws(self, key: int) -> Draws:
        """Return the generator for the draws of a job with this key."""
        return np.random.default_rng(key) if self.secret is None else Stream(self.secret)


def drawn_steps(
    draws: Draws, private: Private, samples: int, numbers: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Yield for each step the rows of the samples that take part, and one standard normal number for each parameter.

    The order of draws: one number for each sample, in order (the sample takes part if its number is below the rate);
    then the normal numbers, in the order of `Net.trainable`.
    """
    for _ in range(private.steps):
        yield np.flatnonzero(draws.random(samples) < private.rate), draws.standard_normal(numbers)


def fit_privately(
    net: Net, module: BodyHead, params: Params, loss: Loss, samples: Samples, training: Training, extras: Tree,
    private: Private, draws: Draws,
) -> Fitted:  # fmt: skip
    """Train `params` on `samples`, privately for each sample; the first draw seeds torch (dropout, views).

    Only the parameters of the result depend on the samples: the loss is NaN, and the number of processed samples is
    the expected one.
    """
    check_separate(module)
    last = lay_out(net, module, samples)
    load(module, params)
    device = device_of(module)
    extras = moved(extras, device)
    module.train()
    leaves = list(module.params.values())
    step = stepper(training, leaves)
    expected = private.rate * len(samples)
    spread = private.noise * private.clip if private.noise else 0.0
    with seeded(device=device):
        seed_torch(int(draws.random(1)[0] * 2**52), device)
        for rows, normal in drawn_steps(draws, private, len(samples), sum(leaf.numel() for leaf in leaves)):
            where = torch.from_numpy(rows).to(device)
            x, y = arranged(samples.inputs(where, net.dtype), last), samples.labels(where)
            if training.augment is not None and len(rows):
                x = arranged(training.augment(x), last)
            sums = clipped_sum(module, net.trainable, loss, x, y, extras, private.clip)
            noise = torch.from_numpy(spread * normal if spread else np.zeros(len(normal))).to(device, net.dtype)
            parts = torch.split(noise, [leaf.numel() for leaf in leaves])
            for leaf, total, part in zip(leaves, sums, parts, strict=True):
                leaf.grad = ((total + part.view_as(leaf)) / expected).contiguous()
            step()
    return Fitted(learned(module), {}, math.nan, private.steps, round(private.steps * expected))


class _Called(nn.Module):
    """A loss as a module, whose parameters are those of the model."""

    def __init__(self, model: BodyHead, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch, extras: Tree) -> Tensor:
        value = self.loss(self.model, batch, extras, {})
        if isinstance(value, tuple):
            how = "with privacy.sample_epsilon a loss may return its value alone"
            raise MethodError(f"{type(self.loss).__name__}: its carry is computed from samples; {how}")
        return value


def clipped_sum(
    module: BodyHead, names: Sequence[str], loss: Loss, x: Any, y: Tensor, extras: Tree, clip: float
) -> list[Tensor]:
    """Return the sum of all samples' gradients, each scaled to a norm of at most `clip`: one tensor for each name.

    A sample whose gradient is not finite adds nothing.
    """
    named, called = dict(module.named_parameters()), _Called(module, loss)
    weights = {f"model.{name}": named[name].detach() for name in names}
    sums = [torch.zeros_like(weight) for weight in weights.values()]

    def value(weights: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        one = pytree.tree_map(lambda part: part[None], x)
        batch = Batch(one, y[None], torch.ones(1, dtype=sums[0].dtype, device=y.device), True)
        result: Tensor = functional_call(called, weights, (batch, extras))
        return result

    each = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")
    many = max(1, _AT_ONCE // sum(total.numel() for total in sums))
    for start in range(0, len(y), many):
        part = slice(start, start + many)
        grads = list(each(weights, pytree.tree_map(lambda whole, part=part: whole[part], x), y[part]).values())
        norm = torch.stack([one.flatten(1).square().sum(1) for one in grads]).sum(0).sqrt()
        factor = torch.where(norm > clip, clip / norm, 1.0)
        finite = norm.isfinite()
        for total, one in zip(sums, grads, strict=True):
            shape = (-1, *(1,) * total.ndim)
            total += torch.where(finite.view(shape), one * factor.view(shape), 0.0).sum(0)
    return sums


def check_separate(module: BodyHead) -> None:
    """Raise ConfigError for a model that mixes the samples of a batch, or stores statistics of them."""
    mixing = [
        name for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and name not in module.frozen_norm_layers
    ]  # fmt: skip
    trainable = module.params
    found = mixing + [name for name in module.sent_names if name not in trainable]
    if found:
        raise ConfigError(
            f"privacy.sample_epsilon: {found[0]} of the model mixes samples or has statistics of them, as batch "
            "normalisation does, so that no sample has a gradient of its own; take a model without it (GroupNorm)"
        )
