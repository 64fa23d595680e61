from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    adjusted_rand_score,
    f1_score,
    normalized_mutual_info_score,
    precision_score,
    recall_score,
)  # fmt: skip

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import affinities_with_labels, both_kinds, labels_for

two_labellings = st.integers(1, 12).flatmap(lambda n: st.tuples(labels_for(n), labels_for(n)))


@given(two_labellings)
def test_ari_and_nmi_are_sklearns(case: Any) -> None:
    truth, found = case
    assert g.ari(truth, found) == pytest.approx(adjusted_rand_score(truth, found), abs=1e-12)
    assert g.nmi(truth, found) == pytest.approx(normalized_mutual_info_score(truth, found), abs=1e-9)
    assert g.ari(truth, truth) == g.nmi(truth, truth) == pytest.approx(1)
    assert g.ari([f"g{label}" for label in truth], found) == g.ari(truth, found)


def test_ari_of_more_pairs_than_64_bits_hold() -> None:
    labels = np.arange(200_000) % 2
    assert g.ari(labels, labels) == 1.0
    assert abs(g.ari(labels, np.arange(200_000) // 2 % 2)) < 1e-4


@given(affinities_with_labels(), st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_modularity_is_networkxs(case: Any, resolution: float, loops: bool) -> None:
    a, labels = case
    a = a + loops * np.eye(len(a))
    if not a.any():
        assert g.modularity(a, labels) == 0
        return
    parts = [set(np.flatnonzero(labels == group).tolist()) for group in np.unique(labels)]
    theirs = nx.community.modularity(nx.from_numpy_array(a), parts, resolution=resolution)
    for kind in both_kinds(a):
        assert g.modularity(kind, labels, resolution=resolution) == pytest.approx(theirs, abs=1e-12)


@given(affinities_with_labels(least=2))
def test_edge_scores_are_sklearns_over_pairs(case: Any) -> None:
    a, labels = case
    upper = np.triu_indices(len(a), 1)
    truth, edge = (labels[:, None] == labels)[upper], a[upper] > 0
    for kind in both_kinds(a):
        scores = g.edge_scores(kind, labels)
        assert scores.precision == pytest.approx(precision_score(truth, edge, zero_division=1))
        assert scores.recall == pytest.approx(recall_score(truth, edge, zero_division=1))
        if truth.any() and edge.any():
            assert scores.f1 == pytest.approx(f1_score(truth, edge, zero_division=1))


@given(affinities_with_labels())
def test_across_share_is_the_weight_outside_blocks(case: Any) -> None:
    a, labels = case
    outside = a[labels[:, None] != labels].sum()
    for kind in both_kinds(a):
        assert g.across_share(kind, labels) == pytest.approx(outside / a.sum() if a.any() else 0.0)
    assert g.across_share(a, np.zeros(len(a), int)) == 0


def _graph(ids: str, edges: str, groups: str | None = None) -> Any:
    a = np.zeros((len(ids), len(ids)))
    for pair in edges.split():
        one, two = map(ids.index, pair)
        a[one, two] = a[two, one] = 1.0
    named = None if groups is None else {id: int(group) for id, group in zip(ids, groups, strict=True)}
    return g.Graph(tuple(ids), a, groups=named)


def test_who_moved_by_id_also_when_rows_are_ordered_otherwise() -> None:
    before = _graph("abcdef", "ab bc de ef", "000111")
    now = _graph("fedcba", "ab de ef dc", "111100")
    change = g.difference(before, now)
    assert change.moved == {"c": (0, 1)}
    assert change.gained == {("c", "d")}
    assert change.lost == {("b", "c")}


def test_a_group_that_splits_moves_its_smaller_part_and_newcomers_are_not_moves() -> None:
    before, now = _graph("abcx", "ab", "0001"), _graph("abcy", "ab ay", "0012")
    change = g.difference(before, now)
    assert change.moved == {"c": (0, 1)}
    assert change.gained == frozenset()
    assert change.arrived == {"y"}
    assert change.left == {"x"}


def test_difference_without_groups_or_common_clients() -> None:
    change = g.difference(_graph("ab", "ab", "00"), _graph("ab", ""))
    assert change.moved == {}
    assert change.lost == {("a", "b")}
    apart = g.difference(_graph("ab", "ab", "00"), _graph("cd", "cd", "00"))
    assert not apart.lost
    assert apart.left == {"a", "b"}


@given(two_labellings)
def test_moves_are_the_fewest(case: Any) -> None:
    """Against every way to identify the groups of one with those of the other."""
    from itertools import permutations

    old, new = case
    ids = tuple(f"c{i}" for i in range(len(old)))
    a = np.zeros((len(old), len(old)))
    one, two = (g.Graph(ids, a, groups=g.by_id(ids, labels)) for labels in case)
    best = max(int((np.array(p)[old] == new).sum()) for p in permutations(range(4)))
    assert len(g.difference(one, two).moved) == len(old) - best


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.ari([0, 1], [0]), "found: expected 2 labels"),
        (lambda: g.nmi([], []), "at least one client"),
        (lambda: g.modularity([[0, 1], [0, 0]], [0, 1]), "not symmetric"),
        (lambda: g.modularity(np.eye(2), [0]), "labels: expected 2 labels"),
        (lambda: g.edge_scores(np.eye(2), [0, 1, 2]), "planted: expected 2 labels"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
