"""Centrality of clients in a symmetric affinity [n, n]: one value per client [n], high = central.

Edges are the positive off-diagonal entries. A similarity is never a path length: the length of a path is its number
of edges, or with `weighted` the sum of 1 / a_ij, so that similar clients are near. All functions work on disconnected
graphs. A client without edges has centrality 0, except in PageRank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_sparse

# Number of sources handled together: a few matrices [n, 64] instead of [n, n].
_BATCH = 64


def degree(a: Any, *, weighted: bool = False) -> Array:
    """Return the number of neighbours, or with `weighted` the sum of edge weights, divided by n - 1.

    >>> degree(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]))
    array([1. , 0.5, 0.5])
    """
    edges = _edges(a)
    total = edges.sum(axis=1) if weighted else np.diff(edges.indptr)
    return np.asarray(total, dtype=np.float64).ravel() / max(edges.shape[0] - 1, 1)


def closeness(a: Any, *, weighted: bool = False) -> Array:
    """Return ((r - 1) / (n - 1)) * (r - 1) / sum of distances to the r - 1 clients that can be reached.

    The equation is that of Wasserman and Faust (1994).

    >>> closeness(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])).round(3)
    array([1.   , 0.667, 0.667])
    """
    edges = _edges(a)
    n = edges.shape[0]
    out = np.zeros(n)
    lengths = _lengths(edges) if weighted else edges
    for rows in np.array_split(np.arange(n), max(1, n // 512)):
        d = csgraph.dijkstra(lengths, directed=False, indices=rows, unweighted=not weighted)
        reached = np.isfinite(d).sum(axis=1) - 1
        total = np.where(np.isfinite(d), d, 0.0).sum(axis=1)
        out[rows] = np.where(total > 0, reached**2 / np.where(total > 0, total, 1) / max(n - 1, 1), 0.0)
    return out


def betweenness(a: Any, *, weighted: bool = False, normalised: bool = False) -> Array:
    """Return the sum over pairs {s, t} of the share of their shortest paths through k: sigma_st(k) / sigma_st (TFL).

    Pairs are unordered, as in networkx. normalised: values are divided by (n - 1)(n - 2) / 2, so they are in [0, 1].
    `weighted` takes time of order n^3 (seconds at 500 clients).

    >>> betweenness(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    array([0., 1., 0.])
    """
    edges = _edges(a)
    n = edges.shape[0]
    total = _weighted_dependencies(edges) if weighted else _dependency_sums(edges, np.arange(n))[0]
    # The sum has each unordered pair twice, once from either end.
    return total / 2 / (_pairs(n) if normalised else 1.0)


def _dependency_sums(edges: sp.csr_array, sources: Labels) -> tuple[Array, Array]:
    """Return the sums over sources of Brandes' dependencies [n] and of their squares."""
    first, second = np.zeros(edges.shape[0]), np.zeros(edges.shape[0])
    for start in range(0, len(sources), _BATCH):
        part = _dependencies(edges, sources[start : start + _BATCH])
        first += part.sum(axis=1)
        second += np.square(part).sum(axis=1)
    return first, second


def sampled_betweenness(a: Any, samples: int, *, seed: int = 0, normalised: bool = False) -> tuple[Array, Array]:
    """Estimate unweighted `betweenness` from some of the n sources; returns (estimate, standard error).

    samples: number of sources, from 2 to n. The estimate is unbiased. Its error falls as sqrt(1 / samples - 1 / n)
    and is exactly 0 at samples = n (Brandes and Pich 2007).

    >>> sampled_betweenness(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), 3)
    (array([0., 1., 0.]), array([0., 0., 0.]))
    """
    edges = _edges(a)
    n = edges.shape[0]
    if not 2 <= samples <= n:
        raise GraphError(f"samples: expected 2 to {n} (the number of clients), got {samples}")
    sources = np.random.default_rng(seed).permutation(n)[:samples]
    first, second = _dependency_sums(edges, sources)
    mean, second = first / 2 / samples, second / 4
    variance = np.maximum(second / samples - np.square(mean), 0.0) * samples / (samples - 1)
    error = n * np.sqrt(variance * (1 / samples - 1 / n))
    scale = _pairs(n) if normalised else 1.0
    return n * mean / scale, error / scale


def _dependencies(edges: sp.csr_array, sources: Labels) -> Array:
    """Return Brandes' dependency of each source on each client [n, sources], by breadth-first search.

    All sources advance together, level by level.
    """
    step = sp.csr_array((np.ones(edges.nnz), edges.indices, edges.indptr), shape=edges.shape)
    paths = np.zeros((edges.shape[0], len(sources)))
    paths[sources, np.arange(len(sources))] = 1.0
    level = np.where(paths > 0, 0, -1)
    front, last = paths.copy(), 0
    while True:
        front = np.where(level < 0, np.asarray(step @ front), 0.0)
        if not front.any():
            break
        last += 1
        paths += front
        level[front > 0] = last
    through = np.zeros_like(paths)
    for at in range(last, 0, -1):
        per_path = np.divide(1.0 + through, paths, out=np.zeros_like(paths), where=level == at)
        through += np.where(level == at - 1, paths * np.asarray(step @ per_path), 0.0)
    through[sources, np.arange(len(sources))] = 0.0
    return through


def _weighted_dependencies(edges: sp.csr_array) -> Array:
    """Return the sum over sources of Brandes' dependencies with lengths 1 / a_ij, [n].

    Let T_uv = 1 where u directly precedes v on a shortest path. With clients in order of distance, T is strictly
    triangular, the path counts are p = (I - T')^-1 e_source, and y = (1 + dependency) / p solves (I - T) y = 1 / p.
    """
    from scipy.linalg import solve_triangular

    lengths = _lengths(edges)
    distance = np.asarray(csgraph.dijkstra(lengths, directed=False))
    length = np.full(edges.shape, np.inf)
    coo = lengths.tocoo()
    length[coo.row, coo.col] = coo.data
    total = np.zeros(edges.shape[0])
    for d in distance:
        order = np.argsort(d, kind="stable")[: int(np.isfinite(d).sum())]
        here = d[order]
        via = here[:, None] + length[np.ix_(order, order)]
        # Two paths of equal length may differ in the last bits.
        tight = np.triu(np.isfinite(via) & (via <= here[None, :] * (1 + 1e-10)), k=1).astype(np.float64)
        system = np.eye(len(order)) - tight
        start = np.zeros(len(order))
        start[0] = 1.0
        paths = solve_triangular(system, start, trans="T", unit_diagonal=True, check_finite=False)
        y = solve_triangular(system, 1.0 / paths, unit_diagonal=True, check_finite=False)
        through = y * paths - 1.0
        through[0] = 0.0
        total[order] += through
    return np.maximum(total, 0.0)


def eigenvector(a: Any) -> Array:
    """Return the leading eigenvector of the weights of each component (Bonacich 1972); values are at least 0.

    On a connected graph the values are networkx's. With several components the vector is not unique. Here each
    component's vector has length sqrt(its clients / n), so that a small group also has a central client.

    >>> eigenvector(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).round(3)
    array([0.5  , 0.707, 0.5  ])
    """
    from scipy.sparse.linalg import eigsh

    edges = _edges(a)
    out = np.zeros(edges.shape[0])
    for rows, part in _components(edges):
        if len(rows) <= 200:
            vector = np.linalg.eigh(part.toarray())[1][:, -1]
        else:
            vector = eigsh(part, k=1, which="LA", v0=np.ones(len(rows)))[1][:, 0]
        vector = np.abs(vector)
        out[rows] = vector / np.linalg.norm(vector) * np.sqrt(len(rows) / edges.shape[0])
    return out


def current_flow_betweenness(a: Any, *, weighted: bool = False, normalised: bool = True) -> Array:
    """Return the current through each client, summed over pairs of others that exchange one unit of current.

    Source: Newman (2005); Brandes and Fleischer (2005).

    Each edge has conductance 1, or a_ij with `weighted`. Each component has the values that networkx gives for that
    component alone: `normalised` divides by (m - 1)(m - 2) / 2 for its m clients. Time: edges * m log m.

    >>> current_flow_betweenness(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    array([0., 1., 0.])
    """
    edges = _edges(a)
    out = np.zeros(edges.shape[0])
    for rows, part in _components(edges):
        m = len(rows)
        if m < 3:
            continue
        inverse = _laplacian_inverse(part, weighted)
        upper = sp.triu(part, k=1).tocoo()
        through = np.zeros(m)
        rank = 2 * np.arange(m) - m + 1
        for i, j, w in zip(upper.row, upper.col, upper.data, strict=True):
            # Entry s of the row r is the current in edge ij when a unit enters at s. With r sorted,
            # sum_{s<t} |r_s - r_t| = rank . r.
            current = (w if weighted else 1.0) * float(rank @ np.sort(inverse[i] - inverse[j]))
            through[i] += current / 2
            through[j] += current / 2
        # The m - 1 pairs that end at the client itself put half a unit through it each.
        raw = np.maximum(through - (m - 1) / 2, 0.0)
        out[rows] = raw / _pairs(m) if normalised else raw
    return out


def _laplacian_inverse(part: sp.csr_array, weighted: bool) -> Array:
    """Return the pseudo-inverse of a connected graph's Laplacian: (L + J/m)^-1 - J/m."""
    a = part.toarray()
    if not weighted:
        a = (a > 0).astype(np.float64)
    share = 1.0 / len(a)
    # Weights are divided by the mean conductance, so that the added J/m is neither lost in rounding nor dominant.
    unit = a.sum() * share
    inverse = np.linalg.inv((np.diag(a.sum(axis=1)) - a) / unit + share) - share
    return np.asarray((inverse + inverse.T) / (2 * unit))


def _edges(a: Any) -> sp.csr_array:
    """Return the positive off-diagonal entries."""
    coo = as_sparse(a, nonnegative=True).tocoo()
    keep = (coo.row != coo.col) & (coo.data > 0)
    return sp.csr_array((coo.data[keep], (coo.row[keep], coo.col[keep])), shape=coo.shape)


def _lengths(edges: sp.csr_array) -> sp.csr_array:
    with np.errstate(over="ignore"):
        data = np.minimum(1.0 / edges.data, 1e300)
    return sp.csr_array((data, edges.indices, edges.indptr), shape=edges.shape)


def _components(edges: sp.csr_array) -> list[tuple[Labels, sp.csr_array]]:
    """Return (rows, edges between them) of every connected component with two clients or more."""
    label = csgraph.connected_components(edges, directed=False)[1]
    order = np.argsort(label, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return [(rows, sp.csr_array(edges[rows][:, rows])) for rows in parts if len(rows) > 1]


def _pairs(n: int) -> float:
    return max((n - 1) * (n - 2) / 2, 1.0)
