"""Embeddings: points [n, d] in fewer dimensions [n, dims], and new points in an embedding of other points.

With one argument, the points themselves are embedded. With two, the embedding is fitted on `x`, and the result is the
places of `new` [m, d] in it, so that newcomers get places while all others keep theirs. A fit depends on its arguments
alone: repeated, for instance after a restart, it gives the same result.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from hashlib import blake2b
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_vectors

__all__ = ["pca", "umap"]

# Fitted UMAPs are cached for placing newcomers: a fit of 12,000 points takes many seconds.
_FITTED: OrderedDict[bytes, Any] = OrderedDict()
_KEEP = 2
# With fewer distinct points, UMAP's neighbourhood graph shows no more than a projection does.
_FEWEST = 8


def pca(x: Any, new: Any = None, *, dims: int = 2) -> Array:
    """Project on the `dims` principal components of `x`, centred on the mean of `x`.

    The sign of a component makes its largest entry positive. If `x` has fewer components than `dims`, the other
    coordinates are 0.

    >>> pca([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]], dims=1).ravel() + 0.0
    array([-2.,  0.,  2.])
    """
    x, new = _points(x, new, dims)
    centre = x.mean(0)
    _, size, axes = np.linalg.svd(x - centre, full_matrices=False)
    axes = axes[:dims] * (size[:dims] > 1e-12 * max(float(size[0]), 1e-300))[:, None]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = axes * np.where(largest < 0, -1.0, 1.0)
    out = np.zeros((len(new), dims))
    out[:, : len(axes)] = (new - centre) @ axes.T
    return out


def umap(
    x: Any, new: Any = None, *, dims: int = 2, neighbours: int = 15, min_dist: float = 0.1, seed: int = 0
) -> Array:
    """Embed with UMAP (McInnes et al. 2018), by umap-learn on one thread: near points stay near, others move apart.

    neighbours: at most n - 1 are used. With fewer than 8 distinct points, or fewer than dims + 3, `pca` is used.
    Raises GraphError when umap-learn is not installed.

    >>> umap([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]], dims=1).ravel() + 0.0
    array([-2.,  0.,  2.])
    """
    x, new_points = _points(x, new, dims)
    if neighbours < 2:
        raise GraphError(f"neighbours: expected at least 2, got {neighbours}")
    if not 0 <= min_dist <= 1:
        raise GraphError(f"min_dist: expected 0 to 1, got {min_dist}")
    if len(np.unique(x, axis=0)) < max(_FEWEST, dims + 3):
        return pca(x, new, dims=dims)
    with warnings.catch_warnings():
        # umap and numba warn about threads, disconnected points and missing optional packages.
        warnings.simplefilter("ignore")
        model = _fitted(x, dims, min(neighbours, len(x) - 1), min_dist, seed)
        placed = model.embedding_ if new is None else model.transform(new_points)
    return np.asarray(placed, dtype=np.float64)


def _fitted(x: Array, dims: int, neighbours: int, min_dist: float, seed: int) -> Any:
    """Return the fitted model for these arguments, from the cache if it was used recently."""
    told = repr((x.shape, dims, neighbours, min_dist, seed)).encode()
    key = blake2b(told + np.ascontiguousarray(x).tobytes(), digest_size=16).digest()
    if key in _FITTED:
        _FITTED.move_to_end(key)
        return _FITTED[key]
    try:
        from umap import UMAP
    except ImportError as error:
        raise GraphError(f"embedding 'umap' needs umap-learn ({error}): pip install umap-learn") from None
    model = UMAP(
        n_components=dims, n_neighbors=neighbours, min_dist=min_dist, random_state=seed, transform_seed=seed, n_jobs=1
    )
    _FITTED[key] = model.fit(x)
    while len(_FITTED) > _KEEP:
        _FITTED.popitem(last=False)
    return model


def _points(x: Any, new: Any, dims: int) -> tuple[Array, Array]:
    x = as_vectors(x)
    if not isinstance(dims, int | np.integer) or isinstance(dims, bool) or dims < 1:
        raise GraphError(f"dims: expected a whole number of at least 1, got {dims!r}")
    if new is None:
        return x, x
    new = as_vectors(new, "new")
    if new.shape[1] != x.shape[1]:
        raise GraphError(f"new: expected points of width {x.shape[1]} as in X, got {new.shape[1]}")
    return x, new
