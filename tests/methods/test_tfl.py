"""TFL and DRFA against their equations: the topology, the prior, the ascent, the limits and what travels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import softmax

from fedkin import graph
from fedkin.engines import LocalEngine, Setup
from fedkin.errors import MethodError
from fedkin.federation import Client, Federation, Task
from fedkin.flow import Message, ServerMethod
from fedkin.keys import rng
from fedkin.methods import METHODS
from fedkin.methods.blocks.minimax import filled
from fedkin.methods.drfa import Drfa
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.tfl import Tfl, Topology, centralities
from methods.plain_loops import Plain, combined, cross_entropy, initial, plain_steps, plain_training
from support import Watched, newcomers, present, same, samples_of, small_federation, small_setup, stored


def vector(engine: Watched, what: str) -> Any:
    kept = engine.server.state[what]
    return np.array([float(kept[id]) for id in sorted(kept)])


def ran(method: Any, rounds: int, federation: Federation | None = None, **training: Any) -> Watched:
    return Watched(small_setup(method, federation, dtype=torch.float64, **training)).rounds(rounds)


# -- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [{}, {"clients_per_round": 3}])
def test_q_zero_is_drfas_ascent_without_snapshots_bit_for_bit(training: dict[str, Any]) -> None:
    """DRFA's rate is gamma tau, with tau = 2 local steps; 0.0625 * 2 is exact."""
    tfl = ran(Tfl(q=0.0, eta_lambda=0.125, floor=0.01, ask_losses="sampled"), 4, **training)
    drfa = ran(Drfa(gamma=0.0625, snapshot=False, floor=0.01), 4, **training)
    assert np.array_equal(vector(tfl, "lam"), vector(drfa, "lam"))
    assert vector(tfl, "lam").std() > 0.01
    assert same(drfa.server.state["params"], tfl.server.state["params"])


def test_eta_zero_is_fedavg_with_equal_weights_bit_for_bit_and_sends_nothing_for_losses() -> None:
    tfl, average = ran(Tfl(eta_lambda=0.0), 3), ran(FedAvg(weights="equal"), 3)
    assert same(average.server.state["params"], tfl.server.state["params"])
    assert {phase for phase, _, _ in tfl.asks} == {"train"}
    assert (vector(tfl, "lam") == 1 / 6).all()


# -- lambda -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divergence", ["euclidean", "kl"])
@pytest.mark.parametrize("losses", ["all", "sampled"])
def test_the_ascent_is_the_nearest_point_of_the_simplex(divergence: str, losses: str) -> None:
    q, eta = 0.4, 0.2
    method = Tfl(
        q=q, eta_lambda=eta, divergence=divergence, ask_losses=losses, graph={"every": 1, "scale": "normalised"}
    )
    engine = Watched(small_setup(method, dtype=torch.float64, clients_per_round=3))
    federation = engine.federation
    for number in (1, 2):
        before = vector(engine, "lam")
        engine.round(number)
        _, asked, replies = engine.asks[-1]
        assert len(asked) == (6 if losses == "all" else 3)
        v = np.zeros(6)
        for k, id in enumerate(sorted(federation)):
            if id in replies:
                (loss,) = losses_of(asked[id]["params"], engine.engine.setup, [id])
                assert float(replies[id]["loss"]) == pytest.approx(loss)
                v[k] = 6 / len(replies) * loss
        known = engine.server.state["prior"]
        prior = np.array([len(known) / 6 * float(known[id]) if id in known else 1 / 6 for id in sorted(federation)])
        slope = before - prior
        if divergence == "kl":
            slope = np.log(np.maximum(before, 1e-3) / np.maximum(prior, 1e-3)) + 1
        target = before + eta * (v - q * slope)
        np.testing.assert_allclose(vector(engine, "lam"), projected(target, 0.0), atol=1e-6)


def test_losses_that_do_not_come_leave_lambda_or_are_made_up_for() -> None:
    engine = Watched(small_setup(Tfl(eta_lambda=0.1), dtype=torch.float64))
    engine.lose = lambda phase, id: phase == "losses"
    engine.round(1)
    assert (vector(engine, "lam") == 1 / 6).all()
    assert "prior" in engine.server.state
    gone = engine.server.clients[0]
    engine.lose = lambda phase, id: phase == "losses" and id == gone
    engine.round(2)
    assert vector(engine, "lam")[0] == vector(engine, "lam").min() < 1 / 6


# -- what travels, tasks, errors -----------------------------------------------------------------------------------


def test_the_second_broadcast_is_a_phase_of_its_own_and_its_bytes_are_counted() -> None:
    engine = Watched(small_setup(Tfl(ask_losses="sampled"), clients_per_round=4))
    traffic = engine.round(1).traffic
    size = engine.server.net.parameters()
    down = [message for message in traffic if message.phase == "losses" and message.sender == "server"]
    up = [message for message in traffic if message.phase == "losses" and message.receiver == "server"]
    assert [message.floats for message in down] == [size] * 4
    assert [message.floats for message in up] == [1] * 4
    assert all(message.bytes > 4 * size for message in down)


@pytest.mark.parametrize("name", ["tfl", "drfa"])
def test_a_client_that_joins_later_starts_at_one_kth_of_lambda_and_an_unseen_one_gets_the_global_model(
    name: str,
) -> None:
    federation = small_federation()
    late, unseen = sorted(federation)[:2]
    engine = Watched(small_setup(METHODS[name](), newcomers(federation, [unseen], {late: 3})))
    for number in (1, 2, 3):
        assert (late in engine.round(number).sampled) == (number == 3)
        assert set(engine.server.state["lam"]) == set(engine.server.clients)
        assert vector(engine, "lam").sum() == pytest.approx(1)
        assert engine.model(unseen) is engine.server.state["params"]
    _, messages, _ = engine.asks[-2]
    assert unseen not in messages
    assert float(engine.server.state["lam"][late]) == pytest.approx(1 / 5, abs=0.1)


def test_a_model_that_diverged_is_an_error_that_says_what_to_do() -> None:
    setup = small_setup(Tfl())
    train = next(iter(setup.federation.values())).train
    client: Any = SimpleNamespace(task=setup.federation.task, train=train)
    for worst in (float("-inf"), float("nan")):
        flow = Tfl().losses(client, Message(params=setup.net.initial))
        next(flow)
        outputs = torch.zeros(len(train), client.task.classes)
        outputs[0, train.labels()[0]] = worst
        with pytest.raises(MethodError, match=r"the new model's training loss is (inf|nan); lower training.lr"):
            flow.send(outputs)


# -- TFL's topology: vectors, similarity, graph, centrality and prior, against plain loops and networkx ---


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        ("betweenness", partial(graph.betweenness, normalised=True)), ("current-flow", graph.current_flow_betweenness),
        ("degree", graph.degree), ("closeness", graph.closeness), ("eigenvector", graph.eigenvector),
    ],
)  # fmt: skip
def test_centralities_are_those_of_the_graph_raw_or_normalised(name: str, measure: Any) -> None:
    edges = nx.to_numpy_array(nx.connected_watts_strogatz_graph(12, 4, 0.4, seed=0))
    normalised = measure(edges)
    pairs = 11 * 10 / 2
    counts = {"betweenness": pairs, "current-flow": pairs, "degree": 11}
    for scale, times in (("normalised", 1), ("raw", counts.get(name, 1))):
        found = centralities(edges, Topology(centrality=name, scale=scale))
        np.testing.assert_allclose(found, times * normalised, rtol=1e-9)


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
    method: Any = Tfl(graph={"vectors": "updates", "similarity": "cosine", "centrality": "degree"})
    engine = Watched(small_setup(method, small_federation(10), dtype=torch.float64))
    ids = engine.server.clients
    direction = {name: rng.normal(size=tensor.shape) for name, tensor in engine.initial.items()}
    models, bad = {}, {ids[2], ids[7]}
    for id in ids:
        sign = -1.0 if id in bad else 1.0
        models[id] = {
            name: engine.initial[name] + torch.from_numpy(sign * d + 0.3 * rng.normal(size=d.shape))
            for name, d in direction.items()
        }
    method.remember(engine.server, models, engine.initial)
    method.learn_topology(engine.server)
    graph = present(engine.server.graph)
    honest = [k for k, id in enumerate(ids) if id not in bad]
    flipped = [k for k, id in enumerate(ids) if id in bad]
    assert not np.asarray(graph.weights)[np.ix_(flipped, honest)].any()
    prior = dict(zip(ids, vector(engine, "prior"), strict=True))
    assert max(prior[id] for id in bad) < 0.1 * min(p for id, p in prior.items() if id not in bad)


def test_clusters_share_their_centrality_and_find_separated_clients() -> None:
    how = {"clusters": 2, "vectors": "updates", "every": 1, "similarity": "cosine"}
    engine = ran(Tfl(eta_lambda=0.0, graph=how), 1, local_steps=20)
    graph, planted = present(engine.server.graph), present(engine.federation.planted)
    groups = present(graph.groups)
    assert len({(groups[id], planted[id]) for id in graph.ids}) == 2
    for id, other in ((a, b) for a in graph.ids for b in graph.ids):
        k, j = graph.ids.index(id), graph.ids.index(other)
        if groups[id] == groups[other]:
            assert graph.values["centrality"][k] == graph.values["centrality"][j]
            assert np.asarray(graph.weights)[k, j] == 0


# -- whole rounds against plain loops: who is drawn, and what each counts ---


SEED, DRAWN, CLASSES = 2, 4, 3
SIZES = {"ash": 40, "birch": 4, "cedar": 6, "date": 25, "elm": 5, "fir": 9}

Array = Any


def unequal() -> Federation:
    """Clients with 4 to 40 samples, each with its own shift of the classes' places."""
    draw = np.random.default_rng(2)
    places = draw.normal(size=(CLASSES, 3)) * 2
    clients = []
    for id, n in SIZES.items():
        y = draw.integers(0, CLASSES, n)
        samples = samples_of(places[y] + draw.normal(size=3) + draw.normal(size=(n, 3)), y)
        clients.append(Client(id, samples, samples))
    return Federation(clients, Task(CLASSES, (3,)), "unequal")


def draw_of(lam: Array, number: int) -> Counter[str]:
    """Who trains in this round and how often each was drawn: by lambda, with replacement."""
    rows = rng(SEED, "", number, "sample").choice(len(lam), size=DRAWN, p=lam)
    return Counter(sorted(SIZES)[row] for row in rows)


def mean(models: dict[str, Plain], times: Mapping[str, float]) -> Plain:
    return combined(models, {id: n / sum(times.values()) for id, n in times.items()})


def projected(v: Array, floor: float) -> Array:
    """The nearest point of the simplex with entries of at least `floor`: max(v - t, floor) for the t that sums to 1."""
    t = brentq(lambda t: np.maximum(v - t, floor).sum() - 1, v.min() - 2, v.max() + 1, xtol=1e-15, rtol=1e-15)
    return np.maximum(v - t, floor)


def losses_of(w: Plain, setup: Setup, ids: Iterable[str]) -> Array:
    """This model's loss on all training samples of each of these clients."""
    trains = [setup.federation[id].train for id in ids]
    return np.array([float(cross_entropy(w, stored(train), train.labels())) for train in trains])


def plain_tfl(setup: Setup, rounds: int, eta: float, q: float) -> tuple[Plain, Array, dict[str, Array]]:
    """TFL's Algorithm 1, graph of the last known models renewed every round; the last graph is returned too."""
    ids, w, lam = sorted(SIZES), initial(setup), np.full(len(SIZES), 1 / len(SIZES))
    known: dict[str, Plain] = {}
    for number in range(1, rounds + 1):
        times = draw_of(lam, number)
        models = {id: plain_training(setup, id, number, w, cross_entropy) for id in times}
        w = mean(models, times)
        known |= models
        met = [id for id in ids if id in known]
        rows = [np.concatenate([tensor.flatten().numpy() for tensor in known[id].values()]) for id in met]
        assert len(met) > 2  # two clients are one pair, which has no scale
        inner = np.array([[float(a @ b) for b in rows] for a in rows])
        pairs = inner[np.triu_indices(len(met), 1)]
        scaled = (inner - pairs.min()) / (pairs.max() - pairs.min())
        linked = (scaled >= 0.4) & ~np.eye(len(met), dtype=bool)
        central = nx.betweenness_centrality(nx.from_numpy_array(linked), normalized=False)
        centrality = [central[k] for k in range(len(met))]
        among = dict(zip(met, softmax(centrality), strict=True))
        # One that was never met has 1 / K, and the others share the rest.
        prior = np.array([among[id] * len(met) / len(ids) if id in among else 1 / len(ids) for id in ids])
        lam = projected(lam + eta * (losses_of(w, setup, ids) - q * (lam - prior)), 0.0)
        graph = {"weights": scaled * linked, "centrality": centrality, "prior": [among[id] for id in met]}
    return w, lam, graph


def plain_drfa(setup: Setup, rounds: int, gamma: float, floor: float) -> tuple[Plain, Array]:
    """DRFA's Algorithm 1; where all clients take part, each counts as lambda says."""
    ids, w, everyone = sorted(setup.federation), initial(setup), setup.training.clients_per_round == "all"
    lam = np.full(len(ids), 1 / len(ids))
    for number in range(1, rounds + 1):
        times = dict(zip(ids, lam.tolist(), strict=True)) if everyone else draw_of(lam, number)
        share = 1 - rng(setup.seed, "", number, "snapshot").random()
        paths = {id: plain_steps(setup, id, number, w, cross_entropy) for id in times}
        w = mean({id: path[-1] for id, path in paths.items()}, times)
        judged = mean({id: path[math.ceil(share * (len(path) - 1))] for id, path in paths.items()}, times)
        asked = range(len(ids)) if everyone else rng(SEED, "", number, "losses").permutation(len(ids))[:DRAWN]
        v = np.zeros(len(ids))
        for row in asked:
            v[row] = len(ids) / len(asked) * losses_of(judged, setup, [ids[row]])[0]
        lam = projected(lam + gamma * np.mean([len(path) - 1 for path in paths.values()]) * v, floor)
    return w, lam


@pytest.mark.parametrize("name", ["tfl", "drfa"])
def test_three_rounds_of_a_few_unequal_clients_are_the_plain_loops(name: str) -> None:
    method: ServerMethod
    method = Tfl(eta_lambda=0.1, q=0.3, graph={"every": 1}) if name == "tfl" else Drfa(gamma=0.04, floor=0.01)
    plan = {"clients_per_round": DRAWN, "local_steps": 3, "batch_size": 5}
    setup = small_setup(method, unequal(), torch.float64, seed=SEED, **plan)
    engine, twice = LocalEngine(setup), 0
    for rounds in (1, 2, 3):
        outcome = engine.round(rounds)
        if name == "tfl":
            w, lam, graph = plain_tfl(setup, rounds, 0.1, 0.3)
            found = present(outcome.graph)
            assert 0 < np.count_nonzero(graph["weights"]) < len(found.ids) * (len(found.ids) - 1)
            np.testing.assert_allclose(np.asarray(found.weights), graph["weights"], atol=1e-6)
            for what in ("centrality", "prior"):
                np.testing.assert_allclose(found.values[what], graph[what], atol=1e-9)
        else:
            w, lam = plain_drfa(setup, rounds, 0.04, 0.01)
        for id in setup.federation:
            torch.testing.assert_close(dict(engine.model(id)), w, rtol=1e-6, atol=1e-6)
        found_lam = [float(engine.server.state["lam"][id]) for id in sorted(SIZES)]
        np.testing.assert_allclose(found_lam, lam, atol=1e-6)
        trained = {message.sender for message in outcome.traffic if message.phase == "train"}
        assert trained - {"server"} <= set(outcome.sampled)
        twice += DRAWN - len(trained - {"server"})
    assert twice > 0  # else a client drawn twice was never seen to count twice


@pytest.mark.parametrize("kind", [Tfl, Drfa])
def test_a_lost_model_leaves_the_others_counting_as_often_as_drawn(kind: Any) -> None:
    times = draw_of(np.full(len(SIZES), 1 / len(SIZES)), 1)
    assert max(times.values()) > 1
    for lost in times:
        engine = Watched(small_setup(kind(), unequal(), torch.float64, clients_per_round=DRAWN, seed=SEED))
        engine.lose = lambda phase, id, lost=lost: phase == "train" and id == lost  # type: ignore[misc]
        engine.round(1)
        models = {id: dict(reply.params) for id, reply in engine.replies("train").items()}
        want = mean(models, {id: n for id, n in times.items() if id != lost})
        torch.testing.assert_close(dict(engine.server.state["params"]), want)


# -- DRFA against a plain loop: snapshots, ascent, sampling by lambda ---


@pytest.mark.parametrize("training", [{"local_steps": 5}, {"local_steps": None, "local_epochs": 2}])
def test_rounds_with_all_clients_against_a_plain_loop(training: dict[str, Any]) -> None:
    setup = small_setup(Drfa(gamma=0.02, floor=0.01), dtype=torch.float64, **training)
    engine = Watched(setup).rounds(3)
    w, lam = plain_drfa(setup, 3, 0.02, 0.01)
    np.testing.assert_allclose(vector(engine, "lam"), lam, atol=1e-6)
    torch.testing.assert_close(dict(engine.server.state["params"]), w, rtol=1e-6, atol=1e-6)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 4))
def test_newcomers_start_at_one_kth_and_the_others_keep_their_proportions(values: list[float], new: int) -> None:
    p = np.array(values) / np.sum(values)
    known = {f"old-{k}": torch.tensor(v, dtype=torch.float64) for k, v in enumerate(p)}
    ids = [*known, *(f"new-{k}" for k in range(new))]
    grown = filled(known, ids)
    assert grown.sum() == pytest.approx(1)
    assert np.allclose(grown[len(p) :], 1 / len(ids))
    np.testing.assert_allclose(grown[: len(p)] / grown[: len(p)].sum(), p, rtol=1e-9)
    assert new or np.array_equal(grown, p)
