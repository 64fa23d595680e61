"""Similarity of clients: high = alike.

Every function returns a symmetric float64 matrix [n, n]. Its diagonal is the true self-similarity unless the
function says otherwise; sparsifying removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_dense, as_vectors

__all__ = [
    "anchor_similarity", "cosine", "dot", "head_response", "minmax", "negative_l1", "negative_l2", "rbf",
    "response_similarity", "row_cosine", "update_cosine",
]  # fmt: skip

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


def update_cosine(x: Any, start: Any) -> Array:
    """Return the cosine of updates x_k - start (Sattler et al. 2020): `x` [n, d], `start` [d] or [n, d].

    >>> update_cosine([[2, 1], [1, 2]], [1, 1])
    array([[1., 0.],
           [0., 1.]])
    """
    x = as_vectors(x)
    start = np.asarray(start, dtype=np.float64)
    if start.shape not in (x.shape, x.shape[1:]):
        raise GraphError(f"start: expected shape {x.shape[1:]} or {x.shape}, got {start.shape}")
    return cosine(x - start)


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
        apart = squared[squared > 0]
        gamma = 1.0 / max(float(np.median(apart)), np.finfo(float).tiny) if apart.size else 1.0
    if not (np.isfinite(gamma) and gamma > 0):
        raise GraphError(f"gamma: expected a number above 0, got {gamma}")
    return np.asarray(np.exp(-gamma * squared))


def _pairwise(x: Array, metric: Literal["cityblock", "euclidean", "sqeuclidean"]) -> Array:
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(x, metric), checks=False)) if len(x) > 1 else np.zeros((1, 1))


def row_cosine(w: Any) -> Array:
    """Return the mean cosine of class rows of classifier weights `w` [n, C, d]: [n, n] in [-1, 1] (MAPL).

    >>> row_cosine([[[1, 0], [0, 1]], [[1, 0], [1, 0]]])
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    u = unit(as_vectors(w, "W", ndim=3))
    flat = u.reshape(len(u), -1)
    return _tidy(flat @ flat.T / u.shape[1])


def response_similarity(r: Any, owned: Any, *, match: Match = "union") -> Array:
    """Compare the responses of clients' heads to class anchors (SFMTL-Graph, Eq. 8): [n, n] in [-1, 1].

    owned: bool [n, C]. r: logits [n, n, C, K]: r[k, l, c] is the output of head k for client l's anchor of class c;
    or a function r(k, places) that returns those of head k for the anchors at these places among all that are used,
    np.argwhere(owned), [m, K]: then no array of all pairs and classes is held.
    With q(k, l, c) = cos(r[k, l, c], r[l, l, c]), both heads on l's anchor, a pair's similarity is
    "union": for each class that either owns, the mean of q over owners' anchors; then the mean over classes.
    "shared": the same over classes that both own; 0 if none.
    "rows": the mean of (q(k, l, c) + q(l, k, c)) / 2 over all classes, owned or not (the released code's).
    Only "rows" reads the anchors of classes that a client does not own. Clients that own no class have similarity 0
    with each other. More than 5,000 clients: in float32.

    >>> heads = np.array([[[1.0, 0], [0, 1]], [[1, 0], [0, -1]]])
    >>> anchors = np.eye(2)[None].repeat(2, 0)
    >>> responses = np.einsum("kod,lcd->klco", heads, anchors)
    >>> response_similarity(responses, np.ones((2, 2), bool))
    array([[1., 0.],
           [0., 1.]])
    """
    own, outputs = _responses(r, owned, match)
    client, kind = np.nonzero(own)
    n, every = len(own), np.arange(len(client))
    first = np.searchsorted(client, np.arange(n + 1))
    s: Array = np.empty((n, n), _precision(n))
    itself = np.concatenate([unit(np.asarray(outputs(k, every[first[k] : first[k + 1]]), s.dtype)) for k in range(n)])
    # Eq. (8) in two halves, one for each direction: s[k, l] has head k's cosines on l's anchors.
    for k in range(n):
        logits = np.asarray(outputs(k, every), dtype=s.dtype)
        length = np.sqrt(np.einsum("mo,mo->m", logits, logits))
        q = np.einsum("mo,mo->m", logits, itself) / np.where(length > 0, length, 1.0)
        share = own[k] / 2 if match == "shared" else 1 / (1.0 + own[k])
        s[k] = np.bincount(client, q * share[kind], n)
    s += s.T
    s /= _classes(own, match)
    np.clip(s, -1.0, 1.0, out=s)
    return s


def _responses(r: Any, owned: Any, match: Match) -> tuple[Any, Callable[[int, Labels], Array]]:
    """Return (mask [n, C] of the anchors that are used, a function as `response_similarity` says)."""
    if callable(r):
        n, classes = np.shape(owned)
        return _owned(owned, n, classes, match), r
    r = np.asarray(r, dtype=np.float64)
    if r.ndim != 4 or r.shape[0] != r.shape[1] or 0 in r.shape:
        raise GraphError(f"r: expected logits [n, n, C, K], got shape {r.shape}")
    own = _owned(owned, r.shape[0], r.shape[2], match)
    logits = _readable(r, own[None, :, :, None], "r", client_axis=1)

    def outputs(k: int, places: Labels) -> Array:
        of_head: Array = logits[k][own][places]
        return of_head

    return own, outputs


def _classes(own: Any, match: Match) -> Array:
    """Return the number of classes on which each pair is compared, [n, n], at least 1."""
    mask = own.astype(np.float32)
    both: Array = mask @ mask.T
    if match != "shared":
        owned = mask.sum(axis=1)
        both = owned[:, None] + owned - both
    np.maximum(both, 1, out=both)
    return both


def _precision(n: int) -> Any:
    return np.float64 if n <= 5000 else np.float32


def head_response(w: Any, b: Any, h: Any, owned: Any, *, match: Match = "union") -> Array:
    """Return the `response_similarity` of linear heads W h + b: [n, n] in [-1, 1].

    w: weights [n, K, d] (K outputs); b: biases [n, K] or None; h: anchors [n, C, d]; owned: bool [n, C].

    >>> w = [[[1.0, 0], [0, 1]], [[1, 0], [0, 1]]]
    >>> head_response(w, None, np.eye(2)[None].repeat(2, 0), [[True, False], [False, True]])
    array([[1., 1.],
           [1., 1.]])
    """
    w = as_vectors(w, "W", ndim=3)
    h = np.asarray(h, dtype=np.float64)
    if h.ndim != 3 or h.shape[0] != len(w) or h.shape[2] != w.shape[2]:
        raise GraphError(f"H: expected anchors [{len(w)}, C, {w.shape[2]}], got shape {h.shape}")
    own = _owned(owned, len(w), h.shape[1], match)
    anchors = _readable(h, own[:, :, None], "H")[own]
    if b is not None:
        b = as_vectors(b, "b")
        if b.shape != w.shape[:2]:
            raise GraphError(f"b: expected biases {w.shape[:2]}, got shape {b.shape}")
    bias = np.zeros(w.shape[:2]) if b is None else b
    return response_similarity(lambda k, places: anchors[places] @ w[k].T + bias[k], owned, match=match)


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
    own = _owned(owned, h.shape[0], h.shape[1], match)
    u = unit(_readable(h, own[:, :, None], "H"))
    if match == "rows":
        return _tidy(np.stack([np.einsum("cd,led->lce", one, u).max(-1).mean(-1) for one in u]))
    flat = u.reshape(len(u), -1).astype(_precision(len(u)), copy=False)
    s: Array = flat @ flat.T
    s /= _classes(own, match)
    np.clip(s, -1.0, 1.0, out=s)
    return s


def _owned(owned: Any, n: int, classes: int, match: str) -> Any:
    """Return the mask [n, C] of class anchors that are used; for "rows" all of them."""
    if match not in ("union", "shared", "rows"):
        raise GraphError(f"match: expected 'union', 'shared' or 'rows', got {match!r}")
    own = np.asarray(owned)
    if own.shape != (n, classes) or own.dtype != bool:
        raise GraphError(f"owned: expected bool [{n}, {classes}], got {own.dtype} of shape {own.shape}")
    return np.ones_like(own) if match == "rows" else own


def _readable(x: Array, where: Any, name: str, client_axis: int = 0) -> Array:
    """Return `x` with zeros outside `where`; raises GraphError if a value inside is not finite."""
    kept = np.where(where, x, 0.0)
    good = np.isfinite(kept)
    if not good.all():
        row = int(np.argwhere(~good)[0][client_axis])
        raise GraphError(f"{name}: client {row} has a value that is not finite in a class it owns; expected numbers")
    return kept
