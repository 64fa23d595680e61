from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist, directed_hausdorff

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import reals

NAMES = ["matching", "minimum", "hausdorff"]


def _sets(*, most: int = 4) -> Any:
    """Two to four sets of one to `most` centres, of one width."""
    sizes = st.lists(st.integers(1, most), min_size=2, max_size=4)
    return st.tuples(sizes, st.integers(1, 3)).flatmap(
        lambda s: st.tuples(*[hnp.arrays(np.float64, (k, s[1]), elements=reals) for k in s[0]]).map(list)
    )


def _match(a: Any, b: Any) -> float:
    """The released code's loop over all permutations, the smaller set into the larger."""
    if len(a) > len(b):
        a, b = b, a
    best = min(sum(float(((x - b[s]) ** 2).sum()) for x, s in zip(a, p, strict=True))
               for p in permutations(range(len(b)), len(a)))  # fmt: skip
    return float(best**0.5) / len(a)


@given(_sets())
def test_matching_is_the_best_permutation(sets: Any) -> None:
    d = g.matching(sets)
    for i, a in enumerate(sets):
        for j, b in enumerate(sets):
            assert d[i, j] == pytest.approx(_match(a, b) if i != j else 0.0, rel=1e-9, abs=1e-9)


@given(_sets(most=6), st.data())
def test_no_permutation_is_better(sets: Any, data: Any) -> None:
    a, b = sorted(sets[:2], key=len)
    p = data.draw(st.permutations(range(len(b))))[: len(a)]
    cost = float(((a - b[p]) ** 2).sum()) ** 0.5 / len(a)
    assert g.matching([a, b])[0, 1] <= cost * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("k", [1, 2, 5, 8, 10, 12])
def test_matching_is_scipys_assignment(k: int) -> None:
    u = np.random.default_rng(k).normal(size=(6, k, 3))
    d = g.matching(u)
    for i in range(6):
        for j in range(i):
            cost = cdist(u[i], u[j], "sqeuclidean")
            row, column = linear_sum_assignment(cost)
            assert d[i, j] == pytest.approx(cost[row, column].sum() ** 0.5 / k, rel=1e-12)


@pytest.mark.parametrize(("k", "m"), [(2, 5), (3, 12), (11, 12)])
def test_matching_of_unequal_sizes_is_scipys_assignment(k: int, m: int) -> None:
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(3, k, 2)), rng.normal(size=(4, m, 2))
    d = g.matching(u, v)
    for i in range(3):
        for j in range(4):
            cost = cdist(u[i], v[j], "sqeuclidean")
            row, column = linear_sum_assignment(cost)
            assert d[i, j] == pytest.approx(cost[row, column].sum() ** 0.5 / k, rel=1e-12)
    np.testing.assert_allclose(g.matching(v, u), d.T, rtol=1e-12)


@given(_sets())
def test_minimum_and_hausdorff_are_scipys(sets: Any) -> None:
    near, far = g.minimum(sets), g.hausdorff(sets)
    for i, a in enumerate(sets):
        for j, b in enumerate(sets):
            if i == j:
                continue
            assert near[i, j] == pytest.approx(cdist(a, b).min())
            both = max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0])
            assert far[i, j] == pytest.approx(both)


@pytest.mark.parametrize("name", NAMES)
@given(sets=_sets(), data=st.data())
def test_symmetric_zero_diagonal_and_equivariant(name: str, sets: Any, data: Any) -> None:
    measure = getattr(g, name)
    d = measure(sets)
    assert (d == d.T).all()
    assert (d >= 0).all()
    assert not np.diag(d).any()
    order = data.draw(st.permutations(range(len(sets))))
    np.testing.assert_allclose(measure([sets[i] for i in order]), d[np.ix_(order, order)], rtol=1e-12)
    inside = [one[data.draw(st.permutations(range(len(one))))] for one in sets]
    np.testing.assert_allclose(measure(inside), d, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_newcomers_see_what_members_see(name: str) -> None:
    measure = getattr(g, name)
    u = np.random.default_rng(1).normal(size=(9, 3, 2))
    np.testing.assert_array_equal(measure(u[:2], u[2:]), measure(u)[:2, 2:])


@pytest.mark.parametrize("name", NAMES)
def test_blocks_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = getattr(g, name)
    u = np.random.default_rng(1).normal(size=(23, 3, 2))
    sets = [one[: 1 + row % 3] for row, one in enumerate(u)]
    whole = measure(u), measure(sets)
    monkeypatch.setattr("fedkin.graph.similarity._BLOCK", 200)
    np.testing.assert_allclose(measure(u), whole[0], rtol=1e-14)
    np.testing.assert_allclose(measure(sets), whole[1], rtol=1e-14)


def test_equal_sets_in_another_order_are_at_exactly_zero() -> None:
    u = np.random.default_rng(1).normal(size=(5, 4)) * 1e6
    assert g.matching([u, u[::-1]])[0, 1] == 0


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ([np.ones((2, 3)), np.ones((2, 4))], "client 1 has centres of width 4; expected 3"),
        ([np.ones((2, 3)), [[1.0, np.nan, 0.0]]], "client 1: row 0 is not all finite"),
        ([np.ones((2, 3)), np.ones((0, 3))], "client 1: expected at least one"),
        ([], "one per client"),
        (np.ones((2, 3)), "expected 3 axes"),
        (7, "one per client"),
    ],
)
def test_errors_name_the_client(sets: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        g.matching(sets)


def test_two_collections_of_different_width() -> None:
    with pytest.raises(GraphError, match="V: expected centres of width 3 as in U, got 2"):
        g.matching(np.ones((1, 2, 3)), np.ones((1, 2, 2)))
