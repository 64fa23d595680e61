"""What several methods need: a training loss without training, models as vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Federation
from fedkin.flow import ClientFlow, Infer, Params
from fedkin.learning.losses import Batch, per_sample
from fedkin.learning.net import BodyHead
from fedkin.tasks import Task

__all__ = [
    "Layers", "SampleLosses", "flat", "inner_products", "last_layers", "needs_planted", "places", "rows",
    "training_loss",
]  # fmt: skip

Array = npt.NDArray[np.float64]


def _some(layers: Literal["all"] | int) -> Literal["all"] | int:
    if isinstance(layers, int) and layers < 1:
        raise ValueError('layers must be at least 1, or "all"')
    return layers


# A setting: all layers, or the last so many.
Layers = Annotated[Literal["all"] | int, AfterValidator(_some)]

_BLOCK = 1 << 18  # numbers held at once in double precision: 2 MB, which stay in cache


def needs_planted(federation: Federation, **settings: str | None) -> None:
    """Raise ConfigError, naming the setting of [method.graph], when planted groups are asked for and not known.

    settings: by name, the value that asks for them, or None.
    """
    for name, value in settings.items():
        if value is not None and federation.planted is None:
            raise ConfigError(
                f"method.graph.{name}: {value!r} needs planted groups, and those of {federation.name} are not known"
            )


@dataclass(frozen=True)
class SampleLosses:
    """For Infer: the task's loss of each sample [b]."""

    task: Task

    def __call__(self, model: BodyHead, batch: Batch) -> Tensor:
        return per_sample(self.task)(model(batch.x), batch.y)


def training_loss(task: Task, params: Params) -> ClientFlow[Tensor]:
    """At a client: the mean loss of `params` on its training samples, a 0-d float64 tensor."""
    values = yield from Infer(params, SampleLosses(task))
    mean = values.double().mean()
    if not math.isfinite(mean):
        raise MethodError(f"the new model's training loss is {float(mean)}; lower training.lr or set training.clip")
    return mean


def last_layers(names: Sequence[str], layers: int | Literal["all"]) -> list[str]:
    """The parameters of the last so many layers; a layer is a module with parameters of its own.

    >>> last_layers(["body.1.weight", "body.1.bias", "head.weight", "head.bias"], 1)
    ['head.weight', 'head.bias']
    """
    if layers == "all":
        return list(names)
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    wanted = set(modules[-layers:])
    return [name for name in names if name.rpartition(".")[0] in wanted]


def flat(params: Params, names: Sequence[str], start: Params | None = None) -> Tensor:
    """These parameters as one vector [d]; with `start`, their differences from it."""
    parts = [params[name] if start is None else params[name] - start[name] for name in names]
    return torch.cat([part.flatten() for part in parts])


def inner_products(vectors: Sequence[Tensor]) -> Array:
    """Inner products [n, n] of n vectors, in double precision, without a second copy of them."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    width = max(1, _BLOCK // len(vectors))
    for start in range(0, len(vectors[0]), width):
        block = torch.stack([v[start : start + width] for v in vectors]).double()
        total += block @ block.T
    return np.asarray(total.numpy())


def places(inner: Array) -> Array:
    """Points [n, n] with these inner products: n vectors, however long, span no more than n dimensions."""
    size, axes = np.linalg.eigh((inner + inner.T) / 2)
    return np.asarray(axes * np.sqrt(np.maximum(size, 0.0)))


def rows(vectors: Sequence[Tensor], similarity: str) -> Array:
    """What this similarity of n vectors is to be computed from: points at their places [n, n]; for l1 themselves."""
    if similarity == "l1":  # the only one that inner products do not determine
        return np.asarray(torch.stack(list(vectors)).double().numpy())
    return places(inner_products(vectors))
