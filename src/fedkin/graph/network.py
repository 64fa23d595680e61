"""Physical networks: which peers can exchange messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.errors import ConfigError, nearest
from fedkin.keys import rng

NETWORKS = ("full", "ring", "regular", "erdos-renyi", "planted", "none")

Links = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


def network(
    spec: str, ids: Sequence[str], seed: int = 0, round: int = 0, planted: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the neighbours of every id in an undirected network without self-loops.

    spec: "full" | "ring" | "regular:K" (each has K neighbours) | "erdos-renyi:P" (each pair with probability P) |
    "planted" (all pairs inside a group of `planted`, none across) | "none". With ", changing" after it, the network
    is drawn again each round. Ids are placed at random, keyed by the seed (and by the round if changing). In an
    Erdos-Renyi network an id may have no neighbour. Raises ConfigError for any other spec, and for "planted" without
    known groups.

    >>> sorted(len(near) for near in network("ring", ["a", "b", "c", "d"]).values())
    [2, 2, 2, 2]
    """
    kind, value, changing = check_network(spec)
    names = sorted(ids)
    n = len(names)
    if kind == "planted":
        return _planted(names, planted)
    if kind == "regular" and (value >= n or (value * n) % 2):
        expected = "K must be below the number of peers, and K times it even"
        raise ConfigError(f"run.network: {spec!r} with {n} peers: {expected}")
    draw = rng(seed, "network", *([round] if changing else []))
    linked = _links(kind, value, n, draw)
    order = draw.permutation(n)
    linked = linked[np.ix_(order, order)]
    return {names[i]: tuple(names[j] for j in np.flatnonzero(linked[i])) for i in range(n)}


def _links(kind: str, value: float, n: int, draw: np.random.Generator) -> Links:
    """Return which of n places are linked, [n, n]."""
    if kind == "full":
        return ~np.eye(n, dtype=bool)
    if kind == "ring":
        return _circulant(n, 2)
    if kind == "regular":
        return _shuffled_regular(_circulant(n, int(value)), draw)
    if kind == "erdos-renyi":
        linked = np.triu(draw.random((n, n)) < value, 1)
        return linked | linked.T
    return np.zeros((n, n), dtype=bool)


def _planted(names: Sequence[str], planted: Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    if planted is None:
        raise ConfigError("run.network: 'planted' needs planted groups, and those of this federation are not known")
    return {id: tuple(other for other in names if other != id and planted[other] == planted[id]) for id in names}


def check_network(spec: str) -> tuple[str, float, bool]:
    """Return (kind, its value or 0, whether the network changes each round); raises ConfigError.

    >>> check_network("regular:4, changing")
    ('regular', 4.0, True)
    """
    head, comma, tail = spec.partition(",")
    if comma and tail.strip() != "changing":
        raise ConfigError(f"run.network: {spec!r}: after the comma expected 'changing', got {tail.strip()!r}")
    kind, colon, text = head.strip().partition(":")
    if kind not in NETWORKS:
        raise ConfigError(f"run.network: no network {kind!r}; {nearest(kind, NETWORKS)}")
    if (kind in ("regular", "erdos-renyi")) != bool(colon):
        raise ConfigError(f"run.network: {spec!r}: expected regular:K, erdos-renyi:P, full, ring, planted or none")
    return kind, _value_of(spec, kind, text) if colon else 0.0, bool(comma)


def _value_of(spec: str, kind: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"run.network: {spec!r}: {text!r} is not a number") from None
    if kind == "regular" and (value < 1 or value % 1):
        raise ConfigError(f"run.network: {spec!r}: K must be a whole number, at least 1")
    if kind == "erdos-renyi" and not 0 <= value <= 1:
        raise ConfigError(f"run.network: {spec!r}: P must be from 0 to 1")
    return value


def _circulant(n: int, degree: int) -> Links:
    """Link each place on a circle to the degree / 2 next on either side, and for an odd degree to the opposite one."""
    step = np.subtract.outer(np.arange(n), np.arange(n)) % n
    away = np.minimum(step, n - step)
    linked = (away > 0) & (away <= degree // 2)
    return np.asarray(linked | (away * 2 == n) if degree % 2 else linked)


def _shuffled_regular(linked: Links, draw: np.random.Generator) -> Links:
    """Return a random graph with the same degrees: pairs of edges swap an end if that makes no double edge."""
    edges = np.argwhere(np.triu(linked))
    for _ in range(10 * len(edges)):
        first, second = draw.integers(len(edges), size=2)
        (a, b), (c, d) = edges[first], edges[second] if draw.random() < 0.5 else edges[second][::-1]
        if len({a, b, c, d}) < 4 or linked[a, d] or linked[c, b]:
            continue
        for i, j, on in ((a, b, False), (c, d, False), (a, d, True), (c, b, True)):
            linked[i, j] = linked[j, i] = on
        edges[first], edges[second] = (a, d), (c, b)
    return linked
