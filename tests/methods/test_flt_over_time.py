"""FLT: what travels, signatures, and clients that come late or change."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin import codec
from fedkin.data.dataset import Dataset, Part
from fedkin.engines import LocalEngine, Witness
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.methods.flt import centres_of
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
    raw,
    samples,
    score,
    with_public,
)
from support import small_setup, stored

# -- messages -------------------------------------------------------------------------------------------------


def test_the_one_off_part_is_an_encoder_down_and_k_centres_up() -> None:
    federation = grouped()
    engine = LocalEngine(
        small_setup(
            raw("ratio", k=3, encoder={"kind": "mlp", "dims": 4, "fine_tune": 0}), federation, clients_per_round=4
        )
    )
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


def test_only_centres_travel() -> None:
    witness = Witness()
    LocalEngine(small_setup(raw("ratio", k=3), grouped()), observers=[witness]).round(1)
    seen = {ask.phase: {name for reply in replies.values() for name in reply} for _, ask, replies in witness.asks}
    assert seen == {"measure": {"count", "total", "squares"}, "sign": {"centres"}, "train": {"params", "n"}}


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
        engine = engine_after(raw("ratio", encoder=encoder), federation, 2)
    state = engine.server.state
    assert [len(state["signatures"][f"c{place}"]) for place in range(5)] == [1, 1, 1, 5, 1]
    assert set(state["group"]) == set(federation)


def test_an_encoder_is_pretrained_once_and_survives_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path))
    asked: list[str] = []

    def given(name: str) -> Dataset:
        asked.append(name)
        return public()(name)  # type: ignore[no-any-return]

    encoder = {"pretrain": "clothes", "epochs": 2, "limit": 30, "dims": 5, "fine_tune": 0}
    method = raw("ratio", encoder=encoder, regroup_every=1)
    engine = LocalEngine(with_public(method, image_federation(), given))
    engine.round(1)
    again = LocalEngine(engine.setup)
    again.restore(codec.decode(codec.encode(engine.state())))
    for own in (engine, again):
        own.round(2)
    assert asked == ["clothes"]
    assert len(list((tmp_path / "encoders").iterdir())) == 1
    assert_equal_models(models(engine), models(again))
    encoder = engine.server.state["encoder"]
    start = method.encoder.net((1, 8, 8)).initial  # type: ignore[union-attr]
    assert not torch.equal(encoder["body.0.weight"], start["body.0.weight"])
    assert all(name.startswith("body.") for name in encoder)


def test_tables_are_standardised_as_the_pretraining_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path))
    part = samples("a", 50, 0)
    data = Dataset("table", Part(stored(part), part.y), Part(stored(part), part.y), Task(6, (8,)))
    method = raw("ratio", encoder={"pretrain": "table", "kind": "linear", "epochs": 1})
    engine = LocalEngine(with_public(method, grouped(), lambda name: data))
    assert "measure" not in {message.phase for message in engine.round(1).traffic}
    torch.testing.assert_close(engine.server.state["moments"]["total"], stored(part).double().sum(0))


def test_fine_tuning_changes_centres_and_sends_the_decoder_too() -> None:
    federation = image_federation()
    plain, tuned = (
        engine_after(raw("ratio", encoder={"kind": "grey", "fine_tune": j, "dims": 5}), federation, 1) for j in (0, 1)
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
    engine = engine_after(method, federation, 2)
    without = engine_after(method, grouped(), 2)
    outcome = engine.round(3)
    without.round(3)
    # It signed in this round and trains from the next: the others are as if it were not there.
    known = models(without)
    assert_equal_models(known, models(engine))
    mates = [id for id in known if federation[id].group == "b"]
    assert engine.model(late.id) is engine.model(mates[0])
    assert [m.receiver for m in outcome.traffic if m.phase == "sign" and m.sender == "server"] == [late.id]
    assert score(groups_of(engine), federation) == 1.0
    assert outcome.graph is not None
    assert late.id in outcome.graph.ids
    trained = {m.sender for m in engine.round(4).traffic if m.phase == "train"}
    assert late.id in trained


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_newcomers_after_a_restart_are_those_without_one(average: Any) -> None:
    federation = grouped(extra=[member(50, "b", joins=3), member(51, "c", joins=4)])
    method = raw(average=average, encoder={"kind": "mlp", "fine_tune": 0}, graph={"embedding": "pca"})
    engine = engine_after(method, federation, 2)
    again = LocalEngine(engine.setup)
    again.restore(codec.decode(codec.encode(engine.state())))
    for own in (engine, again):
        for number in (3, 4, 5):
            own.round(number)
    assert_equal_models(models(engine), models(again))
    assert score(groups_of(again), federation) == 1.0


def test_more_newcomers_than_founders_make_the_groups_anew() -> None:
    few = [member(number, "abc"[number % 3]) for number in range(3)]
    late = [member(number, "abc"[number % 3], joins=2) for number in range(3, 12)]
    federation = Federation([*few, *late], Task(6, (8,)))
    engine = engine_after(raw(), federation, 2)
    assert engine.server.state["founders"] == 12
    assert score(groups_of(engine), federation) == 1.0


def test_clients_whose_first_message_was_lost_sign_later() -> None:
    federation = grouped(24)
    engine = LocalEngine(small_setup(raw(), federation, dropout=0.3, seed=4))
    signed = []
    for number in range(1, 9):
        engine.round(number)
        signed.append(len(engine.server.state["group"]))
    assert signed[0] < 24
    assert signed[-1] == 24
    assert score(groups_of(engine), federation) == 1.0


def drifting(number: int = 12, at: int = 3) -> tuple[str, Federation]:
    start = member(number, "a")
    moved = Change(at, samples("b", 30, 77), samples("b", 10, 78), "b")
    client = Client(start.id, start.train, start.test, "a", changes=(moved,))
    return client.id, grouped(extra=[client])


def test_a_client_whose_data_changed_moves_to_its_new_group() -> None:
    id, federation = drifting()
    engine = engine_after(raw(), federation, 2)
    before = groups_of(engine)
    assert score(before, federation) == 1.0
    engine.round(3)  # it trains on the new samples, and says so
    assert engine.server.state["changed"] == {id: True}
    outcome = engine.round(4)
    assert [m.receiver for m in outcome.traffic if m.phase == "sign" and m.sender == "server"] == [id]
    now = groups_of(engine)
    assert score(now, federation.at(4)) == 1.0
    assert {other: now[other] for other in now if other != id} == {o: before[o] for o in before if o != id}
    assert engine.server.state["changed"] == {}
    mates = [other for other in now if other != id and federation[other].group == "b"]
    assert engine.model(id) is engine.model(mates[0])


def test_groups_wait_for_enough_flags() -> None:
    first, federation = drifting(12)
    second, more = drifting(15)
    both = Federation([*federation.values(), more[second]], federation.task)
    engine = engine_after(raw(regroup_changed=2), federation, 6)
    assert engine.server.state["changed"] == {first: True}
    assert score(groups_of(engine), federation) == 1.0
    engine = engine_after(raw(regroup_changed=2), both, 4)
    assert score(groups_of(engine), both.at(4)) == 1.0
    engine = engine_after(raw(regroup_changed=None), both, 5)
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


def test_unseen_clients_are_welcomed_with_the_nearest_groups_model() -> None:
    unseen = member(60, "c", seen=False)
    empty = Samples(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64))
    without = Client("none", empty, samples("a", 5, 1), group="a", seen=False)
    federation = grouped(extra=[unseen, without])
    method = raw(average="groups")
    engine = engine_after(method, federation, 2)
    before = engine.server.state
    found = engine.models()
    mate = next(id for id in groups_of(engine) if federation[id].group == "c")
    assert all(torch.equal(t, engine.model(mate)[name]) for name, t in found[unseen.id].items())
    assert unseen.id not in engine.server.state["group"]
    assert engine.server.state is before
    mean = {name: torch.stack([m[name] for m in before["models"].values()]).mean(0) for name in found["none"]}
    for name, tensor in mean.items():
        torch.testing.assert_close(found["none"][name], tensor)
