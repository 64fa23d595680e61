"""Federations for same_levels.py and same_power.py: {client: (x, y)}, made from a seed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engines.epsilon import noise_for
from fedkin.graph import Plan, Signature, Spread, sign
from fedkin.graph.private_signatures import plan_of_votes, signature_of_sums, sums, votes

Federation = list[tuple[Any, Any]]


DELTA = 1e-5


def signed(data: Federation, seed: int, epsilon: float | None = None, per_feature: bool = False) -> list[Signature]:
    """Return all clients' signatures; with epsilon for one sample, those of `privacy.signature_epsilon`."""
    if epsilon is None:
        plan = Plan.of([Spread.of(x, y, per_feature=per_feature) for x, y in data], seed=seed)
        return [sign(plan, x, y) for x, y in data]
    # Different federations of one seed get different noise.
    rng = np.random.default_rng([seed, 98, zlib.crc32(b"".join(np.ascontiguousarray(x).tobytes() for x, _ in data))])
    noise = noise_for(epsilon, DELTA)
    number = data[0][1] is not None and data[0][1].dtype.kind == "f"
    classes = 0 if data[0][1] is None or number else 1 + max(int(y.max()) for _, y in data)

    def noisy(values: Any, share: float) -> Any:
        return values + noise / share**0.5 * rng.standard_normal(len(values))

    plan = plan_of_votes(
        [noisy(votes(x, y if number else None), 0.1) for x, y in data],
        dim=data[0][0][0].size,
        classes=classes,
        seed=seed,
    )
    return [signature_of_sums(plan, len(x), noisy(sums(plan, x, y), 0.9), noise / 0.9**0.5) for x, y in data]


# Every client draws from one distribution -----------------------------------------------------------------------


def plain(rng: Any, clients: int = 10, n: int = 30) -> Federation:
    """Return normal inputs with decaying variances, without targets."""
    return [(rng.normal(size=(n, 8)) / np.arange(1, 9), None) for _ in range(clients)]


def mixture(rng: Any, sizes: Any, classes: int = 10, d: int = 16, shares: Any = None) -> Federation:
    """Return samples of one Gaussian per class, with different variances and unequal class shares."""
    centres, spread = rng.normal(size=(classes, d)), rng.uniform(0.5, 2, size=(classes, 1))
    shares = rng.dirichlet(np.full(classes, 3.0)) if shares is None else shares
    found = []
    for n in sizes:
        y = rng.choice(classes, size=n, p=shares)
        found.append((centres[y] + spread[y] * rng.normal(size=(n, d)), y))
    return found


def table(rng: Any, clients: int = 20, n: int = 60) -> Federation:
    """Return tables with four one-hot categories, three log-normal columns in different units, and three classes."""
    p, weights = rng.dirichlet(np.ones(4)), rng.normal(size=7)
    found = []
    for _ in range(clients):
        one_hot = np.eye(4)[rng.choice(4, size=n, p=p)]
        heavy = np.exp(rng.normal(size=(n, 3))) * [1, 100, 1e4]
        score = one_hot @ weights[:4] + np.log(heavy / [1, 100, 1e4]) @ weights[4:] + rng.normal(size=n)
        found.append((np.hstack([one_hot, heavy]), np.digitize(score, [-1, 1])))
    return found


def tokens(rng: Any, clients: int = 30, n: int = 50) -> Federation:
    """Return counts of 200 words in texts of 40 words, on four topics with Zipf's law."""
    topics = np.stack([rng.permutation(1 / np.arange(1, 201)) for _ in range(4)])
    topics /= topics.sum(axis=1, keepdims=True)
    found = []
    for _ in range(clients):
        y = rng.integers(4, size=n)
        found.append((np.sqrt(np.stack([rng.multinomial(40, topics[c]) for c in y])), y))
    return found


def regression(rng: Any, clients: int = 20, n: int = 40) -> Federation:
    """Return samples with a number as target, and heavy-tailed noise that grows with it."""
    weights = rng.normal(size=6)
    found = []
    for _ in range(clients):
        x = rng.standard_t(5, size=(n, 6))
        found.append((x, x @ weights + rng.standard_t(4, size=n) * (1 + np.abs(x[:, 0]))))
    return found


def series(rng: Any, clients: int = 15, n: int = 200, rho: float = 0.8) -> Federation:
    """Return stationary time series, in which each sample depends on the one before."""
    found = []
    for _ in range(clients):
        x = np.empty((n, 6))
        x[0] = rng.normal(size=6)
        for t in range(1, n):
            x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=6)
        found.append((x, None))
    return found


def rare(rng: Any, sizes: Any, share: float) -> Federation:
    """Return inputs, and events that are independent of them and rare."""
    return [(rng.normal(size=(n, 3)), (rng.random(n) < share).astype(np.int64)) for n in sizes]


def doubled(rng: Any, clients: int = 15, n: int = 60) -> Federation:
    """Return samples that all occur twice, in another order."""
    found = []
    for x, y in mixture(rng, [n] * clients):
        order = rng.permutation(np.tile(np.arange(n), 2))
        found.append((x[order], y[order]))
    return found


# Real images, without replacement -------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def images(root: str, name: str = "MNIST") -> tuple[Any, Any]:
    folder = Path(root) / name / "raw"
    pixels = np.frombuffer(gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return pixels.reshape(-1, 28, 28), labels.astype(np.int64)


def deal(rng: Any, root: str, sizes: Any, name: str = "MNIST") -> Federation:
    x, y = images(root, name)
    order, edges = rng.permutation(len(x)), np.cumsum([0, *sizes])
    rows = [order[a:b] for a, b in pairwise(edges)]
    return [(x[r] / np.float32(255), y[r]) for r in rows]


def uneven(rng: Any, clients: int, low: float, high: float) -> Any:
    return np.exp(rng.uniform(np.log(low), np.log(high), clients)).astype(int)


def iid_kinds(root: str | None) -> dict[str, Callable[[Any], Federation]]:
    """Return makers of federations with one distribution, by name; images only if `root` is given."""
    kinds: dict[str, Callable[[Any], Federation]] = {
        "no labels, 10 x 30": plain,
        "no labels, 2 x 30": lambda r: plain(r, 2),
        "mixture, 20 x 50": lambda r: mixture(r, [50] * 20),
        "mixture, 40 x 5": lambda r: mixture(r, [5] * 40, classes=3),
        "mixture, 2 x 200": lambda r: mixture(r, [200] * 2),
        "mixture, 16 x 10..1000": lambda r: mixture(r, uneven(r, 16, 10, 1000)),
        "2 classes, 30 x 40": lambda r: mixture(r, [40] * 30, classes=2),
        "100 classes, 20 x 60": lambda r: mixture(r, [60] * 20, classes=100),
        "table, 20 x 60": table,
        "token counts, 30 x 50": tokens,
        "regression, 20 x 40": regression,
        "mixture with noise, 20 x 50": lambda r: mixture(r, [50] * 20),
        "time series, 15 x 200": series,
        "every sample twice, 15 x 120": doubled,
        "rare events, 20 x 30 of 5 %": lambda r: rare(r, [30] * 20, 0.05),
        "rare events, 20 x 100 of 3 %": lambda r: rare(r, [100] * 20, 0.03),
        "rare events, 10 x 50 and 1 x 2000 of 2 %": lambda r: rare(r, [50] * 10 + [2000], 0.02),
    }
    if root is not None:
        kinds |= {
            "MNIST, 40 x 20": lambda r: deal(r, root, [20] * 40),
            "MNIST, 40 x 100": lambda r: deal(r, root, [100] * 40),
            "FashionMNIST, 30 x 20..500": lambda r: deal(r, root, uneven(r, 30, 20, 500), "FashionMNIST"),
        }
    return kinds


# Planted groups -------------------------------------------------------------------------------------------------


def rotated(rng: Any, root: str, clients: int, n: int, turns: int = 4, mask: float = 0.0) -> tuple[Federation, Any]:
    """Return digits rotated by quarter turns; mask: share of 2 x 2 squares that are white at each client."""
    found, truth = [], np.arange(clients) % turns
    for (x, y), turn in zip(deal(rng, root, [n] * clients), truth, strict=True):
        x = np.rot90(x, turn, axes=(1, 2)).copy()
        if mask:
            x[:, np.kron(rng.random((14, 14)) < mask, np.ones((2, 2), dtype=bool))] = 1
        found.append((x, y))
    return found, truth


def swapped(rng: Any, root: str, clients: int, n: int) -> tuple[Federation, Any]:
    """Return four groups: labels unchanged, 0 and 1 swapped, 2 and 3 swapped, 4 and 5 swapped."""
    truth = np.arange(clients) % 4
    maps = np.tile(np.arange(10), (4, 1))
    for g in (1, 2, 3):
        maps[g, [2 * g - 2, 2 * g - 1]] = 2 * g - 1, 2 * g - 2
    return [(x, maps[g][y]) for (x, y), g in zip(deal(rng, root, [n] * clients), truth, strict=True)], truth


def by_class(rng: Any, root: str, clients: int, n: int, sets: Any, name: str = "MNIST") -> tuple[Federation, Any]:
    """Return clients that have only the classes of their group."""
    x, y = images(root, name)
    pool = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)]
    found, truth = [], np.arange(clients) % len(sets)
    for g in truth:
        counts = np.bincount(np.arange(n) % len(sets[g]), minlength=len(sets[g]))
        rows = rng.permutation([pool[c].pop() for c, m in zip(sets[g], counts, strict=True) for _ in range(m)])
        found.append((x[rows] / np.float32(255), y[rows]))
    return found, truth


def dirichlet(rng: Any, root: str, clients: int, n: int, alpha: float) -> tuple[Federation, Any]:
    """Return clients with different class shares, and otherwise one distribution: they are one group."""
    x, y = images(root)
    pool = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)]
    found = []
    for _ in range(clients):
        counts = rng.multinomial(n, rng.dirichlet([alpha] * 10))
        rows = rng.permutation([pool[c].pop() for c in range(10) for _ in range(counts[c]) if pool[c]])
        found.append((x[rows] / np.float32(255), y[rows]))
    return found, np.zeros(clients, dtype=int)


def shifted(rng: Any, clients: int, n: int, distance: float, groups: int = 2) -> tuple[Federation, Any]:
    """Return mixtures of ten classes, d = 16, whose groups are `distance` standard deviations of a sample apart.

    The distance is over all directions.
    """
    data, truth = mixture(rng, [n] * clients), np.arange(clients) % groups
    total = np.sqrt(np.concatenate([x for x, _ in data]).var(axis=0).sum())
    directions = np.linalg.qr(rng.normal(size=(16, groups)))[0].T * distance * total / np.sqrt(2)
    return [(x + directions[g], y) for (x, y), g in zip(data, truth, strict=True)], truth
