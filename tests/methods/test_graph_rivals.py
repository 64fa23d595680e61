"""CoBo, DPFL and FedDrift: their limits, their rules, and rounds against plain loops."""

from __future__ import annotations

from collections.abc import Generator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data import federate
from fedkin.engines import LocalEngine
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.methods.cobo import CoBo, weight_of
from fedkin.methods.dpfl import Dpfl
from fedkin.methods.feddrift import FedDrift, accuracies, merged
from fedkin.methods.local import Local
from methods.plain_loops import Plain, assert_params, combined, cross_entropy, initial, logits, plain_training
from support import after, present, small_setup

PLACES = np.random.default_rng(1).normal(size=(4, 5)) * 2


def client(name: str, seed: int, flipped: bool = False, n: int = 60) -> Client:
    """Four classes around fixed places; flipped: class c is called 3 - c."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    x = torch.from_numpy((PLACES[y] + rng.normal(size=(n, 5))).astype(np.float32))
    samples = Samples(x, torch.from_numpy(3 - y if flipped else y))
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


def test_two_rounds_of_cobo_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(CoBo(rho=0.4, gamma=0.0)))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    own = {id: initial(setup) for id in ids}
    for number in (1, 2):
        engine.round(number)
        before = own
        own = {}
        for id in ids:
            others = [before[other] for other in ids if other != id] if number > 1 else []

            def pulled(params: Plain, x: torch.Tensor, y: torch.Tensor, others: list[Plain] = others) -> torch.Tensor:
                apart = [((params[name] - other[name]) ** 2).sum() for other in others for name in params]
                return cross_entropy(params, x, y) + (0.2 * torch.stack(apart).sum() if apart else 0.0)

            own[id] = plain_training(setup, id, number, before[id], pulled)
    for id in ids:
        assert_params(engine.model(id), own[id], 1e-4)


# -- DPFL -------------------------------------------------------------------------------------------------------------


def chosen_by(fed: Federation, models: dict[str, Plain], me: str, budget: int) -> list[str]:
    """The greedy choice of DPFL, run outside an engine: a loss is what the mean of models does on held-out samples."""
    rows = np.arange(fed[me].size)
    held = fed[me].train.take(rows[rows % 5 == 4])
    named = {"" if id == me else id: params for id, params in models.items()}
    flow: Generator[Any, Any, list[str]] = Dpfl(budget=budget).chosen(fed.task, named, dict.fromkeys(named, 1), held)
    answer = None
    try:
        while True:
            request = flow.send(answer)
            answer = logits(request.params, fed[me].train.inputs(slice(4, None, 5)))
    except StopIteration as stop:
        result: list[str] = stop.value
        return result


def test_a_client_of_dpfl_chooses_those_whose_mean_with_its_own_is_best() -> None:
    fed = federation(False, False, True, True)
    trained, _ = after(Local(), 3, fed)
    models: dict[str, Plain] = {id: dict(trained.model(id)) for id in sorted(fed)}
    assert chosen_by(fed, models, "c0", 10) in ([], ["c1"])
    twins = {**models, "c0": {name: torch.zeros_like(tensor) for name, tensor in models["c0"].items()}}
    assert chosen_by(fed, twins, "c0", 10)[0] == "c1"
    rows = slice(4, None, 5)
    x, y = fed["c0"].train.inputs(rows), fed["c0"].train.labels()[rows]

    def loss(ids: tuple[str, ...]) -> float:
        return float(cross_entropy(combined(twins, dict.fromkeys(("c0", *ids), 1 / (1 + len(ids)))), x, y))

    best = min((ids for size in range(2) for ids in combinations(("c1", "c2", "c3"), size)), key=loss)
    assert chosen_by(fed, twins, "c0", 1) == list(best)


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
    engine = LocalEngine(small_setup(FedDrift(every=2), fed, rounds=5, lr=0.3, local_steps=4))
    for number in range(1, 5):
        engine.round(number)
    state = engine.server.state
    for id, client in fed.items():
        right = logits(state["models"][state["cluster"][id]], client.train.x).argmax(1) == client.train.y
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
