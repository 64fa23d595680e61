"""Settings of local training: the rounds, the clients per round, and the local optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkin.codec import Params, Tree
from fedkin.errors import ConfigError, MethodError
from fedkin.learning.augment import Augment
from fedkin.settings import Settings


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a Fit: trained params (new tensors), last carry, mean training loss, steps, samples processed."""

    params: Params
    carry: Tree
    loss: float
    steps: int
    samples: int


def mean_loss(total: float, steps: int) -> float:
    """Return the mean loss of the steps, 0 without steps; raises MethodError if it is not finite."""
    mean = total / steps if steps else 0.0
    if not math.isfinite(mean):
        how = "lower training.lr or set training.clip"
        raise MethodError(f"the training loss became {mean} after {steps} steps; {how}")
    return mean


class Training(Settings):
    """Rounds, clients per round, and local optimisation.

    clients_per_round: clients sampled in each round: a number, a fraction below 1, or "all".
    local_steps or local_epochs: R minibatch steps, or R passes over the client's samples (default: one epoch).
    batch_size: samples per step, or "all"; the last batch of a pass may be smaller.
    lr, momentum, weight_decay, betas: of the optimiser, which starts anew in each round at each client: no momentum and
    no moments are kept from round to round.
    schedule: how the learning rate changes over the rounds t = 1..rounds: "cosine" is lr (1 + cos(pi (t - 1) / rounds))
    / 2, "step" is lr times step_factor after each step_every rounds. Rates of methods' own steps stay unchanged.
    clip: largest Euclidean norm of a step's gradient; None: no clipping.
    class_weights: the weight of a sample of each class in the loss: numbers above 0 in the order of the classes, or
    "balanced": n / (C n_c) at a client with n_c of its n samples in class c, and C classes among them.
    augment: a random view of each sample in place of the sample, in every step of every method's local training; None:
    unchanged samples. Methods with views of their own (`method.augment`) refuse it.
    """

    rounds: int = Field(100, ge=0)
    clients_per_round: int | float | Literal["all"] = "all"
    local_steps: int | None = Field(None, ge=1)
    local_epochs: int | None = Field(None, ge=1)
    batch_size: int | Literal["all"] = 32
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.1, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["constant", "cosine", "step"] = "constant"
    step_every: int | None = Field(None, ge=1)
    step_factor: float = Field(0.1, gt=0, le=1)
    clip: float | None = Field(None, gt=0)
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    augment: Augment | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError("give local_steps or local_epochs, not both")
        if self.batch_size != "all" and self.batch_size < 1:
            raise ValueError('batch_size must be at least 1, or "all"')
        share = isinstance(self.clients_per_round, float)
        if self.clients_per_round != "all" and (self.clients_per_round <= 0 or (share and self.clients_per_round >= 1)):
            raise ValueError('clients_per_round must be a whole number (5, not 5.0), a fraction below 1, or "all"')
        if (self.schedule == "step") != (self.step_every is not None):
            raise ValueError('give step_every, a number of rounds, with schedule = "step", and with no other')
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be at least 0 and below 1")
        if isinstance(self.class_weights, tuple) and not (self.class_weights and min(self.class_weights) > 0):
            raise ValueError('class_weights must be "balanced" or a number above 0 for each class')
        return self

    def weights(self, labels: Tensor, classes: int) -> tuple[float, ...] | None:
        """Return the weight of each class at a client with these training labels; None if they are all equal there.

        A class without samples at the client is treated as if it had one.

        >>> Training(class_weights="balanced").weights(torch.tensor([0, 0, 0, 1]), 2)
        (0.6666666666666666, 2.0)
        """
        if self.class_weights is None:
            return None
        count = torch.bincount(labels.cpu(), minlength=classes).numpy()
        if self.class_weights == "balanced":
            weights = count.sum() / (max((count > 0).sum(), 1) * np.maximum(count, 1))
        else:
            weights = np.array(self.class_weights, np.float64)
        # Weights without an effect are dropped, so that the bits are those of training without weights.
        return None if len(np.unique(weights[count > 0])) <= 1 else tuple(weights.tolist())

    def at(self, round: int) -> Training:
        """Return the settings of a round, from 1, with its learning rate.

        >>> training = Training(rounds=4, lr=1.0, schedule="step", step_every=2)
        >>> [training.at(round).lr for round in (1, 2, 3, 4)]
        [1.0, 1.0, 0.1, 0.1]
        """
        return self if self.schedule == "constant" else _at(self, max(1, min(round, self.rounds)))

    @property
    def local(self) -> int:
        """R of the papers: the number of local steps, or of local epochs if the experiment sets these."""
        return self.local_steps or self.local_epochs or 1

    def with_steps(self, steps: int, *, whole: bool = False, **more: Any) -> Training:
        """Return these settings with `steps` local steps. whole: each step uses all samples that it is given."""
        size = {"batch_size": "all"} if whole else {}
        return self.model_copy(update={"local_steps": steps, "local_epochs": None, **size, **more})

    def with_epochs(self, epochs: int) -> Training:
        """Return these settings with `epochs` passes over the samples."""
        return self.model_copy(update={"local_steps": None, "local_epochs": epochs})

    def rounds_of(self, warmup: float) -> int:
        """Return a number of rounds: below 1 `warmup` is a fraction of `rounds`, rounded down, else it is the number.

        >>> Training(rounds=20).rounds_of(0.25), Training(rounds=100).rounds_of(0.29), Training(rounds=20).rounds_of(5)
        (5, 29, 5)
        """
        # Products such as .29 * 100 lie just below the whole number.
        return int(warmup * self.rounds + 1e-9) if warmup < 1 else int(warmup)

    def count(self, clients: int) -> int:
        """Return how many of `clients` take part in a round; at least one."""
        if self.clients_per_round == "all":
            return clients
        if self.clients_per_round < 1:
            return max(1, round(self.clients_per_round * clients))
        if self.clients_per_round > clients:
            asked = f"{self.clients_per_round:g} clients a round"
            raise ConfigError(f"training.clients_per_round: {asked}, but the federation has {clients}")
        return int(self.clients_per_round)

    def steps(self, samples: int) -> int:
        """Return the number of local steps of a client with this number of samples."""
        per_epoch = 1 if self.batch_size == "all" else math.ceil(samples / self.batch_size)
        return self.local_steps or per_epoch * (self.local_epochs or 1)

    def batches(self, samples: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the row numbers of each step: a new permutation per pass, cut into batches."""
        if samples < 1:
            raise MethodError("no samples to train on")
        size = samples if self.batch_size == "all" else self.batch_size
        left = self.steps(samples)
        while left > 0:
            order = rng.permutation(samples)
            for start in range(0, samples, size):
                if left == 0:
                    return
                left -= 1
                yield order[start : start + size]

    def build(self, params: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Return a new optimiser for these parameters."""
        if self.optimiser == "adam":
            return torch.optim.Adam(params, self.lr, betas=self.betas, weight_decay=self.weight_decay)
        return torch.optim.SGD(params, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@lru_cache(maxsize=64)  # jobs of one round share the object
def _at(training: Training, round: int) -> Training:
    if training.schedule == "cosine":
        factor = (1 + math.cos(math.pi * (round - 1) / max(training.rounds, 1))) / 2
    else:
        factor = training.step_factor ** ((round - 1) // (training.step_every or 1))
    return training.model_copy(update={"lr": training.lr * factor})
