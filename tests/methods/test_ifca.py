"""IFCA: the estimate of a client's cluster, the C-fold download, the starts of the models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedkin.engines import LocalEngine
from fedkin.engines.site import Running
from fedkin.federation import Client, Federation, Samples
from fedkin.flow import Infer, Message
from fedkin.learning import Net
from fedkin.learning.net import BodyHead, redrawn
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.ifca import Ifca
from methods.plain_loops import BODY, HEAD, cross_entropy
from support import after, finish, small_federation


def loss_of(engine: LocalEngine, params: Any, id: str) -> float:
    """Written out: mean cross-entropy on the client's training samples."""
    train: Any = engine.setup.federation[id].train
    return float(cross_entropy(params, train.x, train.y))


@pytest.mark.parametrize("clusters", [2, 5])
def test_the_download_is_c_models_and_the_upload_is_one(clusters: int) -> None:
    engine, outcome = after(Ifca(clusters=clusters), 2)
    size = engine.setup.net.parameters()
    one = Message(params=engine.setup.net.initial).nbytes
    for message in outcome.traffic:
        if message.sender == "server":
            assert message.floats == clusters * size
            assert 0.9 * clusters * one < message.bytes < 1.1 * clusters * one
        else:
            assert message.floats == size


def test_a_shared_body_travels_once_and_is_one() -> None:
    engine, outcome = after(Ifca(clusters=4, share="body"), 3)
    initial = engine.setup.net.initial
    head, body = (sum(initial[name].numel() for name in names) for names in (HEAD, BODY))
    assert {message.floats for message in outcome.traffic if message.sender == "server"} == {body + 4 * head}
    models = engine.server.state["models"]
    for name in BODY:
        assert all(torch.equal(models["0"][name], models[k][name]) for k in models)
    assert not torch.equal(models["0"]["head.weight"], models["1"]["head.weight"])


def test_models_start_apart_but_for_the_first() -> None:
    engine, _ = after(Ifca(clusters=3), 0)
    models, initial = engine.server.state["models"], engine.setup.net.initial
    assert models["0"] is initial
    for name in (*HEAD, *BODY):
        for one, other in (("0", "1"), ("0", "2"), ("1", "2")):
            assert not torch.equal(models[one][name], models[other][name])
        bound = float(initial[name].abs().max())
        assert 0.4 * bound < float(models["1"][name].abs().max()) < 2.5 * bound
    heads, _ = after(Ifca(clusters=3, redraw="head"), 0)
    models = heads.server.state["models"]
    assert all(torch.equal(models["2"][name], initial[name]) for name in BODY)
    assert all(not torch.equal(models["2"][name], initial[name]) for name in HEAD)


class Scaled(nn.Module):
    """A module of a user's own, with nothing to reset it by."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


def test_redrawing_is_keyed_leaves_buffers_and_frozen_parts_and_knows_modules_without_reset() -> None:
    frozen = nn.Linear(5, 5)
    frozen.requires_grad_(False)
    net = Net.build(lambda: (nn.Sequential(frozen, Scaled(), nn.BatchNorm1d(6)), nn.Linear(6, 3)), 0)
    state, kept = torch.get_rng_state(), net.frozen["body.0.weight"].clone()
    one, again, other = redrawn(net, 1), redrawn(net, 1), redrawn(net, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.keys() == net.initial.keys()
    assert all(torch.equal(one[name], again[name]) for name in one)
    for name in ("body.1.weight", "head.weight", "head.bias"):
        assert not torch.equal(one[name], net.initial[name])
        assert not torch.equal(one[name], other[name])
    own, initial = one["body.1.weight"], net.initial["body.1.weight"]
    assert torch.equal(own.flatten().sort().values, initial.flatten().sort().values)
    for name in ("body.2.running_mean", "body.2.num_batches_tracked"):
        assert torch.equal(one[name], net.initial[name])
    # What is frozen is every module's: a draw must not reach it.
    assert "body.0.weight" not in one
    assert torch.equal(net.frozen["body.0.weight"], kept)


@pytest.mark.parametrize("choose", ["last", "anew"])
def test_a_choice_is_work_for_the_runner(choose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `use` wants run it yields: without a runner no net is run."""
    engine, _ = after(Ifca(clusters=3, choose=choose), 2, small_federation(8), clients_per_round=2)
    cluster = engine.server.state["cluster"]
    monkeypatch.setattr(BodyHead, "forward", lambda *_: 1 / 0)
    for id in engine.setup.federation:
        used = engine.site.model_or_flow(id, engine.offer(id))
        assert isinstance(used, Running)
        if choose == "last" and id in cluster:
            assert finish(used.flow, None) is engine.server.state["models"][cluster[id]]
        else:
            assert isinstance(next(used.flow), Infer)


@pytest.mark.parametrize(("choose", "clients_per_round"), [("last", 2), ("anew", 2), ("anew", "all")])
def test_a_client_uses_its_last_choice_or_the_model_that_fits_it_best(choose: Any, clients_per_round: Any) -> None:
    engine, outcome = after(
        Ifca(clusters=3, choose=choose), 2, small_federation(9), clients_per_round=clients_per_round, local_steps=10
    )
    models, cluster = engine.server.state["models"], engine.server.state["cluster"]
    for id in engine.setup.federation:
        losses = {k: loss_of(engine, params, id) for k, params in models.items()}
        best = min(losses, key=lambda k: losses[k])
        assert engine.model(id) is models[cluster.get(id, best) if choose == "last" else best]
    # To look costs nothing that is counted.
    assert {m.phase for m in outcome.traffic} == {"train"}


def test_warm_up_is_fedavg_and_then_heads_part() -> None:
    method = Ifca(clusters=3, warmup=2)
    engine, outcome = after(method, 1)
    assert outcome.graph is None
    fedavg, _ = after(FedAvg(), 2)
    engine.round(2)
    models, common = engine.server.state["models"], fedavg.server.state["params"]
    assert sorted(models) == ["0", "1", "2"]
    for k in models:
        assert all(torch.equal(models[k][name], common[name]) for name in BODY)
        assert all(torch.equal(models[k][name], common[name]) == (k == "0") for name in HEAD)
    assert engine.round(3).graph is not None
    assert not torch.equal(engine.server.state["models"]["0"]["body.1.weight"], common["body.1.weight"])


def test_a_client_without_samples_uses_the_members_mean() -> None:
    empty = Samples(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    federation = small_federation(6)
    some = next(iter(federation.values()))
    clients = [*federation.values(), Client("without", empty, some.test, seen=False)]
    engine, _ = after(Ifca(), 3, Federation(clients, federation.task), local_steps=10)
    models, cluster = engine.server.state["models"], engine.server.state["cluster"]
    for name, tensor in engine.models()["without"].items():
        mean = sum(models[own][name].double() for own in cluster.values()) / len(cluster)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
