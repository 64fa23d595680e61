"""Models as vectors: chosen layers, inner products, and points with these inner products; k-means centres of points."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedkin.flow import Params

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_BLOCK = 1 << 18  # numbers held at once in double precision: 2 MB, which stay in the processor's cache


def blocks(vectors: Sequence[Tensor], origin: Tensor | None = None) -> Iterator[tuple[Tensor, slice]]:
    """Yield n vectors [d], minus the origin [d], as double blocks [n, b], each with the slice of its entries."""
    width = max(1, _BLOCK // len(vectors))
    for start in range(0, len(vectors[0]), width):
        part = slice(start, start + width)
        block = torch.stack([vector[part] for vector in vectors]).double()
        yield (block if origin is None else block - origin[part].double()), part


def inner_products(vectors: Sequence[Tensor]) -> Array:
    """Inner products [n, n] of n vectors [d]; exactly symmetric.

    >>> inner_products([torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])]).tolist()
    [[5.0, 2.0], [2.0, 1.0]]
    """
    return _summed((block for block, _ in blocks(vectors)), len(vectors))


def inner_products_of_params(rows: Sequence[Params], names: Iterable[str], origin: Params) -> Array:
    """Inner products [n, n] of n sets of parameters, each minus the origin, over the named tensors."""
    tensors = (([row[name].flatten() for row in rows], origin[name].flatten()) for name in names)
    return _summed((block for vectors, start in tensors for block, _ in blocks(vectors, start)), len(rows))


def _summed(pieces: Iterable[Tensor], n: int) -> Array:
    total = torch.zeros(n, n, dtype=torch.float64)
    for block in pieces:
        total += block @ block.T
    return np.asarray(((total + total.T) / 2).numpy())


def _check_layers(layers: Literal["all"] | int) -> Literal["all"] | int:
    if isinstance(layers, int) and layers < 1:
        raise ValueError('layers must be at least 1, or "all"')
    return layers


# A setting: all layers, or the number of last layers.
Layers = Annotated[Literal["all"] | int, AfterValidator(_check_layers)]


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


def as_points(vectors: Sequence[Tensor]) -> Array:
    """The vectors as rows [n, d] in double precision: single precision loses distances of similar models."""
    return np.asarray(torch.stack(list(vectors)).double().numpy())


def rows(vectors: Sequence[Tensor], similarity: str) -> Array:
    """Rows to compute this similarity of n vectors from: their `places` [n, n], or the vectors."""
    # Inner products do not determine l1; short vectors need no `places`.
    if similarity == "l1" or len(vectors[0]) <= len(vectors):
        return as_points(vectors)
    return places(inner_products(vectors))


def centres_of(points: Tensor, k: int, seed: int, starts: int = 5) -> Tensor:
    """k-means centres [k, d] of points [n, d] (k-means++, the best of `starts`), in the order of their coordinates.

    If there are at most k distinct points, they are the centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    x = points.double().numpy()
    distinct = np.unique(x, axis=0)
    if len(distinct) > k:
        # Sums over several threads differ in the last bits from run to run.
        with _threads().limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ only by rounding
            distinct = KMeans(k, n_init=starts, random_state=seed).fit(x).cluster_centers_
        distinct = distinct[np.lexsort(distinct.T[::-1])]
    return torch.from_numpy(distinct).to(points.dtype)


@cache
def _threads() -> Any:
    """The libraries with threads; cached, because finding them takes longer than a small k-means."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
