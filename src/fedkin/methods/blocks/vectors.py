"""Models as vectors: which layers, their inner products, and points that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedkin.flow import Params
from fedkin.methods.blocks.gram import inner_products

__all__ = ["Layers", "as_vector", "last_layers", "places", "rows"]

Array = npt.NDArray[np.float64]


def _some(layers: Literal["all"] | int) -> Literal["all"] | int:
    if isinstance(layers, int) and layers < 1:
        raise ValueError('layers must be at least 1, or "all"')
    return layers


# A setting: all layers, or how many of the last.
Layers = Annotated[Literal["all"] | int, AfterValidator(_some)]


def last_layers(names: Sequence[str], layers: int | Literal["all"]) -> list[str]:
    """The parameters of the last `layers` layers; a layer is a module with parameters of its own.

    >>> last_layers(["body.1.weight", "body.1.bias", "head.weight", "head.bias"], 1)
    ['head.weight', 'head.bias']
    """
    if layers == "all":
        return list(names)
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    wanted = set(modules[-layers:])
    return [name for name in names if name.rpartition(".")[0] in wanted]


def as_vector(params: Params, names: Sequence[str], start: Params | None = None) -> Tensor:
    """These parameters as one vector [d]; with `start`, their differences from it."""
    parts = [params[name] if start is None else params[name] - start[name] for name in names]
    return torch.cat([part.flatten() for part in parts])


def places(inner: Array) -> Array:
    """Points [n, n] with these (symmetric) inner products: n vectors, however long, span no more than n dimensions."""
    size, axes = np.linalg.eigh(inner)
    return np.asarray(axes * np.sqrt(np.maximum(size, 0.0)))


def rows(vectors: Sequence[Tensor], similarity: str) -> Array:
    """What this similarity of n vectors is to be computed from: points at their places [n, n]; for l1 themselves."""
    if similarity == "l1":  # the only one that inner products do not determine
        return np.asarray(torch.stack(list(vectors)).double().numpy())
    return places(inner_products(vectors))
