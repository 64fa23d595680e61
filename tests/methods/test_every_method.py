"""What must hold for every method: one table, all methods through it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fedkin.engines import LocalEngine
from fedkin.errors import MethodError
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.learning import Net
from fedkin.learning.devices import CPU, Precision, _has_bf16
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.testing import PROMISES, Checked, Promise, _models, _rests
from methods import cases
from support import (
    NET_METHODS,
    by_pattern,
    default_method,
    newcomers,
    plain_fedavg,
    small_federation,
    small_setup,
)

# Settings that make a method's graph, groups and mixing matter within three rounds of a tiny federation.
VARIANTS: dict[str, ServerMethod | PeerMethod] = {
    "fedavg-equal": FedAvg(weights="equal"),
    "sfmtl-strong": SfmtlGraph(lam=0.4, anchor_weight=0.01),
    "sfmtl-mean": SfmtlGraph(lam=0.4, anchor_weight=0.01, anchors="mean"),
    **cases.CASES,
}
CASES = {**{name: default_method(name) for name in NET_METHODS}, **VARIANTS}


@cache
def checked(name: str) -> Checked:
    """The case's runs, which its promises share."""
    return Checked(CASES[name])


# A variant draws as its method does, and what `travels` and `unordered` compare are repeats too.
OF_DEFAULTS = {"repeats", "draws"}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_a_method_keeps_its_promises(name: str, promise: Promise) -> None:
    keeps(name, promise)


@pytest.mark.slow
@pytest.mark.parametrize(
    "promise", [p for p in PROMISES if p.name not in OF_DEFAULTS], ids=lambda promise: promise.name
)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_keeps_its_promises(name: str, promise: Promise) -> None:
    keeps(name, promise)


def keeps(name: str, promise: Promise) -> None:
    if promise.server_only and not isinstance(CASES[name], ServerMethod):
        pytest.skip("it has no server")
    if promise.name == "rests":
        # FedProto predicts by prototypes, which stand in for the head; FedEM's proportions have no rate. IFCA with the
        # test draws the models of all clusters once their number is known.
        moving = {"fedproto": "head.", "fedem": "head.log_proportions"}.get(name, "\0")
        _rests(checked(name), 1 if name == "ifca-same" else 0, moving)
    else:
        promise.check(checked(name))


@pytest.mark.parametrize("name", NET_METHODS)
def test_a_recorded_graph_is_of_its_clients(name: str) -> None:
    """No client is its own neighbour, and what a client takes of others and itself is a mean."""
    engine = LocalEngine(small_setup(CASES[name]))
    for graph in (engine.round(1).graph, engine.round(2).graph):
        if graph is not None:
            assert list(graph.ids) == sorted(set(graph.ids) & set(engine.setup.federation))
            assert not graph.weights.diagonal().any()
            assert graph.groups is None or graph.groups.keys() == set(graph.ids)
            if graph.mixing is not None:
                np.testing.assert_allclose(graph.mixing.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, kind in NET_METHODS.items() if kind.kind == "global"])
def test_an_unseen_client_has_the_global_model(name: str) -> None:
    new = sorted(small_federation())[3]
    engine = LocalEngine(small_setup(METHODS[name](), newcomers(small_federation(), [new])))
    engine.round(1)
    for key, tensor in engine.server.state["params"].items():
        assert torch.equal(engine.model(new)[key], tensor)


@pytest.mark.skipif(not _has_bf16(CPU), reason="this processor has no instructions for bfloat16")
@pytest.mark.parametrize("name", NET_METHODS)
def test_a_method_trains_in_bf16(name: str) -> None:
    """Not in float32 without a word, because its loss goes past the features of the model."""
    setup = small_setup(CASES[name], dtype=torch.float32)
    body, head = setup.net.module.body, setup.net.module.head
    made = []
    precisions: tuple[Precision, ...] = ("float32", "bf16")
    for how in precisions:
        engine = LocalEngine(replace(setup, net=Net(body, head, precision=how)))
        engine.round(1)
        made.append(engine.model(min(setup.federation)))
    unlike = [key for key in made[0] if key.startswith("body.") and not torch.equal(made[0][key], made[1][key])]
    assert unlike


@pytest.mark.parametrize("name", ["local", "fedavg", "sfmtl-graph"])
def test_one_client_alone_is_plain_sgd(name: str) -> None:
    method = SfmtlGraph(lam=0.0) if name == "sfmtl-graph" else METHODS[name]()
    federation = small_federation().reorder([sorted(small_federation())[0]])
    setup = small_setup(method, federation, momentum=0.5, weight_decay=0.01, clip=0.7)
    (params,) = _models(LocalEngine(setup)).values()
    module = setup.net.scratch()
    for key, tensor in plain_fedavg(module.body, module.head, federation, setup.training).items():
        torch.testing.assert_close(params[key], tensor, rtol=1e-6, atol=1e-6)


def test_errors_name_the_client_and_the_phase() -> None:
    setup = small_setup(Local(), lr=1e30)
    with pytest.raises(MethodError, match=r"round \d, client 'site-.', phase 'train': the training loss became"):
        _models(LocalEngine(setup), rounds=3)
