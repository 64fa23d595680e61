"""MAPL: whom a peer listens to, what travels, and whether planted groups are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin import federate, run
from fedkin.engines import LocalEngine
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from methods.mapl_toys import KINDS, MAPL, PLUS, Ran, ran, setup_of, two_groups

# -- whom a peer listens to ------------------------------------------------------------------------------------


def test_a_neighbour_of_whom_half_was_lost_is_not_mixed_in() -> None:
    """A head without prototypes counts for the graph only; prototypes without a head have no weight."""
    federation = two_groups(6)
    engine = Ran(setup_of(MAPL(warmup=0), federation, dropout=0.4))
    for _ in range(4):
        traffic = engine.round().traffic
        edges: dict[str, set[tuple[str, str]]] = {"head": set(), "prototypes": set()}
        for message in traffic:
            if message.floats:
                edges[message.phase].add((message.sender, message.receiver))
        assert edges["head"] == edges["prototypes"]
    for id, row in engine.rows.items():
        assert sum(row.values()) == pytest.approx(1)
        assert id in row


def perfect(federation: Federation) -> int:
    groups = list(federation.planted.values()) if federation.planted else []
    return sum(groups.count(group) - 1 for group in groups)


@pytest.mark.parametrize("name", ["mapl", pytest.param("mapl-plus", marks=pytest.mark.slow)])
def test_planted_groups_are_found_and_messages_fall_to_the_perfect_count(name: str) -> None:
    federation = two_groups(10)
    engine = Ran(setup_of(KINDS[name](warmup=3), federation))
    shared, heads = [], []
    for _ in range(15):
        traffic = engine.round().traffic
        shared.append(sum(message.floats > 0 and message.phase == "prototypes" for message in traffic))
        heads.append(sum(message.phase == "head" for message in traffic))
    assert shared[:3] == [90, 90, 90]
    assert heads == [0, 0, *shared[2:]]
    after = sum(shared[3:])
    assert perfect(federation) == 40
    assert after == pytest.approx(12 * 40, rel=0.1)
    graph = engine.graph
    labels = np.array([federation[id].group for id in graph.ids])
    same = labels[:, None] == labels[None, :]
    mixing = np.asarray(graph.mixing)
    assert mixing[~same].sum() == 0
    assert (mixing[same] > 0.02).all()
    np.testing.assert_allclose(mixing.sum(1), 1)
    own = np.array([len(federation[id].train) for id in graph.ids])
    fair = own / np.array([own[row].sum() for row in same])
    assert (mixing.diagonal() / fair > 0.4).all()
    assert (mixing.diagonal() / fair < 2.5).all()
    assert len(set(zip(labels, graph.labels, strict=True))) == 2


def test_message_sizes_are_those_of_table_7() -> None:
    """An edge carries d_p K + phi numbers a round: 2 N_e (d_p K + phi) T over N_e undirected edges."""
    federation = two_groups(4)
    engine = LocalEngine(setup_of(MAPL(warmup=0, graph={"step": "released"}), federation))
    sizes = {"prototypes": 12 * 6, "head": 6 * 12 + 6}
    for number in (1, 2):
        traffic = engine.round(number).traffic
        assert sum(message.floats for message in traffic) == 2 * 6 * sum(sizes.values())
        for phase, floats in sizes.items():
            mine = [message for message in traffic if message.phase == phase]
            assert {(message.sender, message.receiver) for message in mine} == {
                (a, b) for a in federation for b in federation if a != b
            }
            assert {message.floats for message in mine} == {floats}
            # Names, shapes, owned classes and the count come on top of four bytes a number.
            assert all(0 < message.bytes - 4 * floats < 400 for message in mine)


@pytest.mark.parametrize(
    "network", ["full", *(pytest.param(n, marks=pytest.mark.slow) for n in ("regular:5", "erdos-renyi:0.6, changing"))]
)
def test_losses_and_changing_networks_are_borne(network: str) -> None:
    """With a third of the messages lost, peers still end up listening to their own group only."""
    federation = two_groups(10)
    engine = LocalEngine(setup_of(MAPL(warmup=2), federation, network=network, dropout=0.3, local_steps=2))
    for number in range(1, 21):
        engine.round(number)
    for id, state in engine.states.items():
        assert sum(state["weights"].values()) == pytest.approx(1)
        across = sum(w for other, w in state["weights"].items() if federation[other].group != federation[id].group)
        # A peer that hears no one like itself keeps a light edge: the logarithm in the objective.
        assert across == 0 or (network != "full" and across < 0.1)
        strangers = {other for other in federation if federation[other].group != federation[id].group}
        assert set(state["dropped"]) <= strangers
        assert network != "full" or set(state["dropped"]) == strangers
        for other in state["refused_by"]:
            assert id in engine.states[other]["dropped"]


@pytest.mark.parametrize("method", [MAPL, PLUS])
def test_on_the_planted_network_groups_learn_as_if_they_were_alone(method: Any) -> None:
    federation, stays_equal = two_groups(8), method(warmup=1, graph={"on": False})
    whole = ran(setup_of(stays_equal, federation, network="planted"), 3)
    for group in ("g0", "g1"):
        members = [client for client in federation.values() if client.group == group]
        alone = ran(setup_of(stays_equal, Federation(members, federation.task, "alone")), 3)
        for client in members:
            one, other = whole.model(client.id), alone.model(client.id)
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_peers_that_sit_out_keep_their_state_and_cost_nothing() -> None:
    federation = two_groups(8)
    engine = Ran(setup_of(MAPL(warmup=1), federation, clients_per_round=6))
    for _ in range(12):
        outcome = engine.round()
        assert {message.receiver for message in outcome.traffic} <= set(outcome.sampled)
    for id, row in engine.rows.items():
        assert {federation[other].group for other in row} == {federation[id].group}


# -- MAPL+ and unlike models -----------------------------------------------------------------------------------


class Deep(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 12), nn.ReLU())


def test_unlike_bodies_work_together_and_mapl_plus_refuses_them() -> None:
    from dataclasses import replace

    federation = two_groups(6)
    setup = setup_of(MAPL(warmup=2), federation)
    deep = Net.build(lambda: (Deep(), nn.Linear(12, 6)), 3)
    shared = {name: tensor for name, tensor in setup.net.initial.items() if name.startswith("head.")}
    with torch.no_grad():
        for name, tensor in shared.items():
            getattr(deep.module.head, name.removeprefix("head.")).copy_(tensor)
    other = Net(deep.module.body, deep.module.head)
    nets = {id: other if k % 3 == 0 else setup.net for k, id in enumerate(sorted(federation))}
    engine = ran(replace(setup, nets=nets), 12)
    for id, row in engine.rows.items():
        assert {federation[near].group for near in row} == {federation[id].group}
    with pytest.raises(ConfigError, match=r"mapl-plus.*same model"):
        LocalEngine(replace(setup, nets=nets, method=PLUS()))


# -- whole runs ---------------------------------------------------------------------------------------------------


def test_a_run_on_digits_finds_the_two_groups_of_classes() -> None:
    federation = federate("digits", "mapl", clients=6, per_class=[10, 30], test_per_class=8, seed=1)
    result = run(
        "mapl", federation, rounds=10, warmup=4, augment={"flip": 0.0, "crop": 0.6}, training={"batch_size": 32},
        model=Mlp(hidden=(32,)),
    )  # fmt: skip
    assert result.accuracy > 0.5
    assert result.rounds[0]["groups"]["found"] == 1
    assert (result.rounds[-1]["groups"]["found"], result.rounds[-1]["groups"]["ari"]) == (2, 1.0)


@pytest.mark.parametrize("name", ["mapl", "mapl-plus", "pfedsim", "dfedavgm"])
def test_running_statistics_go_where_the_body_goes(name: str) -> None:
    """Of peers whose bodies stay their own, statistics do; mixed bodies have the mixed ones, whole and finite."""
    federation = two_groups(4)
    settings = {"graph": {"on": False}} if name.startswith("mapl") else {}

    def made() -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(nn.Flatten(), nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU()), nn.Linear(12, 6)

    plain = setup_of(METHODS[name](**settings), federation)
    together = ran(replace(plain, net=Net.build(made, 5)), 1)
    apart = ran(replace(plain.having(network="none"), net=Net.build(made, 5)), 1) if name.startswith("mapl") else None
    mean, count = "body.2.running_mean", "body.2.num_batches_tracked"
    models = {id: together.model(id) for id in federation}
    assert all(torch.isfinite(model[mean]).all() and int(model[count]) == 5 for model in models.values())
    if apart is None:
        return
    own = {id: apart.model(id)[mean] for id in federation}
    for id, model in models.items():
        expected = torch.stack(list(own.values())).mean(0) if name == "mapl-plus" else own[id]
        torch.testing.assert_close(model[mean], expected)
