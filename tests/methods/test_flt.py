"""FLT: groups, averages, control graphs and settings."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import codec
from fedkin.engines import LocalEngine, Witness
from fedkin.errors import ConfigError
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt.method import Flt, State, along_edges, inside_groups
from fedkin.methods.flt.relatedness import RelatednessSettings
from fedkin.methods.local import Local
from fedkin.settings import parse
from methods.flt_world import (
    assert_equal_models,
    engine_after,
    grouped,
    groups_of,
    image_federation,
    images,
    member,
    models,
    public,
    samples,
    score,
    with_public,
)
from support import small_federation, small_setup

# -- groups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "linear", "none"])
@pytest.mark.parametrize("groups", [3, "ratio", "gap", "silhouette"])
def test_planted_groups_are_found_for_shuffled_ids(kind: str, groups: Any) -> None:
    federation = grouped()
    outcome = LocalEngine(small_setup(Flt(k=2, encoder={"kind": kind}, graph={"groups": groups}), federation)).round(1)
    assert outcome.graph is not None
    assert set(outcome.graph.ids) == set(federation)
    assert score(dict(outcome.graph.groups or {}), federation) == 1.0


@pytest.mark.slow
@pytest.mark.slow
def test_umap_separates_groups_without_a_warning() -> None:
    pytest.importorskip("umap")
    federation = grouped(18)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = engine_after(Flt(k=2, graph={"embedding": "umap", "groups": 3, "neighbours": 5}), federation, 1)
    assert score(groups_of(engine), federation) == 1.0


# -- averages -------------------------------------------------------------------------------------------------


def state_of(values: dict[str, float], edges: Any, group: dict[str, int] | None = None) -> State:
    ids = sorted(values)
    number = group or {id: place for place, id in enumerate(ids)}
    return State(
        row={id: place for place, id in enumerate(ids)},
        adjacency=torch.as_tensor(edges),
        model={id: str(own) for id, own in number.items()},
        models={str(n): {"w": torch.full((1,), -1.0 - n)} for n in range(len(ids))},
        sizes=dict.fromkeys(ids, 2),
        signatures={},
        founders=len(ids),
        group=number,
        changed={},
    )


def replies_of(values: dict[str, float], n: int = 1) -> dict[str, Message]:
    return {id: Message(params={"w": torch.tensor([float(value)])}, n=n) for id, value in values.items()}


def neighbours_mean(state: State, replies: dict[str, Message], stale: bool = False) -> list[float]:
    """Case I: each client's new value, in the order of ids."""
    models, model = along_edges(state, replies, stale)
    return [float(models[model[id]]["w"]) for id in sorted(model)]


def groups_mean(state: State, replies: dict[str, Message], stale: bool = False) -> list[float]:
    """Case II: each client's new value, in the order of ids."""
    models = inside_groups(state, replies, stale)
    return [float(models[state["model"][id]]["w"]) for id in sorted(state["model"])]


def test_averages_are_of_the_models_as_they_came() -> None:
    """Five clients that are all neighbours: 3.2 for each, and never an average of averages."""
    values = dict(zip("abcde", [0.0, 1, 2, 3, 10], strict=True))
    everyone = 1 - torch.eye(5)
    assert neighbours_mean(state_of(values, everyone), replies_of(values)) == pytest.approx([3.2] * 5)
    chain = torch.diag(torch.ones(4), 1) + torch.diag(torch.ones(4), -1)
    assert neighbours_mean(state_of(values, chain), replies_of(values)) == pytest.approx([0.5, 1, 2, 5, 6.5])
    state = state_of(values, chain, {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1})
    assert groups_mean(state, replies_of(values)) == pytest.approx([1, 14 / 3, 1, 14 / 3, 14 / 3])


def test_only_participants_enter_unless_stale_models_are_wanted() -> None:
    values = dict(zip("abcd", [0.0, 4, 8, 12], strict=True))
    edges = torch.tensor([[0, 1.0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    came = replies_of({"b": 4.0})
    state = state_of(values, edges)
    # a has b as a neighbour; no neighbour of c and d took part: they keep models -3 and -4.
    assert neighbours_mean(state, came) == pytest.approx([4, 4, -3, -4])
    mixed = (4 * 1 + -1 * 2) / 3
    assert neighbours_mean(state, came, stale=True) == pytest.approx([mixed, mixed, -3.5, -3.5])
    state = state_of(values, edges, {"a": 0, "b": 0, "c": 1, "d": 1})
    assert groups_mean(state, came) == pytest.approx([4, 4, -2, -2])
    assert groups_mean(state, came, stale=True) == pytest.approx([mixed, mixed, -2, -2])


@pytest.mark.parametrize(
    "method",
    [
        Flt(graph={"groups": 1}),
        Flt(graph={"groups": 3}, average="neighbours") .model_copy(update={"graph": RelatednessSettings(gamma=1e9)}),
        Flt(graph={"control": "uniform", "gamma": 1e9}, average="neighbours"),
        Flt(graph={"control": "uniform"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("clients_per_round", ["all", 4])
def test_a_complete_graph_is_fedavg_bit_for_bit(method: Flt, clients_per_round: Any) -> None:
    federation = grouped()
    one = engine_after(method, federation, 3, clients_per_round=clients_per_round)
    assert_equal_models(models(one), models(engine_after(FedAvg(), federation, 3, clients_per_round=clients_per_round)))


@pytest.mark.parametrize(
    "method",
    [
        Flt(graph={"gamma": 0.0}, average="neighbours"),
        Flt(graph={"gamma": 0.0, "adjacency": "soft"}, average="neighbours"),
        Flt(graph={"control": "self"}),
        Flt(graph={"groups": 12}),
        Flt(graph={"control": "self"}, average="neighbours"),
    ],
)
@pytest.mark.parametrize("clients_per_round", ["all", 4])
def test_an_empty_graph_is_local_training_bit_for_bit(method: Flt, clients_per_round: Any) -> None:
    federation = grouped()
    one = engine_after(method, federation, 3, clients_per_round=clients_per_round)
    assert_equal_models(models(one), models(engine_after(Local(), federation, 3, clients_per_round=clients_per_round)))


def test_groups_are_fedavg_among_their_members() -> None:
    federation = grouped()
    one = engine_after(Flt(graph={"groups": 3}), federation, 3)
    for group in "abc":
        ids = [id for id in federation if federation[id].group == group]
        alone = engine_after(FedAvg(), federation.reorder(ids), 3)
        assert_equal_models(models(alone), models(one))


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_group_shares_one_object_also_after_a_restart(average: Any) -> None:
    federation = grouped()
    engine = engine_after(Flt(k=2, average=average, graph={"groups": 3}), federation, 2)
    again = LocalEngine(engine.setup)
    again.restore(codec.decode(codec.encode(engine.state())))
    for own in (engine, again):
        assert len(own.server.state["models"]) == 3
        objects = {id: own.model(id) for id in federation}
        for one in federation:
            for other in federation:
                assert (objects[one] is objects[other]) == (federation[one].group == federation[other].group)


# -- controls and settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["groups", "neighbours"])
@pytest.mark.parametrize("control", ["random", "uniform", "oracle", "shuffled", "self"])
def test_control_graphs_change_the_graph_and_nothing_else(control: str, average: Any) -> None:
    federation = grouped()
    plain, other = (
        LocalEngine(small_setup(Flt(average=average, graph={"groups": 3, "control": name}), federation))
        for name in ("none", control)
    )
    one, two = plain.round(1), other.round(1)
    assert one.sampled == two.sampled
    for id in federation:
        assert torch.equal(plain.server.state["signatures"][id], other.server.state["signatures"][id])
    assert one.graph is not None
    assert two.graph is not None
    found = dict(two.graph.groups or {})
    sizes = sorted(np.bincount(list(found.values())).tolist())
    if control == "oracle":
        assert score(found, federation) == 1.0
    elif control in ("random", "shuffled"):
        assert sizes == [4, 4, 4]
        assert score(found, federation) < 0.5
        real, drawn = np.asarray(one.graph.weights), np.asarray(two.graph.weights)
        assert real.sum() == drawn.sum()
        assert not np.array_equal(real, drawn)
    else:
        assert sizes == ([12] if control == "uniform" else [1] * 12)


def test_shuffled_groups_go_with_the_shuffled_graph() -> None:
    federation = grouped()
    method = Flt(k=2, graph={"groups": 3, "control": "shuffled"})
    graph = LocalEngine(small_setup(method, federation)).round(1).graph
    assert graph is not None
    linked = np.asarray(graph.weights) > 0
    same = graph.labels[:, None] == graph.labels[None]
    assert np.array_equal(linked, same & ~np.eye(12, dtype=bool))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"graph": {"groups": 13}}, r"method\.graph\.groups: 13 groups, but the federation has 12 clients"),
        ({"encoder": {"kind": "grey"}, "graph": {"groups": 2}}, r"method\.encoder\.kind: 'grey' needs images"),
    ],
)
def test_settings_that_cannot_work_are_refused(table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Flt(**table).check(grouped())


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"graph": {"gamma": -1.0}}, r"method\.graph\.gamma.*at least 0"),
        ({"graph": {"groups": 0}}, r"method\.graph\.groups.*at least 1"),
        ({"graph": {"control": "randm"}}, r"method\.graph\.control: .*did you mean 'random'"),
        ({"k": 0}, r"method\.k"),
        ({"encoder": {"kind": "none", "fine_tune": 1}}, "fine_tune: kind 'none' has nothing to train"),
        ({"encoder": {"limit": 10}}, "name it in pretrain"),
        ({"encoder": {"kind": "none"}}, "encoder: for signatures of centres only.*number or another rule"),
        ({"k": 3}, "k: for signatures of centres only"),
        ({"signature": "centres"}, "graph.groups: 'same' tests signatures of moments; take signature = 'moments'"),
        ({"signature": "moments", "graph": {"groups": 2, "embedding": "pca"}}, "graph.embedding: for signatures of"),
        ({"graph": {"groups": "sam"}}, r"method\.graph\.groups.*did you mean 'same'"),
    ],
)
def test_settings_out_of_range_are_refused_when_read(table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(Flt, table, "method")


def test_oracle_needs_planted_groups() -> None:
    clients = [Client(id, samples("a", 8, k), samples("a", 4, k)) for k, id in enumerate("xyz")]
    with pytest.raises(ConfigError, match=r"method\.graph\.control: 'oracle' needs planted groups"):
        Flt(graph={"control": "oracle"}).check(Federation(clients, Task(6, (8,))))


def test_images_without_a_scale_are_refused_by_an_encoder_of_brightness() -> None:
    bad = Samples(images(5, None, 0).x, images(5, None, 0).y)
    federation = Federation([Client("x", bad, bad)], Task(2, (1, 8, 8)))
    with pytest.raises(ConfigError, match=r"method\.encoder\.kind: .*client 'x' run from 0 to 25\d"):
        Flt(graph={"groups": "ratio"}).check(federation)
    Flt(encoder={"kind": "linear"}, graph={"groups": "ratio"}).check(federation)


def test_pretraining_data_of_another_shape_are_refused_by_name() -> None:
    method = Flt(encoder={"pretrain": "clothes"}, graph={"groups": "ratio"})
    with pytest.raises(ConfigError, match=r"method\.encoder\.pretrain: the inputs of clothes have shape \(3, 9, 9\)"):
        LocalEngine(with_public(method, image_federation(), public((3, 9, 9)))).round(1)


def test_labels_that_differ_are_seen_by_moments_and_not_by_centres() -> None:
    """The planted groups of the shared tests differ in labels only."""
    federation = small_federation()
    centres, tests = (Flt(graph={"groups": "ratio"}), Flt())
    assert score(groups_of(engine_after(centres, federation, 1)), federation) < 0.5
    assert score(groups_of(engine_after(tests, federation, 1)), federation) == 1.0


# -- signatures of moments ----------------------------------------------------------------------------------------


def test_with_nothing_told_the_groups_are_found_and_no_encoder_travels() -> None:
    federation, witness = grouped(), Witness()
    engine = LocalEngine(small_setup(Flt(), federation), observers=[witness])
    first = engine.round(1)
    assert score(groups_of(engine), federation) == 1.0
    seen = {ask.phase: {name for reply in replies.values() for name in reply} for _, ask, replies in witness.asks}
    assert seen["sign_moments"] == {"signature"}
    assert set(seen) == {"spread", "sign_moments", "train"}
    assert max(m.bytes for m in first.traffic if m.phase == "sign_moments") < 4096


def test_the_tests_behind_groups_are_recorded() -> None:
    late = member(30, "b", joins=2)
    engine = engine_after(Flt(), grouped(12, extra=[late]), 1)
    graph = engine.round(2).graph
    assert graph is not None
    assert graph.evidence is not None
    assert graph.evidence.nodes[0].rejected
    assert set(graph.evidence.leaf) == set(grouped(12))
    assert set(graph.values["verdict"]) == {"same"}
    assert engine_after(Flt(graph={"groups": 3}), grouped(12), 1).server.state["tests"] is None


def test_one_distribution_is_one_group_with_nothing_told() -> None:
    clients = [member(number, "a") for number in range(12)]
    federation = Federation(clients, Task(6, (8,)), "one")
    assert len(set(groups_of(engine_after(Flt(), federation, 1)).values())) == 1


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_given_number_can_be_cut_from_moments_too(average: Any) -> None:
    federation = grouped()
    method = Flt(signature="moments", average=average, graph={"groups": 3})
    engine = engine_after(method, federation, 1)
    assert score(groups_of(engine), federation) == 1.0
    linked = engine.server.state["adjacency"].double()
    same = np.array([federation[id].group for id in sorted(federation, key=engine.server.state["row"].__getitem__)])
    assert np.array_equal(linked.numpy() > 0, (same[:, None] == same) & ~np.eye(12, dtype=bool))


def test_changed_data_are_signed_again_with_moments_too() -> None:
    change = member(40, "a", changes=[Change(2, samples("b", 30, 7), samples("b", 10, 8), "b")])
    federation = grouped(12, extra=[change])
    engine = engine_after(Flt(), federation, 1)
    before = groups_of(engine)[change.id]
    engine.round(2)
    engine.round(3)
    after = groups_of(engine)
    fellows = [id for id in federation if federation[id].group == "b"]
    assert after[change.id] == after[fellows[0]] != before


def test_a_newcomer_joins_by_its_moments() -> None:
    federation = grouped(12, extra=[member(30, "b", joins=2)])
    engine = engine_after(Flt(), federation, 2)
    assert score(groups_of(engine), federation) == 1.0
