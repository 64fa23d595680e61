"""FLT: groups, averages, control graphs and settings."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import codec
from fedkin.engines import LocalEngine
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt import Flt, Taskonomy
from fedkin.methods.flt_same import FltSame
from fedkin.methods.local import Local
from fedkin.settings import parse
from methods.flt_world import (
    assert_equal_models,
    engine_after,
    grouped,
    groups_of,
    image_federation,
    images,
    models,
    public,
    raw,
    samples,
    score,
    with_public,
)
from support import small_federation, small_setup

# -- groups -----------------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_papers() -> None:
    method = Flt()
    assert (method.k, method.average, method.encoder.fine_tune) == (5, "groups", 5)
    how = method.graph
    assert (how.embedding, how.distance, how.gamma, how.cluster, how.linkage) == ("umap", "min", 1.0, "rows", "ward")
    assert how.groups == "gap"


def test_flt_finds_the_groups_and_their_number_with_umap_and_without_a_warning() -> None:
    pytest.importorskip("umap")
    federation = grouped(12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = engine_after(Flt(), federation, 1)
    assert score(groups_of(engine), federation) == 1.0


def test_without_umap_learn_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.flt.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"method\.graph\.embedding: 'umap' needs umap-learn: pip install"):
        Flt().check(grouped())


@pytest.mark.parametrize("kind", ["mlp", "linear", "none"])
@pytest.mark.parametrize("groups", [3, "ratio", "gap", "silhouette"])
def test_planted_groups_are_found_for_shuffled_ids(kind: str, groups: Any) -> None:
    federation = grouped()
    method = raw(groups, k=2, encoder={"kind": kind, "fine_tune": 0})
    outcome = LocalEngine(small_setup(method, federation)).round(1)
    assert outcome.graph is not None
    assert set(outcome.graph.ids) == set(federation)
    assert score(dict(outcome.graph.groups or {}), federation) == 1.0


def test_labels_that_differ_are_seen_by_tests_and_not_by_centres() -> None:
    """The planted groups of the shared tests differ in labels only."""
    federation = small_federation()
    assert score(groups_of(engine_after(raw("ratio"), federation, 1)), federation) < 0.5
    assert score(groups_of(engine_after(FltSame(), federation, 1)), federation) == 1.0


# -- averages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (raw(1), FedAvg()),
        (FltSame(average="neighbours", graph={"gamma": 1e9}), FedAvg()),
        (raw(average="neighbours", graph={"control": "uniform", "gamma": 1e9}), FedAvg()),
        (FltSame(graph={"control": "uniform"}), FedAvg()),
        (raw(average="neighbours", graph={"gamma": 0.0}), Local()),
        (raw(average="neighbours", graph={"gamma": 0.0, "adjacency": "soft"}), Local()),
        (raw(12), Local()),
        (raw(graph={"control": "self"}), Local()),
        (FltSame(average="neighbours", graph={"control": "self"}), Local()),
    ],
)
@pytest.mark.parametrize("clients_per_round", ["all", 4])
def test_complete_graphs_are_fedavg_and_empty_ones_local_training(
    method: Taskonomy, limit: Any, clients_per_round: Any
) -> None:
    federation = grouped()
    one, other = (engine_after(each, federation, 3, clients_per_round=clients_per_round) for each in (method, limit))
    assert_equal_models(models(one), models(other))


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_group_shares_one_object_also_after_a_restart(average: Any) -> None:
    federation = grouped()
    engine = engine_after(raw(k=2, average=average), federation, 2)
    again = LocalEngine(engine.setup)
    again.restore(codec.decode(codec.encode(engine.state())))
    for own in (engine, again):
        assert len(own.server.state["models"]) == 3
        objects = {id: own.model(id) for id in federation}
        for one in federation:
            for other in federation:
                assert (objects[one] is objects[other]) == (federation[one].group == federation[other].group)


# -- controls and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "control"),
    [(raw(), name) for name in ("random", "uniform", "oracle", "shuffled", "self")]
    + [(raw(average="neighbours"), "shuffled"), (FltSame(), "random"), (FltSame(average="neighbours"), "oracle")],
)
def test_control_graphs_change_the_graph_and_nothing_else(method: Taskonomy, control: str) -> None:
    federation = grouped()
    changed = method.model_copy(update={"graph": method.graph.model_copy(update={"control": control})})
    plain, other = (LocalEngine(small_setup(each, federation)) for each in (method, changed))
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
    graph = LocalEngine(small_setup(raw(k=2, graph={"control": "shuffled"}), grouped())).round(1).graph
    assert graph is not None
    linked = np.asarray(graph.weights) > 0
    same = graph.labels[:, None] == graph.labels[None]
    assert np.array_equal(linked, same & ~np.eye(12, dtype=bool))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"graph": {"groups": 13}}, r"method\.graph\.groups: 13 groups, but the federation has 12 clients"),
        ({"encoder": {"kind": "grey"}}, r"method\.encoder\.kind: 'grey' needs images"),
    ],
)
def test_settings_that_cannot_work_are_refused(table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Flt.model_validate(table).check(grouped())


@pytest.mark.parametrize(
    ("kind", "table", "match"),
    [
        (Flt, {"graph": {"gamma": -1.0}}, r"method\.graph\.gamma.*at least 0"),
        (Flt, {"graph": {"groups": 0}}, r"method\.graph\.groups.*at least 1"),
        (Flt, {"graph": {"control": "randm"}}, r"method\.graph\.control: .*did you mean 'random'"),
        (Flt, {"k": 0}, r"method\.k"),
        (Flt, {"encoder": {"kind": "none", "pretrain": "mnist"}}, "pretrain: kind 'none' has nothing to train"),
        (Flt, {"encoder": {"limit": 10}}, "name it in pretrain"),
        (FltSame, {"k": 3}, r"method\.k: no such setting"),
        (FltSame, {"alpha": 1.0}, r"method\.alpha"),
    ],
)
def test_settings_out_of_range_are_refused_when_read(kind: Any, table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(kind, table, "method")


def test_oracle_needs_planted_groups() -> None:
    clients = [Client(id, samples("a", 8, k), samples("a", 4, k)) for k, id in enumerate("xyz")]
    with pytest.raises(ConfigError, match=r"method\.graph\.control: 'oracle' needs planted groups"):
        FltSame(graph={"control": "oracle"}).check(Federation(clients, Task(6, (8,))))


def test_images_without_a_scale_are_refused_by_an_encoder_of_brightness() -> None:
    bad = Samples(images(5, None, 0).x, images(5, None, 0).y)
    federation = Federation([Client("x", bad, bad)], Task(2, (1, 8, 8)))
    with pytest.raises(ConfigError, match=r"method\.encoder\.kind: .*client 'x' run from 0 to 25\d"):
        Flt(encoder={"pretrain": "clothes"}).check(federation)
    for kind in ("auto", "linear"):
        raw("ratio", encoder={"kind": kind}).check(federation)


def test_pretraining_data_of_another_shape_are_refused_by_name() -> None:
    method = Flt(encoder={"pretrain": "clothes"})
    with pytest.raises(ConfigError, match=r"method\.encoder\.pretrain: the inputs of clothes have shape \(3, 9, 9\)"):
        LocalEngine(with_public(method, image_federation(), public((3, 9, 9)))).round(1)


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (FltSame(average="neighbours"), r"method\.average: 'neighbours' compares all pairs of 12 clients"),
        (raw(graph={"control": "random"}), r"method\.graph\.control: 'random' compares all pairs of 12 clients"),
    ],
)
def test_what_needs_all_distances_is_refused_for_very_many_clients(
    method: Taskonomy, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method.check(grouped())
    monkeypatch.setattr("fedkin.methods.flt.LARGEST", 11)
    with pytest.raises(ConfigError, match=match):
        method.check(grouped())


@pytest.mark.parametrize("method", [raw(k=2), raw(k=2, graph={"embedding": "pca"}), FltSame()])
def test_of_very_many_clients_some_make_the_groups_and_the_others_join_them(
    method: Taskonomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.methods.flt.LARGEST", 12)
    federation = grouped(36)
    engine, again = (engine_after(method, federation, 2) for _ in range(2))
    assert engine.server.state["founders"] == 12
    assert engine.server.state["adjacency"].shape == (12, 12)
    assert score(groups_of(engine), federation) == 1.0
    graph = engine_after(method, federation, 1).server.graph
    assert len(graph.ids) == 36
    assert_equal_models(models(engine), models(again))
