"""Distances between clients, from their signatures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial.distance import cdist

from fedkin.graph._check import Array
from fedkin.graph.same.close import SHARE
from fedkin.graph.same.signature import Signature
from fedkin.graph.same.stack import stacked

__all__ = ["apart", "coordinates"]


def apart(signatures: Sequence[Signature], others: Sequence[Signature] | None = None) -> Array:
    """How far the distributions of every two clients are apart [n, n]; with `others`, of each from each of these.

    The root of the sum, over blocks, of |m_i - m_j|^2 / tr S - 1/n_i - 1/n_j, in units of what pays (`find`, least):
    0 is expected for equal distributions, and what is below 0 is 0. tr S is that of `others`, if there are any.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(80, 6)) + i % 2 for i in range(4)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> apart([sign(plan, x) for x in data])[0] > 0.5
    array([False,  True, False,  True])
    """
    known = list(signatures if others is None else others)
    total = np.zeros((len(signatures), len(known)))
    for name in known[0].blocks:
        there = stacked([one.blocks[name] for one in known])
        here = there if others is None else stacked([one.blocks[name] for one in signatures])
        t1 = max(float(there.pooled()[0][0]), 1e-9)
        squares = cdist(here.means, there.means, "sqeuclidean") / t1
        noise = [1 / np.maximum(one.n, 1e-9) for one in (here, there)]
        total += (squares - noise[0][:, None] - noise[1]) / SHARE[name]
    found = np.sqrt(np.maximum(total, 0.0))
    if others is None:
        np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def coordinates(signatures: Sequence[Signature]) -> tuple[Array, Array]:
    """(points [n, d], noise [n]) by which neighbours are found: `apart` squared is |p_i - p_j|^2 - noise_i - noise_j.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> data = [np.random.default_rng(seed).normal(size=(80, 6)) + 2 * seed for seed in range(2)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> signed = [sign(plan, x) for x in data]
    >>> points, noise = coordinates(signed)
    >>> bool(np.isclose(((points[0] - points[1]) ** 2).sum() - noise.sum(), apart(signed)[0, 1] ** 2))
    True
    """
    points: list[Array] = []
    noise = np.zeros(len(signatures))
    for name in signatures[0].blocks:
        here = stacked([one.blocks[name] for one in signatures])
        t1 = max(float(here.pooled()[0][0]), 1e-9)
        points.append(here.means / np.sqrt(t1 * SHARE[name]))
        noise += 1 / np.maximum(here.n, 1e-9) / SHARE[name]
    return np.concatenate(points, axis=1), noise
