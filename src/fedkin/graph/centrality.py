"""Centrality of clients in a symmetric affinity [n, n]: one value per client [n], high = central.

Edges are the positive off-diagonal entries. A similarity is never a path length: the length of a path is its number
of edges. All functions work on disconnected graphs. A client without edges has centrality 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_sparse, only

# Number of sources handled together: a few matrices [n, 64] instead of [n, n].
_BATCH = 64


def degree(a: Any) -> Array:
    """Return each client's number of neighbours, divided by n - 1: [n] in [0, 1].

    >>> degree(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]))
    array([1. , 0.5, 0.5])
    """
    edges = _edges(a)
    return np.diff(edges.indptr).astype(np.float64) / max(edges.shape[0] - 1, 1)


def closeness(a: Any) -> Array:
    """Return ((r - 1) / (n - 1)) * (r - 1) / sum of distances to the r - 1 others that a client reaches: [n] in [0, 1].

    The equation is that of Wasserman and Faust (1994); a distance is a number of edges.

    >>> closeness(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])).round(3)
    array([1.   , 0.667, 0.667])
    """
    edges = _edges(a)
    n = edges.shape[0]
    out = np.zeros(n)
    for rows in np.array_split(np.arange(n), max(1, n // 512)):
        distance = csgraph.dijkstra(edges, directed=False, indices=rows, unweighted=True)
        reached = np.isfinite(distance).sum(axis=1) - 1
        total = np.where(np.isfinite(distance), distance, 0.0).sum(axis=1)
        out[rows] = np.where(total > 0, reached**2 / np.where(total > 0, total, 1) / max(n - 1, 1), 0.0)
    return out


def betweenness(a: Any, *, normalised: bool = False) -> Array:
    """Return the sum over pairs {s, t} of the share of their shortest paths through k: sigma_st(k) / sigma_st (TFL).

    Pairs are unordered, as in networkx. normalised: values are divided by (n - 1)(n - 2) / 2, so they are in [0, 1].

    >>> betweenness(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    array([0., 1., 0.])
    """
    edges = _edges(a)
    n = edges.shape[0]
    # The sum has each unordered pair twice, once from either end.
    return _dependency_sums(edges, np.arange(n))[0] / 2 / (_pairs(n) if normalised else 1.0)


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


def current_flow_betweenness(a: Any, *, normalised: bool = True) -> Array:
    """Return the current through each client, summed over pairs of others that exchange one unit of current.

    Source: Newman (2005); Brandes and Fleischer (2005).

    Each edge has conductance 1. Each component has the values that networkx gives for that component alone:
    `normalised` divides by (m - 1)(m - 2) / 2 for its m clients. Time: edges * m log m.

    >>> current_flow_betweenness(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    array([0., 1., 0.])
    """
    edges = _edges(a)
    out = np.zeros(edges.shape[0])
    for rows, part in _components(edges):
        m = len(rows)
        linked = (part.toarray() > 0).astype(np.float64)
        # The pseudo-inverse of the Laplacian: (L + J/m)^-1 - J/m.
        inverse = np.linalg.inv(np.diag(linked.sum(axis=1)) - linked + 1 / m) - 1 / m
        through = np.zeros(m)
        rank = 2 * np.arange(m) - m + 1
        for i, j in zip(*np.nonzero(np.triu(linked)), strict=True):
            # Entry s of the row r is the current in edge ij when a unit enters at s. With r sorted,
            # sum_{s<t} |r_s - r_t| = rank . r.
            current = float(rank @ np.sort(inverse[i] - inverse[j]))
            through[i] += current / 2
            through[j] += current / 2
        # The m - 1 pairs that end at the client itself put half a unit through it each.
        raw = np.maximum(through - (m - 1) / 2, 0.0)
        out[rows] = raw / _pairs(m) if normalised else raw
    return out


def _edges(a: Any) -> sp.csr_array:
    """Return the positive off-diagonal entries."""
    coo = as_sparse(a, nonnegative=True).tocoo()
    return only(coo, (coo.row != coo.col) & (coo.data > 0))


def _components(edges: sp.csr_array) -> list[tuple[Labels, sp.csr_array]]:
    """Return (rows, edges between them) of every connected component with two clients or more."""
    label = csgraph.connected_components(edges, directed=False)[1]
    order = np.argsort(label, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return [(rows, sp.csr_array(edges[rows][:, rows])) for rows in parts if len(rows) > 1]


def _pairs(n: int) -> float:
    return max((n - 1) * (n - 2) / 2, 1.0)
