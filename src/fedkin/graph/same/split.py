"""Two groups that are found on one half of the samples and tested on the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.graph._check import as_vectors
from fedkin.graph.same.cluster import two_means
from fedkin.graph.same.null import null_p

__all__ = ["split_p"]


def split_p(means: Any, halves: Any, n: Any, traces: Any, residual: float = np.inf) -> float:
    """p-value of "no two groups of clients differ": cut on one half of all samples, tested on the other, and reversed.

    means, halves [k, D]: as in Moments, so that means + halves and means - halves are of independent samples, each with
    covariance 2 S / n. n [k]: weights. traces: of S. Twice the smaller of the two p-values. Against two groups
    that differ by little: all their samples together count. 1 for fewer than four clients that have halves.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> m, h = draw.normal(size=(2, 40, 50)) / 10
    >>> split_p(m, h, np.full(40, 100), [50, 50, 50]) > 0.01
    True
    >>> m[:20, :10] += 0.15
    >>> split_p(m, h, np.full(40, 100), [50, 50, 50]) < 1e-4
    True
    """
    means, halves, n = as_vectors(means, "means"), as_vectors(halves, "halves"), as_vectors(n, "n", ndim=1)
    have = (n > 0) & (np.square(halves).sum(axis=1) > 0)
    means, halves, n = means[have], halves[have], n[have]
    if len(n) < 4:
        return 1.0
    found = [1.0]
    for cut, other in ((means + halves, means - halves), (means - halves, means + halves)):
        labels = two_means(cut, n)
        one, two = (float(n[labels == group].sum()) for group in (0, 1))
        if one and two:
            away = (n * (labels == 0)) @ other / one - (n * (labels == 1)) @ other / two
            found.append(float(null_p(one * two / (one + two) * np.square(away).sum() / 2, 1, traces, residual)))
    return min(1.0, 2 * min(found))
