"""FLT with more clients than all distances between them fit into memory, on few clients with a low limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin import codec
from fedkin import graph as g
from fedkin.flow import Message
from fedkin.graph import Plan, Spread, sign
from fedkin.methods.flt import crowd, relatedness
from fedkin.methods.flt.averaging import along_edges
from fedkin.methods.flt.method import Flt, relate
from fedkin.methods.flt.newcomers import near_in_a_crowd, nearest
from fedkin.methods.flt.relatedness import RelatednessSettings
from fedkin.methods.flt.state import matrix_of, stored
from methods.flt_world import assert_equal_models, engine_after, grouped, member, models


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.flt.crowd.LARGEST", 60)


def planted(n: int, k: int, uneven: bool = False, seed: int = 0) -> tuple[list[Any], Any]:
    """Sets of k centres (or fewer) of n clients in four groups, and these groups."""
    rng = np.random.default_rng(seed)
    places, labels = rng.normal(size=(4, k, 6)) * 3, rng.integers(4, size=n)
    sets = [places[one] + 0.3 * rng.normal(size=(k, 6)) for one in labels]
    sets = [one[rng.permutation(k)] for one in sets]
    return [one[: 1 + row % k] if uneven and row % 5 == 0 else one for row, one in enumerate(sets)], labels


@pytest.mark.parametrize("distance", ["matching", "min"])
@pytest.mark.parametrize("k", [1, 3])
def test_groups_are_those_of_all_distances_and_edges_are_the_nearest_of_theirs(
    low: None, distance: Any, k: int
) -> None:
    sets, labels = planted(240, k)
    how = RelatednessSettings(groups=4, distance=distance, gamma=1.0)
    found = relate(sets, how, 7)
    assert g.ari(labels, found.groups) == 1
    assert isinstance(found.adjacency, sp.csr_array)
    assert found.adjacency.nnz < 240 * 2 * crowd.NEAR
    np.testing.assert_array_equal(found.adjacency.toarray(), found.adjacency.toarray().T)
    between = relatedness.distances(sets, how)
    np.fill_diagonal(between, np.inf)
    weights = found.adjacency.toarray()
    assert (between[weights > 0] < 1.0).all()
    # Nearly every client among the nearest that is near enough is a neighbour.
    near = np.sort(between, axis=1)[:, crowd.NEAR - 1 : crowd.NEAR]
    wanted = (between <= near) & (between < 1.0)
    assert (weights > 0)[wanted].mean() > 0.95
    assert found.recall is not None
    assert found.recall > 0.95
    again = relate(sets, how, 7)
    np.testing.assert_array_equal(again.adjacency.toarray(), found.adjacency.toarray())
    np.testing.assert_array_equal(again.groups, found.groups)


def test_up_to_the_limit_all_distances_are_used_and_nothing_is_sparse() -> None:
    sets, _ = planted(61, 2)
    found = relate(sets, RelatednessSettings(groups=4), 7)
    assert isinstance(found.adjacency, np.ndarray)
    assert found.recall is None
    np.testing.assert_array_equal(found.drawn, np.arange(61))


def test_sets_of_unlike_sizes_have_neighbours_too(low: None) -> None:
    sets, labels = planted(200, 4, uneven=True)
    found = relate(sets, RelatednessSettings(groups=4, adjacency="soft"), 0)
    assert g.ari(labels, found.groups) > 0.8
    assert isinstance(found.adjacency, sp.csr_array)
    assert found.adjacency.nnz > 0


def test_the_distance_of_pairs_is_that_of_the_matrix() -> None:
    sets, _ = planted(40, 4, uneven=True)
    rows, columns = np.divmod(np.random.default_rng(0).permutation(1600)[:300], 40)
    whole = g.matching(sets)
    found = g.matching_of(sets, rows, columns)
    np.testing.assert_allclose(found, whole[rows, columns], rtol=1e-12, atol=1e-12)


def signed(n: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=n)
    data = [rng.normal(size=(40 + row % 7, 6)) + 2 * labels[row] for row in range(n)]
    plan = Plan.of(Spread.of(x) for x in data)
    return [sign(plan, x) for x in data], labels


def test_coordinates_have_the_distances_of_signatures() -> None:
    signatures, _ = signed(20)
    points, noise = g.coordinates(signatures)
    squares = np.square(points[:, None] - points).sum(-1) - noise - noise[:, None]
    np.fill_diagonal(squares, 0.0)
    np.testing.assert_allclose(np.sqrt(np.maximum(squares, 0)), g.apart(signatures), atol=1e-6)


def test_groups_from_tests_of_some_clients_take_in_the_others_with_evidence_for_those_tested(low: None) -> None:
    signatures, labels = signed(150)
    found = relate(signatures, RelatednessSettings(), 3)
    assert found.verdicts is not None
    assert len(found.verdicts.ids) == len(found.drawn) == 60
    assert g.ari(labels, found.groups) == 1
    np.testing.assert_array_equal(found.groups[found.drawn], found.verdicts.labels)


def test_newcomers_join_the_group_and_the_neighbours_that_all_distances_say(low: None) -> None:
    sets, labels = planted(200, 3)
    made, late, new = sets[:150], sets[150:160], sets[160:]
    how = RelatednessSettings(groups=4, gamma=1.0)
    rows, joins, closest = near_in_a_crowd(new, made, late, labels[:150], 1.0, how, 0)
    dense, wanted, _ = nearest(new, made, late, labels[:150], 1.0, how, 0)
    np.testing.assert_array_equal(joins, wanted)
    assert rows.shape == dense.shape
    assert (dense[rows.toarray() > 0] > 0).all()
    np.testing.assert_array_equal(labels[:150][closest], labels[160:])


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_whole_run_with_newcomers_goes_along_neighbours_and_resumes(monkeypatch: Any, average: Any) -> None:
    monkeypatch.setattr("fedkin.methods.flt.crowd.LARGEST", 9)
    monkeypatch.setattr("fedkin.methods.flt.crowd.NEAR", 3)
    more = {"extra": [member(20, "a", joins=2), member(21, "b", seen=False)]}
    method = Flt(k=2, average=average, encoder={"kind": "none"}, graph={"groups": 3})
    engine = engine_after(method, grouped(15, **more), 1)
    graph = engine.server.graph
    assert sp.issparse(graph.weights) or len(graph.ids) <= 1000
    assert set(engine.server.state["adjacency"]) == {"starts", "columns", "weights"}
    assert 0 < engine.server.info["neighbour_recall"] <= 1
    truth = [engine.setup.federation[id].group for id in graph.ids]
    assert g.ari(truth, graph.labels) == 1
    engine.round(2)
    assert len(engine.server.state["row"]) == 16
    assert engine.evaluate().keys() == set(engine.setup.federation)
    kept = codec.decode(codec.encode(engine.state()))
    other = engine_after(method, grouped(15, **more), 0)
    other.restore(kept)
    engine.round(3)
    other.round(3)
    assert_equal_models(models(engine), models(other))


def test_averages_along_a_sparse_graph_are_those_along_the_same_dense_one() -> None:
    rng = np.random.default_rng(0)
    a = np.triu((rng.random((8, 8)) < 0.4) * rng.random((8, 8)), 1).astype(np.float32).astype(float)
    a += a.T
    ids = [f"c{row}" for row in range(8)]
    replies = {id: Message(params={"w": torch.randn(3)}, n=row + 1) for row, id in enumerate(ids) if row % 3}
    held: list[Any] = []
    for adjacency in (stored(a), stored(sp.csr_array(a))):
        np.testing.assert_array_equal(matrix_of(adjacency) - a, 0 * a)
        state: Any = {
            "row": {id: row for row, id in enumerate(ids)}, "adjacency": adjacency, "sizes": {},
            "models": {"0": {"w": torch.zeros(3)}}, "model": dict.fromkeys(ids, "0"),
        }  # fmt: skip
        held.append(along_edges(state, replies, stale=False))
    assert held[0][1] == held[1][1]
    for number in held[0][0]:
        assert torch.equal(held[0][0][number]["w"], held[1][0][number]["w"])
