"""FLT with more clients than all distances between them fit into memory, on few clients with a low limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin import codec
from fedkin import graph as g
from fedkin.federation import Federation, Task
from fedkin.flow import Message
from fedkin.graph import Plan, Spread, sign
from fedkin.methods.flt import relatedness
from fedkin.methods.flt.method import Flt, along_edges, matrix_of, stored
from fedkin.methods.flt.relatedness import RelatednessSettings, newcomers_of_many, newcomers_relatedness, relate
from methods.flt_world import assert_equal_models, engine_after, grouped, member, models


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.flt.relatedness.LARGEST", 60)


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
    assert found.adjacency.nnz < 240 * 2 * relatedness.NEAR
    np.testing.assert_array_equal(found.adjacency.toarray(), found.adjacency.toarray().T)
    between = relatedness.distances(sets, how)
    np.fill_diagonal(between, np.inf)
    weights = found.adjacency.toarray()
    assert (between[weights > 0] < 1.0).all()
    # Nearly every client among the nearest that is near enough is a neighbour.
    near = np.sort(between, axis=1)[:, relatedness.NEAR - 1 : relatedness.NEAR]
    wanted = (between <= near) & (between < 1.0)
    assert (weights > 0)[wanted].mean() > 0.95
    again = relate(sets, how, 7)
    np.testing.assert_array_equal(again.adjacency.toarray(), found.adjacency.toarray())
    np.testing.assert_array_equal(again.groups, found.groups)


def test_up_to_the_limit_all_distances_are_used_and_nothing_is_sparse() -> None:
    sets, _ = planted(61, 2)
    found = relate(sets, RelatednessSettings(groups=4), 7)
    assert isinstance(found.adjacency, np.ndarray)
    np.testing.assert_array_equal(found.drawn, np.arange(61))


def signed(n: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=n)
    data = [rng.normal(size=(40 + row % 7, 6)) + 2 * labels[row] for row in range(n)]
    plan = Plan.of(Spread.of(x) for x in data)
    return [sign(plan, x) for x in data], labels


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
    rows, joins, closest = newcomers_of_many(new, made, late, labels[:150], 1.0, how, 0)
    dense, wanted, _ = newcomers_relatedness(new, made, late, labels[:150], 1.0, how, 0)
    np.testing.assert_array_equal(joins, wanted)
    assert rows.shape == dense.shape
    assert (dense[rows.toarray() > 0] > 0).all()
    np.testing.assert_array_equal(labels[:150][closest], labels[160:])


@pytest.fixture
def lowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.flt.relatedness.LARGEST", 9)
    monkeypatch.setattr("fedkin.methods.flt.relatedness.NEAR", 3)


def given(average: Any, **how: Any) -> Flt:
    return Flt(k=2, average=average, encoder={"kind": "none"}, graph={"groups": 3, **how})


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_whole_run_with_newcomers_goes_along_neighbours(lowest: None, average: Any) -> None:
    more = {"extra": [member(20, "a", joins=2), member(21, "b", seen=False)]}
    engine = engine_after(given(average), grouped(15, **more), 1)
    graph = engine.server.graph
    assert set(engine.server.state["adjacency"]) == {"starts", "columns", "weights"}
    truth = [engine.setup.federation[id].group for id in graph.ids]
    assert g.ari(truth, graph.labels) == 1
    engine.round(2)
    assert len(engine.server.state["row"]) == 16
    assert engine.evaluate().keys() == set(engine.setup.federation)


@pytest.mark.parametrize("average", ["groups", "neighbours"])
@pytest.mark.parametrize("how", [{}, {"embedding": "pca"}])
def test_a_run_resumed_before_most_clients_joined_ends_as_the_one_that_went_through(
    lowest: None, average: Any, how: Any
) -> None:
    late = [member(20, "a", joins=3), member(24, "c", joins=4), member(21, "b", seen=False)]
    more = {"extra": [*late, *(member(30 + number, "abc"[number % 3], joins=5) for number in range(20))]}
    method = given(average, **how)
    whole, half, other = (engine_after(method, grouped(15, **more), rounds) for rounds in (6, 2, 0))
    assert whole.server.state["founders"] == 37  # groups were made anew: newcomers outnumbered those of the first
    other.restore(codec.decode(codec.encode(half.state())))
    for number in range(3, 7):
        other.round(number)
    assert_equal_models(models(whole), models(other))
    assert codec.encode(whole.state()) == codec.encode(other.state())


@pytest.mark.parametrize("average", ["groups", "neighbours"])
@pytest.mark.parametrize("control", ["none", "self", "shuffled", "random", "oracle", "uniform"])
def test_clients_that_never_took_part_get_the_model_of_a_group_that_there_is_with_each_control(
    lowest: None, recwarn: pytest.WarningsRecorder, average: Any, control: Any
) -> None:
    unseen = [member(40 + number, "abc"[number % 3], seen=False) for number in range(6)]
    engine = engine_after(given(average, control=control), grouped(30, extra=unseen), 1)
    assert engine.evaluate().keys() == set(engine.setup.federation)
    assert not [said for said in recwarn if issubclass(said.category, RuntimeWarning)]


def test_of_clients_that_are_each_a_group_the_nearest_founder_is_joined_drawn_or_not(low: None) -> None:
    sets, _ = planted(200, 1)
    made, new = sets[:150], [one + 1e-3 for one in sets[:20]]
    how = RelatednessSettings(groups=4, gamma=1.0, control="self")
    labels = np.arange(150)
    _, joins, closest = newcomers_of_many(new, made, [], labels, 1.0, how, 0)
    np.testing.assert_array_equal(joins, labels[:20])
    np.testing.assert_array_equal(closest, labels[:20])


def test_groups_without_a_drawn_member_are_passed_over(low: None, recwarn: pytest.WarningsRecorder) -> None:
    sets, labels = planted(200, 1)
    some = np.flatnonzero(labels[:150] > 0)
    joins, near = relatedness.joining(sets[150:], [sets[row] for row in some], labels[some], RelatednessSettings(), 0)
    kept = labels[150:] > 0
    np.testing.assert_array_equal(joins[kept], labels[150:][kept])
    np.testing.assert_array_equal(labels[some][near][kept], labels[150:][kept])
    assert set(joins.tolist()) == {1, 2, 3}
    assert not recwarn.list


@pytest.mark.parametrize("many", [False, True])
def test_newcomers_linked_to_newcomers_only_take_a_model_of_their_own_group(
    lowest: None, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    monkeypatch.setattr("fedkin.methods.flt.relatedness.LARGEST", 20 if many else 1000)
    late = [member(30 + number, "abc"[number % 3], joins=2) for number in range(60)]
    engine = engine_after(given("neighbours"), grouped(24, extra=late), 1)
    before = dict(engine.server.state["model"])
    seen: list[dict[str, str]] = []

    def spy(state: Any, *more: Any) -> Any:
        seen.append(dict(state["model"]))
        return along_edges(state, *more)

    monkeypatch.setattr("fedkin.methods.flt.method.along_edges", spy)
    engine.round(2)
    assert len(seen[0]) == 84
    federation = engine.setup.federation
    owners: dict[str, set[Any]] = {}
    for id, number in before.items():
        owners.setdefault(number, set()).add(federation[id].group)
    assert [id for id in seen[0] if federation[id].group not in owners[seen[0][id]]] == []


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_new_group_of_newcomers_only_starts_from_the_initial_model(lowest: None, average: Any) -> None:
    first = [member(number, "ab"[number % 2]) for number in range(8)]
    late = [member(30 + number, "c", joins=2) for number in range(9)]
    federation = Federation([*first, *late], Task(6, (8,)), "later")
    engine = engine_after(given(average), federation, 1)
    engine.round(2)
    initial = engine.server.initial
    for one in late:
        assert all(torch.equal(engine.model(one.id)[name], initial[name]) for name in initial)


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
