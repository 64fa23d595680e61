from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedkin import graph as g
from graph.strategies import affinities, planted, reordered

ALL: dict[str, Callable[[Any], Any]] = {
    "degree": g.degree, "closeness": g.closeness, "betweenness": g.betweenness, "eigenvector": g.eigenvector,
    "current flow": g.current_flow_betweenness,
}  # fmt: skip


def _listed(values: Any, n: int) -> Any:
    return np.array([values[node] for node in range(n)])


@pytest.mark.parametrize("name", ALL)
@given(a=affinities(), data=st.data())
def test_equivariant_finite_and_the_same_dense_and_sparse(name: str, a: Any, data: Any) -> None:
    measure = ALL[name]
    values = measure(a)
    assert values.shape == (len(a),)
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    np.testing.assert_array_equal(measure(sp.csr_array(a)), values)
    order = np.array(data.draw(st.permutations(range(len(a)))))
    np.testing.assert_allclose(measure(reordered(a, order)), values[order], atol=1e-9)
    assert not values[~a.any(axis=1)].any()


def check_networkx(a: Any) -> None:
    n, graph = len(a), nx.from_numpy_array(a)
    if n > 1:
        np.testing.assert_allclose(g.degree(a), _listed(nx.degree_centrality(graph), n))
    np.testing.assert_allclose(g.closeness(a), _listed(nx.closeness_centrality(graph), n))
    for normalised in (False, True):
        theirs = nx.betweenness_centrality(graph, normalized=normalised)
        np.testing.assert_allclose(g.betweenness(a, normalised=normalised), _listed(theirs, n), rtol=1e-9, atol=1e-9)


@given(affinities())
def test_degree_closeness_betweenness_are_networkx(a: Any) -> None:
    check_networkx(a)


def test_they_are_of_a_larger_graph_and_of_a_long_chain() -> None:
    check_networkx(planted(4, 40, inside=0.2, across=0.02)[0])
    chain = np.diag(np.ones(99), 1)
    check_networkx(chain + chain.T)


@given(affinities(least=3, most=12))
def test_sampling_everyone_is_exact(a: Any) -> None:
    value, error = g.sampled_betweenness(a, len(a), normalised=True)
    np.testing.assert_allclose(value, g.betweenness(a, normalised=True), atol=1e-12)
    assert (error == 0).all()


def test_sampled_betweenness_is_within_its_error() -> None:
    a, _ = planted(4, 60, inside=0.15, across=0.01)
    exact = g.betweenness(a)
    drawn = [g.sampled_betweenness(a, 60, seed=seed) for seed in range(20)]
    off = np.array([value - exact for value, _ in drawn])
    error = np.array([error for _, error in drawn])
    assert 0.9 < np.sqrt(np.square(off).mean() / np.square(error).mean()) < 1.1
    assert abs(off.mean()) < 0.02 * exact.mean()
    one, again = g.sampled_betweenness(a, 10, seed=3), g.sampled_betweenness(a, 10, seed=3)
    np.testing.assert_array_equal(one, again)


@given(affinities())
def test_eigenvector_is_networkx_on_each_component(a: Any) -> None:
    values = g.eigenvector(a)
    graph = nx.from_numpy_array(a)
    for part in nx.connected_components(graph):
        rows = sorted(part)
        if len(rows) <= 2:
            np.testing.assert_allclose(values[rows], [0, np.sqrt(1 / len(a))][len(rows) - 1])
            continue
        theirs = nx.eigenvector_centrality_numpy(graph.subgraph(rows), weight="weight")
        scale = np.sqrt(len(rows) / len(a))
        np.testing.assert_allclose(values[rows], scale * np.array([theirs[row] for row in rows]), atol=1e-7)


def test_eigenvector_of_a_large_component() -> None:
    a, _ = planted(3, 100, inside=0.2, across=0.05)
    values, vectors = np.linalg.eigh(a)
    np.testing.assert_allclose(g.eigenvector(a), np.abs(vectors[:, np.argmax(values)]), atol=1e-8)


@given(affinities())
def test_current_flow_is_networkx_on_each_component(a: Any) -> None:
    graph = nx.from_numpy_array(a)
    between, raw = g.current_flow_betweenness(a), g.current_flow_betweenness(a, normalised=False)
    for part in nx.connected_components(graph):
        rows = sorted(part)
        alone = nx.convert_node_labels_to_integers(graph.subgraph(rows), ordering="sorted")
        m = len(rows)
        if m > 2:
            theirs = _listed(nx.current_flow_betweenness_centrality(alone, weight=None, solver="full"), m)
            np.testing.assert_allclose(between[rows], theirs, atol=1e-9)
            np.testing.assert_allclose(raw[rows], theirs * (m - 1) * (m - 2) / 2, atol=1e-9)


@given(hnp.arrays(np.float64, st.integers(1, 9), elements=st.floats(-1e6, 1e6)), st.floats(1e-3, 1e6))
def test_softmax_is_a_prior(values: Any, temperature: float) -> None:
    p = g.softmax(values, temperature)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    order = np.argsort(values, kind="stable")
    assert (np.diff(p[order]) >= 0).all()
    np.testing.assert_allclose(g.softmax(values + 5.0, temperature), p, rtol=1e-3, atol=1e-9)
