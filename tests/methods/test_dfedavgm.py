"""DFedAvgM: momentum and mixing against plain loops, Metropolis-Hastings rows, and what travels."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.engines import LocalEngine
from fedkin.graph import network
from fedkin.methods.dfedavgm import DFedAvgM, metropolis_row
from methods.plain_loops import floats
from support import present, small_setup, with_settings

SIZE = 7 * 5 + 7 + 7 * 4 + 4


@given(st.integers(2, 12), st.floats(0, 1), st.integers(0, 1000))
def test_rows_are_those_of_metropolis_hastings_and_doubly_stochastic(n: int, p: float, seed: int) -> None:
    graph = nx.gnp_random_graph(n, p, seed=seed)
    made = np.zeros((n, n))
    for i in graph:
        row = metropolis_row(str(i), graph.degree[i], {str(j): graph.degree[j] for j in graph[i]})
        for j, weight in row.items():
            made[i, int(j)] = weight
    assert (made >= 0).all()
    np.testing.assert_allclose(made.sum(0), 1.0)
    np.testing.assert_allclose(made.sum(1), 1.0)
    for i, j in graph.edges:
        assert made[i, j] == made[j, i] == 1 / (1 + max(graph.degree[i], graph.degree[j]))
    assert np.count_nonzero(made - np.diag(made.diagonal())) == 2 * graph.number_of_edges()


@pytest.mark.parametrize(("spec", "edges"), [("full", 15), ("ring", 6), ("regular:3", 9), ("none", 0)])
def test_floats_are_those_of_the_papers_formula(spec: str, edges: int) -> None:
    outcome = LocalEngine(with_settings(small_setup(DFedAvgM()), network=spec)).round(1)
    assert len(outcome.traffic) == 2 * edges
    assert floats(outcome.traffic) == 2 * edges * SIZE  # 2 N_e (theta + phi)


def test_peers_whose_messages_are_lost_weigh_on_oneself() -> None:
    setup = small_setup(DFedAvgM(), dropout=0.5)
    graph = present(LocalEngine(setup).round(1).graph)
    mixing = np.asarray(graph.mixing)
    heard = (mixing > 0).sum(1)
    assert (heard < 6).any()
    np.testing.assert_allclose(mixing.sum(1), 1.0)
    np.testing.assert_allclose(mixing.diagonal(), 1 - (heard - 1) / 6)


def test_the_graph_of_a_round_is_what_was_mixed() -> None:
    setup = with_settings(small_setup(DFedAvgM()), network="ring")
    graph = present(LocalEngine(setup).round(1).graph)
    ids = graph.ids
    near = network("ring", ids, setup.seed, 1)
    expected = np.array([[1 / 3 * (i == j or j in near[i]) for j in ids] for i in ids])
    np.testing.assert_allclose(np.asarray(graph.mixing), expected)
    np.testing.assert_allclose(np.asarray(graph.weights), expected - np.eye(6) / 3)


def test_momentum_is_the_methods_own_and_of_adam_the_first_beta() -> None:
    setup = small_setup(DFedAvgM(), momentum=0.1)
    assert DFedAvgM().local(setup.training).momentum == 0.9
    assert DFedAvgM(momentum=0.3).local(setup.training).momentum == 0.3
    adam = small_setup(DFedAvgM(), optimiser="adam").training
    assert DFedAvgM().local(adam) == adam
    assert DFedAvgM(momentum=0.3).local(adam).betas == (0.3, adam.betas[1])
