"""What the graph tests draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

# Multiples of 1/8: sums and products are exact, so that ties are real ties.
eighths = st.integers(-16, 16).map(lambda i: i / 8)
reals = st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-6 else x)


def vectors(*, least: int = 1, most: int = 8, width: int = 4, elements: Any = reals) -> Any:
    """[n, d] with n from least to most."""
    shape = st.tuples(st.integers(least, most), st.integers(1, width))
    return shape.flatmap(lambda s: hnp.arrays(np.float64, s, elements=elements))


def symmetric(*, least: int = 1, most: int = 8, elements: Any = eighths) -> Any:
    """Symmetric [n, n], any diagonal."""
    square = st.integers(least, most).flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=elements))
    return square.map(lambda a: np.triu(a) + np.triu(a, 1).T)


def affinities(*, least: int = 1, most: int = 9) -> Any:
    """Symmetric, non-negative, zero diagonal; a third of the pairs or more without an edge."""
    weight = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0])
    return symmetric(least=least, most=most, elements=weight).map(_no_loops)


def distances(*, least: int = 1, most: int = 8) -> Any:
    weight = st.sampled_from([i / 4 for i in range(40)])
    return symmetric(least=least, most=most, elements=weight).map(_no_loops)


def labels_for(n: int) -> Any:
    return hnp.arrays(np.int64, n, elements=st.integers(0, 3))


def affinities_with_labels(**limits: int) -> Any:
    return affinities(**limits).flatmap(lambda a: st.tuples(st.just(a), labels_for(len(a))))


def _no_loops(a: Any) -> Any:
    np.fill_diagonal(a, 0.0)
    return a


def both_kinds(a: Any) -> list[Any]:
    """The same matrix dense and sparse."""
    return [a, sp.csr_array(a)]


def dense(a: Any) -> Any:
    return a.toarray() if isinstance(a, sp.csr_array) else a


def kept_dense(a: Any) -> np.ndarray[Any, Any]:
    """The same matrix, which must be dense already."""
    assert isinstance(a, np.ndarray)
    return a


def planted(groups: int, size: int, *, inside: float, across: float, seed: int = 0) -> tuple[Any, Any]:
    """A random graph with edges of weight 1 at the two rates, and its labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(groups), size)
    rate = np.where(labels[:, None] == labels, inside, across)
    upper = np.triu(rng.random(rate.shape) < rate, 1).astype(float)
    return upper + upper.T, labels


def reordered(a: Any, order: Any) -> Any:
    return a[np.ix_(order, order)]


def same_partition(one: Any, two: Any) -> bool:
    return bool(((one[:, None] == one) == (two[:, None] == two)).all())


def assert_affinity(a: Any) -> None:
    """Symmetric, non-negative, with a zero diagonal."""
    assert (a == a.T).all()
    assert (a >= 0).all()
    assert not np.diag(a).any()
