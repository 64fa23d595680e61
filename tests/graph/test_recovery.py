from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import affinities_with_labels, both_kinds, labels_for


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(labels_for(n), labels_for(n))))
def test_nmi_is_sklearns(case: Any) -> None:
    assert g.nmi(*case) == pytest.approx(normalized_mutual_info_score(*case), abs=1e-9)


def test_ari_and_nmi_need_no_common_names() -> None:
    truth, labels = ["a", "a", "b", "b", "c"], [7, 7, 7, 1, 1]
    assert g.ari(truth, labels) == pytest.approx(0.0909, abs=1e-4)
    assert 0 < g.nmi(truth, labels) < 1
    assert g.ari(truth, [3, 3, 0, 0, 9]) == g.nmi(truth, [3, 3, 0, 0, 9]) == 1
    assert g.ari(["a", "b"], [0, 1]) == g.nmi(["a"], [0]) == 1


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


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.ari([0, 1], [0]), "found: expected 2 labels"),
        (lambda: g.nmi([], []), "at least one client"),
        (lambda: g.modularity([[0, 1], [0, 0]], [0, 1]), "not symmetric"),
        (lambda: g.modularity(np.eye(2), [0]), "labels: expected 2 labels"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
