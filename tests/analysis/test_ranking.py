"""Ranks of methods against scipy and published critical differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedkin.analysis.ranking import critical_difference, diagram, friedman, groups_within, wilcoxon_holm
from support import present


# Demsar (2006), table 5(a): q at 0.05 for 2 to 10 methods.
@pytest.mark.parametrize(
    ("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (8, 3.031), (10, 3.164)]
)
def test_critical_differences_are_demsars(methods: int, q: float) -> None:
    assert critical_difference(methods, 12) == pytest.approx(q * np.sqrt(methods * (methods + 1) / 72), abs=2e-3)


def test_groups_are_the_longest_runs_that_are_not_told_apart() -> None:
    apart = np.zeros((4, 4), dtype=bool)
    apart[0, 3] = apart[3, 0] = True
    assert groups_within([1.0, 2.0, 3.0, 4.0], apart) == [(0, 1, 2), (1, 2, 3)]
    assert groups_within([1.0, 2.0, 3.0, 4.0], ~np.eye(4, dtype=bool)) == []
    assert groups_within([2.0, 1.0], np.zeros((2, 2))) == [(1, 0)]


def test_a_diagram_tells_clear_differences_and_no_others() -> None:
    rng = np.random.default_rng(2)
    values = {"kin": rng.normal(0.9, 0.01, 10), "flt": rng.normal(0.9, 0.01, 10), "local": rng.normal(0.6, 0.01, 10)}
    found = diagram(values)
    assert found.methods[-1] == "local"
    assert found.groups == (found.methods[:2],)
    assert present(found.friedman) < 0.05
    turned = diagram({name: -row for name, row in values.items()}, higher=False)
    assert (turned.methods, turned.groups) == (found.methods, found.groups)


def test_two_methods_are_compared_by_wilcoxon() -> None:
    rng = np.random.default_rng(4)
    base = rng.random(8)
    found = diagram({"local": base, "kin": base + 0.1 + 0.01 * rng.random(8)})
    assert (found.methods, found.groups, found.friedman, found.difference) == (("kin", "local"), (), None, None)
    assert found.p[0, 1] == pytest.approx(2 / 2**8)


def test_a_difference_of_rounding_is_a_tie() -> None:
    """One of six differences is 6e-17: five others of one sign are not significant."""
    one, other = [0.91, 0.92, 0.93, 0.94, 0.95, 0.1 + 0.2], [0.90, 0.90, 0.90, 0.90, 0.90, 0.3]
    found = diagram({"kin": one, "local": other})
    assert found.p[0, 1] == pytest.approx(2 / 2**5)
    assert found.ranks == pytest.approx((6.5 / 6, 11.5 / 6))


def test_wilcoxon_with_holm_is_scikit_posthocs() -> None:
    # posthoc_wilcoxon(..., p_adjust="holm") of scikit-posthocs 0.17.1 on this table.
    table = np.random.default_rng(5).normal([0, 0.3, 0.8, 1.2], 1, (10, 4))
    known = [0.773438, 0.654297, 0.222656, 1.0, 1.0, 1.0]
    found = wilcoxon_holm(table)
    assert [found[a, b] for a, b in itertools.combinations(range(4), 2)] == pytest.approx(known, abs=2e-6)
    assert (np.diag(found) == 1).all()
    # Methods that are always equal.
    assert wilcoxon_holm([[1.0, 1.0], [2.0, 2.0]]).tolist() == [[1, 1], [1, 1]]
    assert friedman(np.ones((4, 3))) == 1.0
