"""TFL's topology: vectors, similarity, graph, centrality and prior, against plain loops and networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedkin.federation import Federation
from fedkin.methods.tfl import Tfl, Topology, centralities, sketched
from support import Watched, small_federation, small_setup


def vector(engine: Watched, what: str) -> Any:
    kept = engine.server.state[what]
    return np.array([float(kept[id]) for id in sorted(kept)])


def ran(method: Any, rounds: int, federation: Federation | None = None, **training: Any) -> Watched:
    engine = Watched(small_setup(method, federation, dtype=torch.float64, **training))
    for number in range(1, rounds + 1):
        engine.round(number)
    return engine


def test_graph_and_prior_against_plain_loops_and_networkx() -> None:
    engine = Watched(small_setup(Tfl(), dtype=torch.float64))
    graph = engine.round(1).graph
    assert graph is not None
    models = {id: reply["params"] for id, reply in engine.asks[0][2].items()}
    ids = sorted(models)
    inner = np.zeros((6, 6))
    for i, one in enumerate(ids):
        for j, other in enumerate(ids):
            inner[i, j] = sum(float((models[one][name] * models[other][name]).sum()) for name in models[one])
    pairs = inner[np.triu_indices(6, 1)]
    scaled = (inner - pairs.min()) / (pairs.max() - pairs.min())
    np.fill_diagonal(scaled, 0)
    edges = np.where(scaled >= 0.4, scaled, 0.0)
    assert 0 < np.count_nonzero(edges) < 30
    assert graph.ids == tuple(ids)
    np.testing.assert_allclose(np.asarray(graph.weights), edges, atol=1e-9)
    central = nx.betweenness_centrality(nx.from_numpy_array(edges > 0), normalized=False)
    want = softmax([central[k] for k in range(6)])
    np.testing.assert_allclose(vector(engine, "prior"), want, rtol=1e-9)
    np.testing.assert_allclose(graph.values["prior"], want, rtol=1e-9)
    np.testing.assert_allclose(graph.values["centrality"], [central[k] for k in range(6)], atol=1e-12)


def oracle(g: Any, how: Topology) -> dict[int, float]:
    normalised, n = how.scale == "normalised", len(g)
    match how.centrality:
        case "betweenness":
            return dict(nx.betweenness_centrality(g, normalized=normalised))
        case "degree":
            return {k: v * (1 if normalised else n - 1) for k, v in nx.degree_centrality(g).items()}
        case "closeness":
            return dict(nx.closeness_centrality(g))
        case "current-flow":
            return dict(nx.current_flow_betweenness_centrality(g, normalized=normalised))
        case _:
            return dict(nx.eigenvector_centrality_numpy(g))


@pytest.mark.parametrize("centrality", ["betweenness", "degree", "closeness", "eigenvector", "current-flow"])
@pytest.mark.parametrize("scale", ["raw", "normalised"])
def test_centralities_are_networkxs(centrality: str, scale: str) -> None:
    how = Topology(centrality=centrality, scale=scale)
    for seed in range(5):
        g = nx.connected_watts_strogatz_graph(12, 4, 0.4, seed=seed)
        want = oracle(g, how)
        found = centralities(nx.to_numpy_array(g), how)
        np.testing.assert_allclose(found, [abs(want[k]) for k in range(12)], rtol=1e-6, atol=1e-9)


def test_figures_are_recorded_every_round_and_the_graph_is_renewed_every_few() -> None:
    engine = Watched(small_setup(Tfl(eta_lambda=0.1, graph={"every": 3}), dtype=torch.float64))
    renewed, priors = [], []
    for number in range(1, 8):
        renewed.append(engine.round(number).graph is not None)
        priors.append(vector(engine, "prior"))
        figures, lam = engine.server.info, vector(engine, "lam")
        assert figures == {
            "prior_entropy": pytest.approx(-(priors[-1] * np.log(priors[-1])).sum(), abs=1e-8),
            "prior_largest": pytest.approx(priors[-1].max()),
            "lambda_entropy": pytest.approx(-(lam[lam > 0] * np.log(lam[lam > 0])).sum()),
            "lambda_largest": pytest.approx(lam.max()),
        }
        assert all(type(value) is float for value in figures.values())
    assert renewed == [True, False, True, False, False, True, False]
    assert np.array_equal(priors[0], priors[1])
    assert np.array_equal(priors[3], priors[4])


@pytest.mark.parametrize("vectors", ["weights", "updates"])
@pytest.mark.parametrize("layers", ["all", 1])
def test_vectors_are_what_was_asked_for(vectors: str, layers: Any) -> None:
    engine = ran(Tfl(graph={"vectors": vectors, "layers": layers}), 2)
    _, sent, replies = engine.asks[2]
    names = ["head.weight", "head.bias"] if layers == 1 else list(engine.trainable)
    for id, reply in replies.items():
        start = sent[id]["params"] if vectors == "updates" else dict.fromkeys(names, 0)
        want = torch.cat([(reply["params"][name] - start[name]).flatten() for name in names])
        assert torch.equal(engine.server.state["vectors"][id], want)


def test_sign_flipped_clients_are_isolated_and_their_prior_is_the_least() -> None:
    """Updates of two adversaries point the other way: no edge to anyone honest, and no centrality."""
    rng = np.random.default_rng(0)
    how = {"vectors": "updates", "similarity": "cosine", "centrality": "degree"}
    engine = Watched(small_setup(Tfl(graph=how), small_federation(10), dtype=torch.float64))
    ids = engine.server.clients
    direction = {name: rng.normal(size=tensor.shape) for name, tensor in engine.initial.items()}
    models, bad = {}, {ids[2], ids[7]}
    for id in ids:
        sign = -1.0 if id in bad else 1.0
        models[id] = {
            name: engine.initial[name] + torch.from_numpy(sign * d + 0.3 * rng.normal(size=d.shape))
            for name, d in direction.items()
        }
    method: Any = Tfl(graph=how)
    method.remember(engine.server, models, engine.initial)
    method.learn_topology(engine.server)
    graph = engine.server.graph
    assert graph is not None
    honest = [k for k, id in enumerate(ids) if id not in bad]
    for k, id in enumerate(ids):
        if id in bad:
            assert not np.asarray(graph.weights)[k, honest].any()
    prior = dict(zip(ids, vector(engine, "prior"), strict=True))
    assert max(prior[id] for id in bad) < 0.1 * min(p for id, p in prior.items() if id not in bad)


def test_clusters_share_their_centrality_and_find_separated_clients() -> None:
    how = {"clusters": 2, "vectors": "updates", "every": 1, "similarity": "cosine"}
    engine = ran(Tfl(eta_lambda=0.0, graph=how), 1, local_steps=20)
    graph, planted = engine.server.graph, engine.federation.planted
    assert graph is not None
    assert graph.groups is not None
    assert planted is not None
    assert len({(graph.groups[id], planted[id]) for id in graph.ids}) == 2
    for id, other in ((a, b) for a in graph.ids for b in graph.ids):
        k, j = graph.ids.index(id), graph.ids.index(other)
        if graph.groups[id] == graph.groups[other]:
            assert graph.values["centrality"][k] == graph.values["centrality"][j]
            assert np.asarray(graph.weights)[k, j] == 0


def test_a_sketch_keeps_inner_products_in_expectation() -> None:
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=300) + 0.5) for _ in range(2))
    found = []
    for seed in range(400):
        s = sketched({"x": x, "y": y}, 64, seed)
        assert s["x"].shape == (64,)
        found.append(float(s["x"] @ s["y"]))
    error = float(np.std(found)) / 20
    assert abs(np.mean(found) - float(x @ y)) < 4 * error
    assert error < 0.1 * abs(float(x @ y))


@pytest.mark.parametrize("control", ["random", "uniform", "oracle", "shuffled", "self"])
def test_control_graphs_replace_the_graph_and_nothing_before_it(control: str) -> None:
    plain, other = (ran(Tfl(eta_lambda=0.2, graph={"control": c}), 1) for c in ("none", control))
    for name, tensor in plain.server.state["params"].items():
        assert torch.equal(tensor, other.server.state["params"][name])
    assert plain.server.graph is not None
    assert other.server.graph is not None
    assert not np.array_equal(np.asarray(plain.server.graph.weights), np.asarray(other.server.graph.weights))
