"""CoBo, DPFL, FedDrift, FedFomo, FedAMP and pFedGraph: their limits and their rules."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedkin.data import federate
from fedkin.engines import LocalEngine
from fedkin.federation import Client, Federation, Task
from fedkin.methods.cobo import CoBo, weight_of
from fedkin.methods.dpfl import Dpfl
from fedkin.methods.fedamp import attention
from fedkin.methods.feddrift import FedDrift, accuracies, merged
from fedkin.methods.fedfomo import FedFomo, taken
from fedkin.methods.pfedgraph import PFedGraph, collaboration
from methods.plain_loops import logits
from support import Watched, after, present, samples_of, server_view, small_federation, small_setup, stored

PLACES = np.random.default_rng(1).normal(size=(4, 5)) * 2


def client(name: str, seed: int, flipped: bool = False, n: int = 60) -> Client:
    """Four classes around fixed places; flipped: class c is called 3 - c."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    samples = samples_of(PLACES[y] + rng.normal(size=(n, 5)), 3 - y if flipped else y)
    return Client(name, samples, samples)


def federation(*flipped: bool, same: bool = False) -> Federation:
    clients = [client(f"c{place}", 0 if same else place, flip) for place, flip in enumerate(flipped)]
    return Federation(clients, Task(4, (5,)))


# -- CoBo -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pairs_of_cobo_that_disagree_part_and_equal_ones_stay() -> None:
    fed = federation(False, False, True, True)
    engine, _ = after(CoBo(rho=0.01, gamma=2.0, pairs=3), 20, fed, batch_size=60)
    weights = {(i, j): weight_of(engine.server.state, f"c{i}", f"c{j}") for i, j in combinations(range(4), 2)}
    assert min(weights[0, 1], weights[2, 3]) > 0.9
    assert max(weights[0, 2], weights[0, 3], weights[1, 2], weights[1, 3]) == 0
    graph = present(engine.server.graph)
    assert np.asarray(graph.weights)[0].tolist() == [0, weights[0, 1], weights[0, 2], weights[0, 3]]


def test_clients_with_equal_data_keep_their_weights_in_cobo() -> None:
    fed = federation(False, False, False, same=True)
    engine, _ = after(CoBo(rho=0.1, gamma=2.0, pairs=2), 4, fed, batch_size=60)
    assert all(weight_of(engine.server.state, f"c{i}", f"c{j}") == 1 for i, j in combinations(range(3), 2))


# -- DPFL -------------------------------------------------------------------------------------------------------------


def test_dpfl_has_a_graph_of_who_chose_whom_and_clients_alone_are_local() -> None:
    engine, _ = after(Dpfl(every=1), 6, federation(False, False, True, True))
    graph = present(engine.server.graph)
    weights = np.asarray(graph.weights)
    assert weights[:2, 2:].sum() + weights[2:, :2].sum() == 0
    alone, _ = after(Dpfl(), 2, federation(False))
    assert np.asarray(present(alone.server.graph).weights).tolist() == [[0.0]]


# -- FedDrift ---------------------------------------------------------------------------------------------------------


def test_clusters_merge_only_if_neither_loses_more_than_delta() -> None:
    a = np.array([[0.9, 0.85, 0.5], [0.7, 0.9, 0.9], [0.6, 0.88, 0.9]])
    assert merged(["0", "4", "7"], a, 0.1) == {"0": "0", "4": "4", "7": "4"}
    assert merged(["0", "4", "7"], a, 0.01) == {"0": "0", "4": "4", "7": "7"}
    assert merged(["0", "4", "7"], a, 0.5) == {"0": "0", "4": "0", "7": "0"}
    # Model 0 loses .3 on the samples of cluster 1; that cluster 1 loses only .1 with model 0 does not count.
    unequal = np.array([[0.9, 0.6], [0.85, 0.7]])
    assert merged(["0", "1"], unequal, 0.29) == {"0": "0", "1": "1"}
    assert merged(["0", "1"], unequal, 0.31) == {"0": "0", "1": "0"}
    # The two ends of a chain are too far apart: its middle merges with the nearer one.
    chain = np.array([[0.9, 0.83, 0.7], [0.9, 0.9, 0.82], [0.9, 0.9, 0.9]])
    assert merged(["0", "1", "2"], chain, 0.1) == {"0": "0", "1": "0", "2": "2"}
    # A cluster of which nobody answered merges with nobody.
    assert merged(["0", "1"], np.array([[0.9, np.nan], [0.9, np.nan]]), 0.1) == {"0": "0", "1": "1"}


def test_a_client_remembers_its_accuracy_at_the_end_of_the_last_step() -> None:
    fed = federation(False, False, True, True)
    engine, _ = after(FedDrift(every=2), 4, fed, lr=0.3, local_steps=4)
    state = engine.server.state
    for id, client in fed.items():
        right = logits(state["models"][state["cluster"][id]], stored(client.train)).argmax(1) == client.train.y
        assert state["accuracy"][id] == pytest.approx(right.double().mean().item())
    at_the_end = dict(state["accuracy"])
    engine.round(5)
    assert state["accuracy"] == at_the_end


def test_accuracies_of_a_cluster_are_weighted_by_samples() -> None:
    replies: Any = {
        "a": {"accuracy": {"0": 0.5, "1": 0.1}, "n": 10}, "b": {"accuracy": {"0": 1.0, "1": 0.2}, "n": 30},
        "c": {"accuracy": {"0": 0.0, "1": 0.9}, "n": 5},
    }  # fmt: skip
    a = accuracies(["0", "1"], {"a": "0", "b": "0", "c": "1"}, replies)
    np.testing.assert_allclose(a, [[0.875, 0.0], [0.175, 0.9]])


@pytest.mark.slow
def test_clients_whose_labels_change_leave_and_meet_again() -> None:
    of = {"name": "label-swap", "clients": 10, "groups": 2, "how": "shift"}
    fed = federate("digits", "drift", of=of, drifting=3, rounds=31, seed=1)
    engine = LocalEngine(small_setup(FedDrift(every=10, delta=0.1), fed, rounds=60, lr=0.5, local_steps=10))
    moved = {id for id in fed if fed.at(31).planted[id] != fed.at(1).planted[id]}  # type: ignore[index]
    assert moved
    sizes = []
    for number in range(1, 61):
        engine.round(number)
        sizes.append(len(set(engine.server.state["cluster"].values())))
    assert sizes[29] < sizes[30]
    cluster = engine.server.state["cluster"]
    assert len({cluster[id] for id in moved}) < len(moved)


# -- FedFomo ----------------------------------------------------------------------------------------------------------


def test_weights_are_gains_over_distances() -> None:
    assert taken({"a": 1.0, "b": 2.0, "c": -5.0}, {"a": 0.5, "b": 2.0, "c": 1.0}) == {"a": 2 / 3, "b": 1 / 3, "c": 0.0}
    assert taken({"a": -1.0}, {"a": 1.0}) == {"a": 0.0}
    assert taken({"a": 1.0}, {"a": 0.0}) == {"a": 0.0}


def test_clients_take_from_their_own_kind() -> None:
    engine, outcome = after(FedFomo(models=5, explore=1.0), 4, small_federation(), local_steps=10)
    planted = present(engine.setup.federation.planted)
    kinds = np.array([planted[id] for id in outcome.graph.ids])
    inside = kinds[:, None] == kinds
    assert outcome.graph.weights[inside].sum() > 5 * outcome.graph.weights[~inside].sum()


def test_a_download_is_random_as_often_as_explore_says() -> None:
    method, others = FedFomo(models=1, explore=0.3), tuple(f"c{number:02}" for number in range(20))
    server = server_view(method, ("me", *others))
    server.state["models"] = {id: {} for id in ("me", *others)}
    server.state["affinity"] = {"me": {other: float(place) for place, other in enumerate(others)}}
    chosen = []
    for number in range(1, 2001):
        server.round = number
        chosen += method.chosen(server, "me")
    # The one with the most affinity is also among those that are drawn.
    assert abs(chosen.count("c19") / 2000 - (0.7 + 0.3 / 20)) < 0.03
    assert set(chosen) == set(others)


# -- FedAMP and pFedGraph ---------------------------------------------------------------------------------------------


def test_attention_of_many_equal_models_stays_a_mean() -> None:
    found = attention(np.zeros((9, 9)), 1.0, 0.5)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1)


def test_rows_of_pfedgraph_minimise_equation_5() -> None:
    rng = np.random.default_rng(1)
    similar, sizes, alpha = np.clip(rng.normal(size=(5, 5)), -1, 1), [3, 1, 4, 1, 5], 0.8
    rows = collaboration(similar, sizes, alpha)
    p = np.array(sizes) / sum(sizes)
    for i in range(5):

        def objective(w: Any, s: Any = similar[i]) -> float:
            return float(alpha * ((w - p) ** 2).sum() - w @ s)

        sums_to_one: Any = {"type": "eq", "fun": lambda w: w.sum() - 1}
        result = minimize(
            objective, p, method="SLSQP", bounds=[(0, 1)] * 5, constraints=sums_to_one, options={"ftol": 1e-14}
        )
        np.testing.assert_allclose(rows[i], result.x, atol=1e-6)


def test_pfedgraph_records_the_rows_by_which_it_mixes() -> None:
    watched = Watched(small_setup(PFedGraph(alpha=0.3))).rounds(1)
    replies, graph = watched.replies("train"), present(watched.server.graph)
    moved = [
        np.concatenate(
            [(replies[id].params[name] - watched.initial[name]).flatten().numpy() for name in watched.initial]
        )
        for id in sorted(replies)
    ]
    unit = np.stack(moved) / np.linalg.norm(moved, axis=1, keepdims=True)
    rows = collaboration(unit @ unit.T, [replies[id]["n"] for id in sorted(replies)], 0.3)
    np.testing.assert_allclose(np.asarray(graph.mixing), rows, atol=1e-5)
    np.testing.assert_allclose(np.asarray(graph.weights), rows * (1 - np.eye(6)), atol=1e-5)
