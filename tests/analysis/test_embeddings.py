"""What a round leaves in feature space: against plain loops, and without a trace in the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.analysis import Features, embeddings, measure, read_features
from fedkin.engines import ENGINES, LocalEngine, site
from fedkin.errors import RunError
from fedkin.graph import response_similarity
from fedkin.learning.net import head_of
from fedkin.learning.sgd import load
from fedkin.methods import METHODS
from fedkin.records.recorder import Records
from support import NET_METHODS, by_pattern, default_method, play, present, same, small_setup, with_settings


def trained(name: str = "sfmtl-graph", rounds: int = 2, engine: str = "local", **settings: object) -> LocalEngine:
    made = ENGINES[engine](small_setup(METHODS[name](**settings)))
    play(made, *range(1, rounds + 1))
    return made


def measured(engine: LocalEngine) -> Features:
    return present(measure(engine, engine.setup.federation))


@pytest.mark.parametrize("name", by_pattern(sorted(NET_METHODS)))
def test_a_method_without_exchange_is_measured_too(name: str) -> None:
    engine = LocalEngine(with_settings(small_setup(default_method(name)), alone=True))
    engine.round(1)
    found = measured(engine)
    assert -1 not in found.features.client


def test_points_are_class_means_under_each_clients_own_model() -> None:
    engine = trained()
    found = measured(engine)
    assert sorted(found.ids) == sorted(engine.setup.federation)
    module = engine.setup.net.scratch().eval()
    for client, label, point in zip(found.features.client, found.features.label, found.features.points, strict=True):
        id = found.ids[client]
        load(module, engine.model(id))
        samples = engine.setup.federation[id].train
        rows = [i for i, y in enumerate(samples.labels().tolist()) if y == label]
        with torch.no_grad():
            mean = torch.stack([module.features(samples.inputs(slice(i, i + 1)))[0] for i in rows[:32]]).mean(0)
        np.testing.assert_allclose(point, mean.numpy(), rtol=1e-5, atol=1e-6)
    owned = {(id, y) for id, client in engine.setup.federation.items() for y in client.train.labels().tolist()}
    assert len(found.features.label) == len(owned)


def test_heads_are_compared_as_sfmtl_graph_does() -> None:
    engine = trained()
    found = measured(engine)
    classes, width = engine.setup.federation.task.classes, found.features.points.shape[1]
    h, owned = np.zeros((len(found.ids), classes, width)), np.zeros((len(found.ids), classes), bool)
    for client, label, point in zip(found.features.client, found.features.label, found.features.points, strict=True):
        h[client, label], owned[client, label] = point, True
    heads = [head_of(engine.model(id)) for id in found.ids]
    w, b = (np.stack([head[f"head.{part}"].numpy() for head in heads]) for part in ("weight", "bias"))
    expected = response_similarity(lambda k, places: h[owned][places] @ w[k].T + b[k], owned)
    np.testing.assert_allclose(present(found.heads), expected, atol=1e-5)


def test_anchors_are_those_that_the_method_keeps() -> None:
    engine = trained()
    found = measured(engine)
    anchors = present(found.anchors)
    state = engine.state()["clients"]
    for client, label, point in zip(anchors.client, anchors.label, anchors.points, strict=True):
        np.testing.assert_array_equal(point, state[found.ids[client]]["anchors"][label].numpy())
    assert len(anchors.label) == sum(int(state[id]["known"].sum()) for id in found.ids)
    peers = trained("mapl", hidden=4)
    kept = measured(peers)
    anchors, params = present(kept.anchors), peers.model(kept.ids[0])["prototypes.weight"]
    rows = anchors.client == 0
    np.testing.assert_array_equal(anchors.points[rows], params[anchors.label[rows]].numpy())


def test_a_servers_prototypes_are_points_of_nobody() -> None:
    engine = trained("fedproto")
    found = measured(engine)
    server = found.features.client == -1
    state = engine.state()["server"]
    assert server.sum() == int(state["known"].sum()) > 0
    np.testing.assert_array_equal(
        found.features.points[server], state["prototypes"][found.features.label[server]].numpy()
    )


def test_measuring_leaves_the_engine_as_it_was() -> None:
    engine, untouched = trained(rounds=1), trained(rounds=1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    measure(engine, engine.setup.federation)
    assert torch.equal(before, torch.get_rng_state())
    for one in (engine, untouched):
        one.round(2)
    assert same(engine.models(), untouched.models())


def test_too_many_points_leave_out_whole_clients_the_same_ones_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "_POINTS", 9)
    engine = trained(rounds=1)
    first = measured(engine)
    engine.round(2)
    second = measured(engine)
    assert first.ids == second.ids
    assert first.clients == len(engine.setup.federation) > len(first.ids)
    assert len(first.features.label) <= 9
    for place, id in enumerate(first.ids):
        labels = set(engine.setup.federation[id].train.labels().tolist())
        assert set(first.features.label[first.features.client == place].tolist()) == labels


def test_file_and_back(tmp_path: Path) -> None:
    engine = trained()
    found = measured(engine)
    Records(tmp_path).keep_features(found)
    path = tmp_path / "features" / "round-000002.safetensors"
    again = read_features(path)
    assert (again.round, again.ids, again.clients) == (2, found.ids, found.clients)
    np.testing.assert_array_equal(again.features.points, found.features.points)
    # An engine that passes all through bytes measures the same.
    assert again.to_bytes() == found.to_bytes() == path.read_bytes() == measured(trained(engine="loopback")).to_bytes()
    path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="not the features of a round"):
        read_features(path)


def test_what_has_no_class_means_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained("fedavg", rounds=1)
    # One model for all has no heads to compare.
    assert (measured(engine).heads, measured(engine).anchors) == (None, None)
    assert measure(engine, []) is None
    monkeypatch.setattr(site, "infer", lambda *given: torch.zeros(len(given[4]), 2, 2))
    assert measure(engine, engine.setup.federation) is None
