"""Similarity of clients (high = alike), distances between sets of centres (low = alike), and embeddings.

A similarity is a symmetric float64 matrix [n, n]. Its diagonal is the true self-similarity unless the function says
otherwise; sparsifying removes it.

Distances are between clients that each send one set, for instance its k-means centres: an array [n, k, d], or a
sequence of arrays [k_i, d] if their sizes differ. With one argument the result is [n, n], symmetric, with a zero
diagonal. With two it is [n, m], between the two collections (for instance newcomers and known clients).

Embeddings are points [n, d] in fewer dimensions [n, dims]. With two arguments, the embedding is fitted on `x`, and the
result is the places of `new` [m, d] in it. A fit depends on its arguments alone: repeated, it gives the same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy
from scipy.spatial.distance import cdist, pdist, squareform

from fedkin.errors import GraphError, imported
from fedkin.graph._check import Array, Labels, as_dense, as_sets, as_vectors

Match = Literal["union", "shared", "rows"]


def unit(x: Array) -> Array:
    """Scale vectors along the last axis to length 1; a zero vector stays zero."""
    # Vectors are divided by their largest entry first: the square of a very small or large entry would be 0 or inf.
    top = np.abs(x).max(axis=-1, keepdims=True)
    scaled = x / np.where(top > 0, top, 1.0)
    norm = np.sqrt(np.square(scaled).sum(axis=-1, keepdims=True))
    return np.asarray(scaled / np.where(norm > 0, norm, 1.0))


def _tidy(s: Array) -> Array:
    """Make `s` symmetric to the last bit, with entries inside [-1, 1]."""
    return np.clip((s + s.T) / 2, -1.0, 1.0)


def cosine(x: Any) -> Array:
    """Return the cosine of each pair of rows of `x` [n, d]: [n, n] in [-1, 1].

    A zero row has cosine 0 with every row, itself included.

    >>> cosine([[1, 0], [1, 1], [0, 0]]).round(3)
    array([[1.   , 0.707, 0.   ],
           [0.707, 1.   , 0.   ],
           [0.   , 0.   , 0.   ]])
    """
    u = unit(as_vectors(x))
    return _tidy(u @ u.T)


def minmax(s: Any) -> Array:
    """Scale `s` [n, n] so that its off-diagonal entries range from 0 to 1; the diagonal becomes zero.

    If all pairs are equal, they become 1 if positive, else 0.

    >>> minmax([[9, 1, 3], [1, 9, 2], [3, 2, 9]])
    array([[0. , 0. , 1. ],
           [0. , 0. , 0.5],
           [1. , 0.5, 0. ]])
    """
    s = as_dense(s, "S")
    pairs = ~np.eye(len(s), dtype=bool)
    if not pairs.any():
        return np.zeros_like(s)
    low, high = s[pairs].min(), s[pairs].max()
    # Values are halved first: the difference of two very large values of opposite sign is not finite.
    span = high / 2 - low / 2
    scaled = (s / 2 - low / 2) / span if span > 0 else np.full_like(s, float(high > 0))
    return np.where(pairs, np.clip((scaled + scaled.T) / 2, 0.0, 1.0), 0.0)


def dot(x: Any) -> Array:
    """Return dot products of rows of `x` [n, d], min-max scaled over pairs to [0, 1]; zero diagonal (TFL, Eq. 4).

    >>> dot([[1, 0], [2, 0], [0, 1]])
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 0.]])
    """
    x = as_vectors(x)
    return minmax(x @ x.T)


def negative_l1(x: Any) -> Array:
    """Return -|x_i - x_j|_1 for rows of `x` [n, d]: at most 0, zero diagonal. `minmax` scales it to [0, 1].

    >>> negative_l1([[0, 0], [3, 4]])
    array([[ 0., -7.],
           [-7.,  0.]])
    """
    return 0.0 - _pairwise(as_vectors(x), "cityblock")


def negative_l2(x: Any) -> Array:
    """Return -|x_i - x_j|_2 for rows of `x` [n, d]: at most 0, zero diagonal. `minmax` scales it to [0, 1].

    >>> negative_l2([[0, 0], [3, 4]])
    array([[ 0., -5.],
           [-5.,  0.]])
    """
    return 0.0 - _pairwise(as_vectors(x), "euclidean")


def rbf(x: Any, gamma: float | None = None) -> Array:
    """Return exp(-gamma |x_i - x_j|_2^2) for rows of `x` [n, d]: in [0, 1], diagonal 1.

    gamma: None takes 1 / the median of the squared distances above zero, so that the unit of `x` does not matter.

    >>> rbf([[0.0], [1.0]], gamma=1.0).round(3)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    """
    squared = _pairwise(as_vectors(x), "sqeuclidean")
    if gamma is None:
        positive = squared[squared > 0]
        gamma = 1.0 / max(float(np.median(positive)), np.finfo(float).tiny) if positive.size else 1.0
    if not (np.isfinite(gamma) and gamma > 0):
        raise GraphError(f"gamma: expected a number above 0, got {gamma}")
    return np.asarray(np.exp(-gamma * squared))


def _pairwise(x: Array, metric: Literal["cityblock", "euclidean", "sqeuclidean"]) -> Array:
    return np.asarray(squareform(pdist(x, metric), checks=False)) if len(x) > 1 else np.zeros((1, 1))


def response_similarity(outputs: Callable[[int, Labels], Any], owned: Any, *, match: Match = "union") -> Array:
    """Compare the responses of clients' heads to class anchors (SFMTL-Graph, Eq. 8): [n, n] in [-1, 1].

    owned: bool [n, C]. outputs(k, places): the outputs [m, K] of head k for the anchors at these places among all that
    are used, np.argwhere(owned).
    With q(k, l, c) the cosine of the outputs of heads k and l for client l's anchor of class c, a pair's similarity is
    "union": for each class that either owns, the mean of q over owners' anchors; then the mean over classes.
    "shared": the same over classes that both own; 0 if none.
    "rows": the mean of (q(k, l, c) + q(l, k, c)) / 2 over all classes, owned or not (the released code's).
    Only "rows" reads the anchors of classes that a client does not own. Clients that own no class have similarity 0
    with each other. More than 5,000 clients: in float32.

    >>> heads, anchors = np.array([[[1.0, 0], [0, 1]], [[1, 0], [0, -1]]]), np.eye(2)[[0, 1, 0, 1]]
    >>> response_similarity(lambda k, places: anchors[places] @ heads[k].T, np.ones((2, 2), bool))
    array([[1., 0.],
           [0., 1.]])
    """
    mask = _mask(owned, np.shape(owned), match)
    client, kind = np.nonzero(mask)
    n, places = len(mask), np.arange(len(client))
    first = np.searchsorted(client, np.arange(n + 1))
    s: Array = np.empty((n, n), _precision(n))
    itself = np.concatenate([unit(np.asarray(outputs(k, places[first[k] : first[k + 1]]), s.dtype)) for k in range(n)])
    # Eq. (8) in two halves, one for each direction: s[k, l] has head k's cosines on l's anchors.
    for k in range(n):
        logits = np.asarray(outputs(k, places), dtype=s.dtype)
        length = np.sqrt(np.einsum("mo,mo->m", logits, logits))
        q = np.einsum("mo,mo->m", logits, itself) / np.where(length > 0, length, 1.0)
        share = mask[k] / 2 if match == "shared" else 1 / (1.0 + mask[k])
        s[k] = np.bincount(client, q * share[kind], n)
    s += s.T
    s /= _classes(mask, match)
    np.clip(s, -1.0, 1.0, out=s)
    return s


def _classes(mask: Any, match: Match) -> Array:
    """Return the number of classes on which each pair is compared, [n, n], at least 1."""
    owned = mask.astype(np.float32)
    classes: Array = owned @ owned.T
    if match != "shared":
        count = owned.sum(axis=1)
        classes = count[:, None] + count - classes
    np.maximum(classes, 1, out=classes)
    return classes


def _precision(n: int) -> Any:
    return np.float64 if n <= 5000 else np.float32


def anchor_similarity(h: Any, owned: Any, *, match: Match = "union") -> Array:
    """Return the similarity of clients' class anchors (SFMTL-Graph, Eq. 10): [n, n] in [-1, 1].

    h: anchors [n, C, d]; owned: bool [n, C]. Each class that both own gives the cosine of its two anchors;
    "union": their sum divided by the number of classes that either owns;
    "shared": their mean; 0 if no class is shared.
    "rows": for each row of one client the best cosine with a row of the other, averaged over all rows, owned or
    not, as in the released code. That similarity is asymmetric; here the mean of both directions is taken.

    >>> anchors = np.eye(2)[None].repeat(2, 0)
    >>> anchor_similarity(anchors, [[True, True], [True, False]])
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    h = np.asarray(h, dtype=np.float64)
    if h.ndim != 3 or 0 in h.shape:
        raise GraphError(f"H: expected anchors [n, C, d], got shape {h.shape}")
    mask = _mask(owned, h.shape[:2], match)
    h = np.where(mask[:, :, None], h, 0.0)
    good = np.isfinite(h).all(axis=(1, 2))
    if not good.all():
        raise GraphError(
            f"H: client {int(np.argmin(good))} has a value that is not finite in a class it owns; expected numbers"
        )
    u = unit(h)
    if match == "rows":
        return _tidy(np.stack([np.einsum("cd,led->lce", anchors, u).max(-1).mean(-1) for anchors in u]))
    flat = u.reshape(len(u), -1).astype(_precision(len(u)), copy=False)
    s: Array = flat @ flat.T
    s /= _classes(mask, match)
    np.clip(s, -1.0, 1.0, out=s)
    return s


def _mask(owned: Any, shape: tuple[int, ...], match: str) -> Any:
    """Return the mask [n, C] of class anchors that are used; for "rows" all of them."""
    if match not in ("union", "shared", "rows"):
        raise GraphError(f"match: expected 'union', 'shared' or 'rows', got {match!r}")
    mask = np.asarray(owned)
    if mask.shape != shape or mask.dtype != bool:
        raise GraphError(f"owned: expected bool {list(shape)}, got {mask.dtype} of shape {mask.shape}")
    return np.ones_like(mask) if match == "rows" else mask


# -- distances between sets of centres ---------------------------------------------------------------------------------


def minimum(u: Any, v: Any = None) -> Array:
    """Return the minimum over pairs of centres of |u_r - v_s|_2 (FLT, Algorithm 2): [n, n], or [n, m] to the sets `v`.

    u, v: sets of centres, [n, k, d] or a list of [k_i, d].

    >>> minimum([[[0.0], [5.0]], [[6.0], [9.0]]])
    array([[0., 1.],
           [1., 0.]])
    """
    return _between(u, v, lambda squares: np.sqrt(squares.min()))


def matching(u: Any, v: Any = None) -> Array:
    """Return sqrt(min over matchings of sum_r |u_r - v_pi(r)|_2^2) / k (FLT, released code); arguments as in `minimum`.

    If sizes differ, the smaller set is matched into the larger, and k is the smaller size. Unmatched centres are
    ignored, so that a client with few centres can be near a client with more. scipy's assignment solver makes the
    result exact for any k.

    >>> matching([[[0.0], [5.0]], [[6.0], [0.0]]])
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    return _between(u, v, _match)


def _match(squares: Array) -> float:
    """The distance `matching` of two sets with these squared distances of centres [k, m]."""
    rows, columns = scipy.optimize.linear_sum_assignment(squares)
    return float(np.sqrt(squares[rows, columns].sum()) / len(rows))


def _between(u: Any, v: Any, measure: Callable[[Array], float]) -> Array:
    """Apply `measure` to the squared distances of centres [k, m] of each pair of sets."""
    sets = as_sets(u, "U")
    others = sets if v is None else as_sets(v, "V")
    if sets[0].shape[1] != others[0].shape[1]:
        raise GraphError(f"V: expected centres of width {sets[0].shape[1]} as in U, got {others[0].shape[1]}")
    centres = np.concatenate(others)
    edges = np.cumsum([0, *(len(points) for points in others)]).tolist()
    out = np.zeros((len(sets), len(others)))
    for row, points in enumerate(sets):
        squares = cdist(points, centres, "sqeuclidean")
        for column in range(row + 1 if v is None else 0, len(others)):
            out[row, column] = measure(squares[:, edges[column] : edges[column + 1]])
    return out + out.T if v is None else out


# -- embeddings --------------------------------------------------------------------------------------------------------


# With fewer distinct points, UMAP's neighbourhood graph shows no more than a projection does.
_FEWEST = 8


def pca(x: Any, new: Any = None, *, dims: int = 2) -> Array:
    """Project `new` [m, d] (default: `x` [n, d]) on the `dims` principal components of `x`: [m, dims].

    The origin is the mean of `x`. The sign of a component makes its largest entry positive. If `x` has fewer components
    than `dims`, the other coordinates are 0.

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

    x [n, d]: the points that are fitted; new [m, d]: points to place among them (default: x). Returns [m, dims].
    neighbours: at most n - 1 are used. With fewer than 8 distinct points, or fewer than dims + 3, `pca` is used.
    Raises ConfigError when umap-learn is not installed.

    >>> umap([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]], dims=1).ravel() + 0.0
    array([-2.,  0.,  2.])
    """
    x, new_points = _points(x, new, dims)
    if neighbours < 2:
        raise GraphError(f"neighbours: expected at least 2, got {neighbours}")
    if len(np.unique(x, axis=0)) < max(_FEWEST, dims + 3):
        return pca(x, new, dims=dims)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # numba gives the OpenMP that torch and scikit-learn use as many threads as there are cores, and leaves them so.
    with threadpool_limits(1), warnings.catch_warnings():
        # umap and numba warn about threads, disconnected points and missing optional packages.
        warnings.simplefilter("ignore")
        model = _fitted(x.tobytes(), x.shape, dims, min(neighbours, len(x) - 1), min_dist, seed)
        placed = model.embedding_ if new is None else model.transform(new_points)
    return np.asarray(placed, dtype=np.float64)


# A fit of 12,000 points takes many seconds: the last two are kept, to place newcomers.
@lru_cache(maxsize=2)
def _fitted(points: bytes, shape: tuple[int, int], dims: int, neighbours: int, min_dist: float, seed: int) -> Any:
    model = imported("umap", "embedding 'umap'", "umap").UMAP(
        n_components=dims, n_neighbors=neighbours, min_dist=min_dist, random_state=seed, transform_seed=seed, n_jobs=1
    )
    return model.fit(np.frombuffer(points).reshape(shape).copy())


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
