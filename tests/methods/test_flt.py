"""FLT: groups, averages, control graphs and settings."""

from __future__ import annotations

import sys
import tracemalloc
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from fedkin import graph as g
from fedkin.data.dataset import Dataset, Part
from fedkin.engines import LocalEngine, Setup
from fedkin.engines.privacy import Privacy
from fedkin.errors import ConfigError
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.methods.blocks.clusters import continued
from fedkin.methods.blocks.taskonomy import Taskonomy, along_edges, threshold
from fedkin.methods.blocks.vectors import centres_of
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt import Flt, RelatednessSettings, relate
from fedkin.methods.flt_same import FltSame
from fedkin.methods.local import Local
from methods.flt_world import (
    grouped,
    groups_of,
    image_federation,
    images,
    member,
    public,
    raw,
    samples,
    score,
    with_public,
)
from methods.plain_loops import Plain, combined, entropy, initial, logits, plain_training
from support import Watched, after, begun, play, present, restarted, same, small_federation, small_setup, stored

# -- groups -----------------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_papers() -> None:
    method = Flt()
    assert (method.k, method.average, method.encoder.fine_tune) == (5, "groups", 5)
    how = method.graph
    assert (how.embedding, how.distance, how.gamma, how.cluster, how.linkage) == ("umap", "min", 1.0, "rows", "ward")
    assert how.groups == "gap"


@pytest.mark.slow  # umap compiles for a while
def test_flt_finds_the_groups_and_their_number_with_umap_and_without_a_warning() -> None:
    pytest.importorskip("umap")
    federation = grouped(12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = after(Flt(), 1, federation)[0]
    assert score(groups_of(engine), federation) == 1.0


def test_without_umap_learn_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r"method\.graph\.embedding = 'umap' .* needs umap .*: pip install"):
        Flt().check(grouped())


@pytest.mark.parametrize("kind", ["mlp", "linear", "none"])
@pytest.mark.parametrize("groups", [3, "ratio", "gap", "silhouette"])
def test_planted_groups_are_found_for_shuffled_ids(kind: str, groups: Any) -> None:
    federation = grouped()
    method = raw(groups, k=2, encoder={"kind": kind, "fine_tune": 0})
    graph = present(LocalEngine(small_setup(method, federation)).round(1).graph)
    assert set(graph.ids) == set(federation)
    assert score(dict(graph.groups or {}), federation) == 1.0


def test_labels_that_differ_are_seen_by_tests_and_not_by_centres() -> None:
    """The planted groups of the shared tests differ in labels only."""
    federation = small_federation()
    assert score(groups_of(after(raw("ratio"), 1, federation)[0]), federation) < 0.5
    assert score(groups_of(after(FltSame(), 1, federation)[0]), federation) == 1.0


# -- averages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (raw(1), FedAvg()),
        (FltSame(average="neighbours", graph={"gamma": 1e9}), FedAvg()),
        (raw(average="neighbours", graph={"control": "uniform", "gamma": 1e9}), FedAvg()),
        (FltSame(graph={"control": "uniform"}), FedAvg()),
        (raw(average="neighbours", graph={"gamma": 0.0}), Local()),
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
    one, other = (after(each, 3, federation, clients_per_round=clients_per_round)[0] for each in (method, limit))
    assert same(one.models(), other.models())


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_group_shares_one_object_also_after_a_restart(average: Any) -> None:
    federation = grouped()
    engine = after(raw(k=2, average=average), 2, federation)[0]
    again = restarted(engine)
    for own in (engine, again):
        assert len(own.server.state["models"]) == 3
        objects = {id: own.model(id) for id in federation}
        for one in federation:
            for other in federation:
                assert (objects[one] is objects[other]) == (federation[one].group == federation[other].group)


# -- controls and settings --------------------------------------------------------------------------------------------


def test_shuffled_groups_go_with_the_shuffled_graph() -> None:
    graph = present(LocalEngine(small_setup(raw(k=2, graph={"control": "shuffled"}), grouped())).round(1).graph)
    linked = np.asarray(graph.weights) > 0
    same = graph.labels[:, None] == graph.labels[None]
    assert np.array_equal(linked, same & ~np.eye(12, dtype=bool))


@pytest.mark.slow
def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.graph\.groups: 13 groups, but the federation has 12 clients"):
        Flt.model_validate({"graph": {"groups": 13}}).check(grouped())
    with pytest.raises(ConfigError, match=r"method\.encoder\.kind: 'grey' needs images"):
        Flt.model_validate({"encoder": {"kind": "grey"}}).check(grouped())


def test_images_without_a_scale_are_refused_by_an_encoder_of_brightness() -> None:
    bad = Samples(images(5, None, 0).x, images(5, None, 0).y)
    federation = Federation([Client("x", bad, bad)], Task(2, (1, 8, 8)))
    with pytest.raises(ConfigError, match=r"method\.encoder\.kind: .*client 'x' run from 0 to 25\d"):
        Flt(encoder={"pretrain": "clothes"}).check(federation)
    for kind in ("auto", "linear"):
        raw("ratio", encoder={"kind": kind}).check(federation)


def test_an_encoder_of_brightness_takes_clients_without_training_samples() -> None:
    whole = image_federation()
    first, *others = whole.values()
    federation = Federation([replace(first, train=first.train.take([]), seen=False), *others], whole.task)
    Flt(encoder={"kind": "grey"}).check(federation)


def test_pretraining_data_of_another_shape_are_refused_by_name() -> None:
    method = Flt(encoder={"pretrain": "clothes"})
    with pytest.raises(ConfigError, match=r"method\.encoder\.pretrain: the inputs of clothes have shape \(3, 9, 9\)"):
        LocalEngine(with_public(method, image_federation(), public((3, 9, 9)))).round(1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [raw(k=2), raw(k=2, graph={"embedding": "pca"}), FltSame()])
def test_of_very_many_clients_some_make_the_groups_and_the_others_join_them(
    method: Taskonomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.methods.blocks.stage_settings.LARGEST", 12)
    federation = grouped(36)
    engine, again = (after(method, 2, federation)[0] for _ in range(2))
    assert engine.server.state["founders"] == 12
    assert engine.server.state["adjacency"].shape == (12, 12)
    assert score(groups_of(engine), federation) == 1.0
    graph = after(method, 1, federation)[1].graph
    assert len(graph.ids) == 36
    assert same(engine.models(), again.models())


# -- whole rounds against loops from the paper; shared: the federation, initial values, and the batches drawn ---


K, GROUPS = 2, 3


def signatures(setup: Setup) -> dict[str, Any]:
    """Algorithm 2, lines 2 to 11, where the encoder only standardises the features: k-means centres of each client."""
    data = {id: stored(client.train).double().numpy() for id, client in setup.federation.items()}
    pooled = np.concatenate(list(data.values()))
    middle, spread = pooled.mean(0), pooled.std(0)
    return {
        id: KMeans(K, n_init=20, random_state=0).fit((x - middle) / spread).cluster_centers_ for id, x in data.items()
    }


def distances(sets: list[Any], distance: str) -> Any:
    """Between sets of centres, [n, n]: of the nearest pair (the paper), or of the best matching (the released code)."""
    between = np.zeros((len(sets), len(sets)))
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            apart = np.array([[np.linalg.norm(u - v) for v in other] for u in one])
            if distance == "min":
                between[i, j] = apart.min() if i != j else 0.0
            else:
                row, column = linear_sum_assignment(apart**2)
                between[i, j] = np.sqrt((apart[row, column] ** 2).sum()) / len(one)
    return between


def oracle(sets: list[Any], distance: str, gamma: float, cluster: str, linkage: Any, soft: bool = False) -> Any:
    """Algorithm 2, lines 15 to 19, from the paper's text, with scipy and loops: (edges [n, n], three groups [n])."""
    n, between = len(sets), distances(sets, distance)
    linked = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                linked[i, j] = np.exp(-((between[i, j] / gamma) ** 2)) if soft else between[i, j] < gamma
    if cluster == "rows":
        rows = linked + np.eye(n)
        between = np.array([[np.linalg.norm(a - b) for b in rows] for a in rows])
    tree = hierarchy.linkage(squareform(between, checks=False), linkage)
    return linked, hierarchy.cut_tree(tree, [GROUPS]).ravel()


def relatedness(centres: dict[str, Any], distance: str) -> tuple[dict[Any, float], dict[str, int]]:
    """Lines 15 to 19: the weight of every pair, and groups by Ward's hierarchy; gamma = "groups"."""
    ids = sorted(centres)
    sets = [centres[id] for id in ids]
    between, (_, group) = distances(sets, distance), oracle(sets, distance, 1.0, "distances", "ward")
    # Halfway between the mean distance inside groups and the mean distance to the nearest other one.
    inside = between[(group[:, None] == group) & ~np.eye(len(ids), dtype=bool)]
    outside = [
        min(between[np.ix_(group == own, group == other)].mean() for other in range(GROUPS) if other != own)
        for own in group
    ]
    gamma = (inside.mean() + np.mean(outside)) / 2
    linked, _ = oracle(sets, distance, gamma, "distances", "ward")
    weight = {(one, other): linked[k, m] for k, one in enumerate(ids) for m, other in enumerate(ids)}
    return weight, dict(zip(ids, group.tolist(), strict=True))


def round_by_hand(
    setup: Setup, number: int, sampled: list[str], held: dict[str, Plain], case: str, stale: bool, distance: str
) -> dict[str, Plain]:
    """Algorithm 3, lines 4 to 20: every client's model after the round."""
    weight, group = relatedness(signatures(setup), distance)
    came = {
        id: plain_training(setup, id, number, held[id], lambda p, x, y: entropy(logits(p, x.double()), y))
        for id in sampled
    }
    new = {}
    for m in held:
        weights = {}
        for j in held:
            a_mj = float(group[m] == group[j]) if case == "groups" else weight[m, j]
            if j == m:
                a_mj = 1.0
            if (j in came or stale) and a_mj > 0:
                weights[j] = a_mj * setup.federation[j].size
        total = sum(weights.values())
        shares = {j: weight / total for j, weight in weights.items()}
        new[m] = combined({**held, **came}, shares) if shares else held[m]
    return new


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("distance", ["matching", "min"])
@pytest.mark.parametrize("case", ["groups", "neighbours"])
def test_two_rounds_are_the_papers(case: str, distance: str, stale: bool) -> None:
    federation = grouped(11)
    method = raw(GROUPS, k=K, average=case, stale=stale, graph={"distance": distance})
    setup = small_setup(method, federation, torch.float64, clients_per_round=4)
    engine = LocalEngine(setup)
    held = {id: initial(setup) for id in federation}
    for number in (1, 2):
        outcome = engine.round(number)
        assert 0 < len(outcome.sampled) < len(federation)
        held = round_by_hand(setup, number, list(outcome.sampled), held, case, stale, distance)
        for id, expected in held.items():
            torch.testing.assert_close(dict(engine.model(id)), expected, rtol=0, atol=1e-6)
        if outcome.graph is not None:
            assert score(dict(outcome.graph.groups or {}), federation) == 1.0
    assert any(not torch.equal(held[id]["head.bias"], initial(setup)["head.bias"]) for id in held)


@pytest.mark.parametrize("privacy", [None, Privacy(signature_epsilon=4.0)])
def test_absent_clients_weigh_as_many_samples_as_they_have_also_if_persons_sign(privacy: Privacy | None) -> None:
    visits = [
        replace(client, train=replace(client.train, person=torch.arange(client.size) // 4))
        for client in grouped().values()
    ]  # fmt: skip
    federation = Federation(visits, Task(6, (8,)), "visits")
    setup = small_setup(FltSame(stale=True), federation, clients_per_round=4)
    engine = begun(setup if privacy is None else replace(setup, privacy=privacy))
    assert engine.server.state["sizes"] == federation.sizes


# -- FLT: from centres to distances, a graph and groups, against scipy, scikit-learn and loops ---


def test_clients_near_enough_are_neighbours() -> None:
    between = np.array([[0.0, 1, 8, 9], [1, 0, 8, 9], [8, 8, 0, 3], [9, 9, 3, 0]])
    labels = np.array([0, 0, 1, 1])
    # Inside: (1 + 3) / 2; to the nearest other group: 8.5 for either.
    assert threshold(between, labels, "groups") == pytest.approx((2 + 8.5) / 2)
    assert threshold(between, labels, "gap") == g.gap_threshold(between)
    assert threshold(between, labels, 4.0) == 4.0
    assert threshold(between, np.zeros(4, dtype=np.int64), "groups") > 9
    assert threshold(between, np.arange(4), "groups") == pytest.approx((1 + 1 + 3 + 3) / 4 / 2)


@pytest.mark.parametrize("distance", ["min", "matching"])
@pytest.mark.parametrize("cluster", ["distances", "rows"])
@pytest.mark.parametrize("linkage", ["ward", "average"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_relatedness_is_the_papers(distance: str, cluster: str, linkage: str, seed: int, soft: bool) -> None:
    """Against scipy and plain loops; the planted groups overlap, so that no partition is given away."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(3, 4)) * 2.5
    sets = [middle[row % 3] + rng.normal(size=(4, 4)) for row in range(11)]
    gamma = {"min": 2.0, "matching": 1.3}[distance]
    linked, groups = oracle(sets, distance, gamma, cluster, linkage, soft)
    assert 0 < (linked > 0.5).sum() < linked.size
    how = {"distance": distance, "cluster": cluster, "linkage": linkage, "gamma": gamma}
    how["adjacency"] = "soft" if soft else "hard"
    chosen = RelatednessSettings.model_validate({**how, "embedding": "none", "groups": 3})
    found = relate(sets, chosen, 0)
    np.testing.assert_allclose(found.adjacency, linked, atol=1e-12)
    assert g.ari(found.groups, groups) == 1
    assert found.gamma == gamma


def test_the_pca_embedding_is_scikit_learns() -> None:
    """Distances are those of the centres on the principal axes of all centres."""
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(3, 5)) * np.array([9, 4, 1, 0.5, 0.1]) for _ in range(6)]
    placed = PCA(2, svd_solver="full").fit_transform(np.concatenate(sets)).reshape(6, 3, 2)
    linked, groups = oracle(list(placed), "min", 2.0, "distances", "ward")
    found = relate(sets, RelatednessSettings(embedding="pca", gamma=2.0, groups=3, cluster="distances"), 0)
    assert 0 < linked.sum() < 30
    np.testing.assert_array_equal(found.adjacency, linked)
    assert g.ari(found.groups, groups) == 1


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_newcomers_edges_are_those_that_all_together_would_get(average: Any) -> None:
    """A gamma that does not depend on who is there, and no embedding."""
    late = [member(30 + number, "abc"[number], joins=2) for number in range(3)]
    method = raw(k=3, average=average, graph={"gamma": 1.5})
    engine = after(method, 2, grouped(12, extra=late))[0]
    state = engine.server.state
    assert state["founders"] == 12
    sets = [state["signatures"][id].double().numpy() for id in sorted(state["row"], key=state["row"].__getitem__)]
    np.testing.assert_array_equal(state["adjacency"].double().numpy(), g.gamma(g.matching(sets), 1.5))


@pytest.mark.parametrize(
    ("labels", "before", "expected"),
    [
        ([0, 0, 1], [None, None, None], [(0, None), (1, None)]),
        ([0, 0, 1], [4, 4, 7], [(4, 4), (7, 7)]),
        # A group that splits: the larger part keeps the number, both keep the model.
        ([0, 0, 0, 1, 1], [3, 3, 3, 3, 3], [(3, 3), (4, 3)]),
        # Two that join: the larger one's number; a new one beside them.
        ([0, 0, 0, 1], [1, 1, 0, None], [(1, 1), (2, None)]),
    ],
)  # fmt: skip
def test_groups_keep_their_numbers_and_models_when_made_anew(labels: Any, before: Any, expected: Any) -> None:
    assert continued(labels, before, [old for old in before if old is not None]) == expected


# -- FLT: what travels, signatures, and clients that come late or change ---


# -- messages -------------------------------------------------------------------------------------------------


def test_the_one_off_part_is_an_encoder_down_and_k_centres_up() -> None:
    method = raw("ratio", k=3, encoder={"kind": "mlp", "dims": 4, "fine_tune": 0})
    engine = LocalEngine(small_setup(method, grouped(), clients_per_round=4))
    first, second = engine.round(1), engine.round(2)
    width = 8 * 64 + 64 + 64 * 4 + 4
    for message in first.traffic:
        if message.phase == "sign":
            # Down: the encoder without the decoder, and the moments of 8 features.
            assert message.floats == (width + 16 if message.sender == "server" else 3 * 4)
        elif message.phase == "measure":
            assert message.floats == 16
        else:
            assert message.phase == "train"
    assert sum(m.phase == "sign" and m.receiver == "server" for m in first.traffic) == 12
    assert {m.phase for m in second.traffic} == {"train"}
    assert second.graph is None
    assert first.graph is not None


def fields_of(engine: Watched) -> dict[str, set[str]]:
    """The fields that clients sent, by phase."""
    return {phase: {name for reply in replies.values() for name in reply} for phase, _, replies in engine.asks}


def test_only_centres_travel() -> None:
    assert fields_of(Watched(small_setup(raw("ratio", k=3), grouped())).rounds(1)) == {
        "measure": {"count", "total", "squares"},
        "sign": {"centres"},
        "train": {"params", "n"},
    }


# -- signatures -----------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 6), st.integers(0, 50))
def test_centres_of_few_or_equal_points(count: int, distinct: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(distinct, 3)).astype(np.float32)
    x = torch.from_numpy(places[rng.integers(0, distinct, count)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = centres_of(x, k, seed)
    own = np.unique(x.numpy(), axis=0)
    assert found.shape == (min(k, len(own)), 3)
    if len(own) <= k:
        np.testing.assert_array_equal(found.numpy(), own)
    assert torch.equal(found, centres_of(x, k, seed))


@pytest.mark.parametrize("kind", ["grey", "linear", "mlp", "none"])
@pytest.mark.parametrize("tune", [0, 1])
def test_clients_with_one_sample_one_class_or_constant_images(kind: str, tune: int) -> None:
    parts = [images(1, None, 1), images(3, 0, 2), images(20, 255, 3), images(9, None, 4), images(30, 128, 5)]
    clients = [Client(f"c{place}", part, part) for place, part in enumerate(parts)]
    federation = Federation(clients, Task(2, (1, 8, 8)))
    encoder = {"kind": kind, "fine_tune": 0 if kind == "none" else tune, "dims": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = after(raw("ratio", encoder=encoder), 2, federation)[0]
    state = engine.server.state
    assert [len(state["signatures"][f"c{place}"]) for place in range(5)] == [1, 1, 1, 5, 1]
    assert set(state["group"]) == set(federation)


def test_an_encoder_is_pretrained_once_and_survives_a_restart() -> None:
    asked: list[str] = []

    def given(name: str) -> Dataset:
        asked.append(name)
        return public()(name)  # type: ignore[no-any-return]

    encoder = {"pretrain": "clothes", "epochs": 2, "limit": 30, "dims": 5, "fine_tune": 0}
    method = raw("ratio", encoder=encoder, regroup_every=1)
    engine = LocalEngine(with_public(method, image_federation(), given))
    engine.round(1)
    again = restarted(engine)
    for own in (engine, again):
        own.round(2)
    assert asked == ["clothes"]
    assert same(engine.models(), again.models())
    encoder = engine.server.state["encoder"]
    start = method.encoder.net((1, 8, 8)).initial  # type: ignore[union-attr]
    assert not torch.equal(encoder["body.0.weight"], start["body.0.weight"])
    assert all(name.startswith("body.") for name in encoder)


def test_tables_are_standardised_as_the_pretraining_data_are() -> None:
    part = samples("a", 50, 0)
    data = Dataset("table", Part(stored(part), part.y), Part(stored(part), part.y), Task(6, (8,)))
    method = raw("ratio", encoder={"pretrain": "table", "kind": "linear", "epochs": 1})
    engine = LocalEngine(with_public(method, grouped(), lambda name: data))
    assert "measure" not in {message.phase for message in engine.round(1).traffic}
    torch.testing.assert_close(engine.server.state["moments"]["total"], stored(part).double().sum(0))


def test_fine_tuning_changes_centres_and_sends_the_decoder_too() -> None:
    federation = image_federation()
    plain, tuned = (
        after(raw("ratio", encoder={"kind": "grey", "fine_tune": j, "dims": 5}), 1, federation)[0] for j in (0, 1)
    )
    assert any(name.startswith("head.") for name in tuned.server.state["encoder"])
    for id in federation:
        one, other = plain.server.state["signatures"][id], tuned.server.state["signatures"][id]
        assert one.shape != other.shape or not torch.equal(one, other)


# -- over time ------------------------------------------------------------------------------------------------


def test_a_newcomer_gets_its_groups_model_at_once_and_moves_nobody() -> None:
    late = member(50, "b", joins=3)
    federation = grouped(extra=[late])
    method = raw()
    engine = after(method, 2, federation)[0]
    without = after(method, 2, grouped())[0]
    outcome = engine.round(3)
    without.round(3)
    # It signed in this round and trains from the next: the others are as if it were not there.
    known = without.models()
    assert same(known, {id: engine.model(id) for id in known})
    mates = [id for id in known if federation[id].group == "b"]
    assert engine.model(late.id) is engine.model(mates[0])
    assert [m.receiver for m in outcome.traffic if m.phase == "sign" and m.sender == "server"] == [late.id]
    assert score(groups_of(engine), federation) == 1.0
    assert late.id in present(outcome.graph).ids
    trained = {m.sender for m in engine.round(4).traffic if m.phase == "train"}
    assert late.id in trained


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_newcomers_after_a_restart_are_those_without_one(average: Any) -> None:
    federation = grouped(extra=[member(50, "b", joins=3), member(51, "c", joins=4)])
    method = raw(average=average, encoder={"kind": "mlp", "fine_tune": 0}, graph={"embedding": "pca"})
    engine = after(method, 2, federation)[0]
    again = restarted(engine)
    for own in (engine, again):
        play(own, 3, 4, 5)
    assert same(engine.models(), again.models())
    assert score(groups_of(again), federation) == 1.0


def test_more_newcomers_than_founders_make_the_groups_anew() -> None:
    few = [member(number, "abc"[number % 3]) for number in range(3)]
    late = [member(number, "abc"[number % 3], joins=2) for number in range(3, 12)]
    federation = Federation([*few, *late], Task(6, (8,)))
    engine = after(raw(), 2, federation)[0]
    assert engine.server.state["founders"] == 12
    assert score(groups_of(engine), federation) == 1.0


def drifting(number: int = 12, at: int = 3) -> tuple[str, Federation]:
    start = member(number, "a")
    moved = Change(at, samples("b", 30, 77), samples("b", 10, 78), "b")
    client = Client(start.id, start.train, start.test, "a", changes=(moved,))
    return client.id, grouped(extra=[client])


@pytest.mark.parametrize(("method", "phase"), [(raw(), "sign"), (FltSame(), "sign_moments")])
def test_a_client_whose_data_changed_moves_to_its_new_group(method: Taskonomy, phase: str) -> None:
    id, federation = drifting()
    engine = after(method, 2, federation)[0]
    before = groups_of(engine)
    assert score(before, federation) == 1.0
    engine.round(3)  # it trains on the new samples, and says so
    assert engine.server.state["changed"] == {id: True}
    outcome = engine.round(4)
    assert [m.receiver for m in outcome.traffic if m.phase == phase and m.sender == "server"] == [id]
    now = groups_of(engine)
    assert score(now, federation.at(4)) == 1.0
    assert {other: now[other] for other in now if other != id} == {o: before[o] for o in before if o != id}
    assert engine.server.state["changed"] == {}
    mates = [other for other in now if other != id and federation[other].group == "b"]
    assert engine.model(id) is engine.model(mates[0])


@pytest.mark.slow
def test_groups_wait_for_enough_flags() -> None:
    first, federation = drifting(12)
    second, more = drifting(15)
    both = Federation([*federation.values(), more[second]], federation.task)
    engine = after(raw(regroup_changed=2), 6, federation)[0]
    assert engine.server.state["changed"] == {first: True}
    assert score(groups_of(engine), federation) == 1.0
    engine = after(raw(regroup_changed=2), 4, both)[0]
    assert score(groups_of(engine), both.at(4)) == 1.0
    engine = after(raw(regroup_changed=None), 5, both)[0]
    assert engine.server.state["changed"] == {}
    assert score(groups_of(engine), both) == 1.0


def test_every_tau_rounds_all_sign_again() -> None:
    _, federation = drifting(at=2)
    engine = LocalEngine(small_setup(raw(regroup_changed=None, regroup_every=3), federation))
    asked = []
    for number in range(1, 8):
        outcome = engine.round(number)
        asked.append(sum(m.phase == "sign" and m.sender == "server" for m in outcome.traffic))
    assert asked == [13, 0, 0, 13, 0, 0, 13]
    assert score(groups_of(engine), federation.at(7)) == 1.0


def test_a_client_without_samples_is_welcomed_with_the_mean_of_the_groups_models() -> None:
    empty = Samples(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64))
    without = Client("none", empty, samples("a", 5, 1), group="a", seen=False)
    engine = after(raw(), 2, grouped(extra=[without]))[0]
    models, found = engine.server.state["models"].values(), dict(engine.model("none"))
    mean = {name: torch.stack([params[name] for params in models]).mean(0) for name in found}
    torch.testing.assert_close(found, mean)


# -- FLT-same: groups from tests of signatures, in FLT's rounds ---


def test_with_nothing_told_the_groups_are_found_and_no_encoder_travels() -> None:
    engine = Watched(small_setup(FltSame(), grouped()))
    first = engine.round(1)
    assert score(groups_of(engine), grouped()) == 1.0
    assert fields_of(engine)["sign_moments"] == {"signature"}
    assert set(fields_of(engine)) == {"spread", "sign_moments", "train"}
    assert max(m.bytes for m in first.traffic if m.phase == "sign_moments") < 4096


def test_averaging_along_edges_holds_no_matrix_beside_the_stored_graph() -> None:
    n = 400
    ids = [f"c{number:03}" for number in range(n)]
    state: dict[str, Any] = {
        "row": {id: number for number, id in enumerate(ids)}, "model": dict.fromkeys(ids, "0"),
        "models": {"0": {"w": torch.zeros(1)}}, "adjacency": torch.zeros(n, n, dtype=torch.bool),
    }  # fmt: skip
    state["adjacency"][0, 1:3] = state["adjacency"][1:3, 0] = True
    sent = {id: Message(params={"w": torch.tensor([float(place)])}, n=place + 1) for place, id in enumerate(ids)}
    tracemalloc.start()
    models, model = along_edges(state, sent, "mean")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert models[model["c000"]]["w"].item() == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)
    assert models[model["c007"]]["w"].item() == 7
    assert peak < n * n * 8


def test_the_tests_behind_groups_are_recorded() -> None:
    late = member(30, "b", joins=2)
    engine = after(FltSame(), 1, grouped(12, extra=[late]))[0]
    graph = present(engine.round(2).graph)
    evidence = present(graph.evidence)
    assert evidence.nodes[0].rejected
    assert set(evidence.leaf) == set(grouped(12))
    assert set(graph.values["verdict"]) == {"same"}
