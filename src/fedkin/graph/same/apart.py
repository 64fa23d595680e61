"""Distances between clients, from their signatures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial.distance import cdist

from fedkin.graph._check import Array
from fedkin.graph.same.close import SHARE
from fedkin.graph.same.signature import Signature
from fedkin.graph.same.stack import stacked

__all__ = ["apart"]


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
