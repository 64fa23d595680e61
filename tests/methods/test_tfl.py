"""TFL against its equations: the topology, the prior, the ascent, the limits and what travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Federation
from fedkin.methods import METHODS
from fedkin.methods.blocks.minimax import training_loss
from fedkin.methods.drfa import Drfa
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.tfl import Tfl
from fedkin.settings import parse
from methods.plain_loops import nearest_on_simplex
from support import Watched, small_federation, small_setup, stored


def vector(engine: Watched, what: str) -> Any:
    kept = engine.server.state[what]
    return np.array([float(kept[id]) for id in sorted(kept)])


def ran(method: Any, rounds: int, federation: Federation | None = None, **training: Any) -> Watched:
    engine = Watched(small_setup(method, federation, dtype=torch.float64, **training))
    for number in range(1, rounds + 1):
        engine.round(number)
    return engine


# -- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [{}, {"clients_per_round": 3}])
def test_q_zero_is_drfas_ascent_without_snapshots_bit_for_bit(training: dict[str, Any]) -> None:
    """DRFA's rate is gamma tau, with tau = 4 local steps; 0.03125 * 4 is exact."""
    tfl = ran(Tfl(q=0.0, eta_lambda=0.125, floor=0.01, ask_losses="sampled"), 4, **training)
    drfa = ran(Drfa(gamma=0.03125, snapshot=False, floor=0.01), 4, **training)
    assert np.array_equal(vector(tfl, "lam"), vector(drfa, "lam"))
    assert vector(tfl, "lam").std() > 0.01
    for name, tensor in drfa.server.state["params"].items():
        assert torch.equal(tfl.server.state["params"][name], tensor)


def test_eta_zero_is_fedavg_with_equal_weights_bit_for_bit_and_sends_nothing_for_losses() -> None:
    tfl, average = ran(Tfl(eta_lambda=0.0), 3), ran(FedAvg(weights="equal"), 3)
    for name, tensor in average.server.state["params"].items():
        assert torch.equal(tfl.server.state["params"][name], tensor)
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
                w, client = asked[id]["params"], federation[id]
                z = F.relu(F.linear(stored(client.train).double(), w["body.1.weight"], w["body.1.bias"]))
                loss = F.cross_entropy(F.linear(z, w["head.weight"], w["head.bias"]), client.train.y)
                assert float(replies[id]["loss"]) == pytest.approx(float(loss))
                v[k] = 6 / len(replies) * float(loss)
        known = engine.server.state["prior"]
        prior = np.array([len(known) / 6 * float(known[id]) if id in known else 1 / 6 for id in sorted(federation)])
        slope = before - prior
        if divergence == "kl":
            slope = np.log(np.maximum(before, 1e-3) / np.maximum(prior, 1e-3)) + 1
        target = before + eta * (v - q * slope)
        np.testing.assert_allclose(vector(engine, "lam"), nearest_on_simplex(target), atol=1e-6)


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
    clients = [
        replace(client, joins=3 if client.id == late else 1, seen=client.id != unseen) for client in federation.values()
    ]
    engine = Watched(small_setup(METHODS[name](), Federation(clients, federation.task)))
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
    for values in ([1.0, float("inf")], [float("nan"), 1.0]):
        flow = training_loss(setup.federation.task, setup.net.initial)
        next(flow)
        with pytest.raises(MethodError, match=r"the new model's training loss is (inf|nan); lower training.lr"):
            flow.send(torch.tensor(values))


def test_settings_are_checked_before_anything_runs() -> None:
    for table, message in (
        ({"similarity": "dott"}, r"method\.graph\.similarity: .*did you mean 'dot'"),
        ({"control": "randm"}, r"method\.graph\.control: .*did you mean 'random'"),
        ({"layers": 0}, r"method\.graph\.layers: .*at least 1"),
        ({"epsilon": -0.1}, r"method\.graph\.epsilon"),
        ({"centrality": "pagerank"}, r"method\.graph\.centrality"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(Tfl, {"graph": table}, "method")
    federation = small_federation()
    unplanted = Federation([replace(c, group=None) for c in federation.values()], federation.task, "plain")
    with pytest.raises(ConfigError, match=r"method\.graph\.control: 'oracle' needs planted groups"):
        Tfl(graph={"control": "oracle"}).check(unplanted)
