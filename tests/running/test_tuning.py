"""Settings chosen on held-out training data: nobody's test samples, the best candidate, failures, going on later."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import ConfigError, RunError
from fedkin.federation import Client, Federation
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Choice
from fedkin.running.holdout import HoldOut, held_out
from fedkin.running.tune import Candidate, best, tune
from support import small_federation
from tiny import TABLE

SHORT = {**TABLE, "training": {**TABLE["training"], "rounds": 2}}


def inputs(client: Client, part: str) -> set[bytes]:
    samples = getattr(client, part)
    return {row.numpy().tobytes() for row in samples.inputs(slice(None))}


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_held_out_samples_are_training_samples_and_no_longer_trained_on(share: float, seed: int) -> None:
    federation = small_federation()
    apart = held_out(federation, HoldOut("samples", share), seed)
    assert apart.seen == federation.seen
    for id, client in apart.items():
        assert inputs(client, "train") | inputs(client, "test") == inputs(federation[id], "train")
        assert not inputs(client, "train") & inputs(client, "test")
        expected = min(max(1, round(share * federation[id].size)), federation[id].size - 1)
        assert len(client.test) == expected


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_held_out_clients_are_unseen_and_tested_on_training_samples(share: float, seed: int) -> None:
    federation = small_federation()
    apart = held_out(federation, HoldOut("clients", share), seed)
    assert len(apart.unseen) == min(max(1, round(share * len(federation))), len(federation) - 1)
    for id, client in apart.items():
        trained, tested = ("test", "train") if id in apart.unseen else ("train", "test")
        assert inputs(client, trained) == inputs(federation[id], "train")
        assert len(getattr(client, tested)) == 0


def test_clients_that_were_unseen_take_no_part_in_tuning() -> None:
    federation = small_federation()
    away = sorted(federation)[0]
    marked = [replace(client, seen=client.id != away) for client in federation.values()]
    assert away not in held_out(Federation(marked, federation.task), HoldOut("samples", 0.2), 0)


def test_order_of_clients_changes_nothing() -> None:
    federation = small_federation()
    turned = federation.reorder(list(reversed(list(federation))))
    for what in ("samples", "clients"):
        one, other = (held_out(f, HoldOut(what, 0.4), 3) for f in (federation, turned))
        assert one.unseen == other.unseen
        for id in one:
            assert torch.equal(one[id].train.x[one[id].train.rows], other[id].train.x[other[id].train.rows])


def test_the_best_candidate_is_chosen_and_written_down(tmp_path: Path) -> None:
    choices = [Choice.parse("training.lr=1e-6,0.3"), Choice.parse("sfmtl-graph:method.lam=0.1,0.2")]
    found = tune(
        Experiment.of(SHORT), ["local", "sfmtl-graph"], choices, HoldOut("samples", 0.3), [0, 1], Path(), tmp_path
    )
    assert [len(found[name]) for name in ("local", "sfmtl-graph")] == [2, 4]
    table = tomllib.loads((tmp_path / "tuned.toml").read_text())
    for name, tried in found.items():
        top = max(tried, key=lambda one: one.mean)
        assert table["methods"][name] == dict(top.settings)
    for place, one in enumerate(found["local"]):
        for seed, value in enumerate(one.values):
            summary = json.loads((tmp_path / f"local-{place}-seed{seed}" / "summary.json").read_text())
            assert summary["accuracy"]["mean"] == value
    assert {key: value for key, value in table.items() if key != "methods"} == Experiment.of(SHORT).resolved()


def test_test_samples_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values when every test sample is another one."""
    experiment = Experiment.of(SHORT)

    def values(folder: Path) -> dict[str, list[Candidate]]:
        choices = [Choice("training.lr", (0.1,))]
        return tune(experiment, ["fedavg"], choices, HoldOut("clients", 0.4), [0], Path(), folder)

    one = values(tmp_path / "a")
    kind = type(experiment.scenario)
    made = kind.build

    def spoilt(self: Any, dataset: Any, seed: int) -> Federation:
        federation = made(self, dataset, seed)
        return Federation([replace(c, test=c.test.take([0])) for c in federation.values()], federation.task)

    monkeypatch.setattr(kind, "build", spoilt)
    assert values(tmp_path / "b") == one


def test_a_candidate_that_fails_is_not_chosen_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = [Choice("training.lr", (1e30, 0.1))]
    arguments: Any = (["fedavg"], choices, HoldOut("samples", 0.3), [0], Path(), tmp_path)
    found = tune(Experiment.of(SHORT), *arguments)
    assert "the training loss became" in (found["fedavg"][0].failed or "")
    assert tomllib.loads((tmp_path / "tuned.toml").read_text())["methods"]["fedavg"] == {"training.lr": 0.1}

    def never(*args: Any, **more: Any) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr("fedkin.running.loop.execute", never)
    assert tune(Experiment.of(SHORT), *arguments, resume=True) == found


def test_the_best_of_what_did_not_fail() -> None:
    assert best([Candidate({}, (), "too fast")], True) is None
    chosen = best(
        [Candidate({"a": 1}, (2.0,)), Candidate({"a": 2}, (1.0,)), Candidate({"a": 3}, (), "too fast")], higher=False
    )
    assert chosen is not None
    assert chosen.settings == {"a": 2}


def test_pooled_data_are_tuned_on_clients_held_out(tmp_path: Path) -> None:
    changes = {"scenario.pooled": True, "training.clients_per_round": "all"}
    choices = [Choice("training.lr", (0.1,))]
    experiment = Experiment.of(SHORT).with_changes(**changes)
    found = tune(experiment, ["fedavg"], choices, HoldOut("clients", 0.4), [0], Path(), tmp_path)
    facts = json.loads((tmp_path / "fedavg-0-seed0" / "federation.json").read_text())["clients"]
    assert sorted(fact.get("seen", True) for fact in facts.values()) == [False, False, True]
    assert found["fedavg"][0].failed is None


@pytest.mark.parametrize(
    ("text", "says"),
    [("samples", "expected"), ("samples:1", "between 0 and 1"), ("rounds:0.2", "expected"), ("clients:x", "expected")],
)
def test_hold_outs_that_mean_nothing(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        HoldOut.parse(text)


@pytest.mark.parametrize("text", ["training.lr", "=1", "training.lr=", "training.lr=1,,2", ":training.lr=1"])
def test_choices_that_mean_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--try .*expected section.field=value,value"):
        Choice.parse(text)
    with pytest.raises(ConfigError, match=r"no method 'fedavgg'; .*fedavg"):
        Choice.parse("fedavgg:training.lr=1")


def test_settings_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    arguments: Any = (HoldOut("samples", 0.3), [0], Path(), tmp_path / "new")
    with pytest.raises(ConfigError, match=r"training\.lrr"):
        tune(Experiment.of(SHORT), ["fedavg"], [Choice("training.lrr", (1,))], *arguments)
    with pytest.raises(ConfigError, match="--try: at least one"):
        tune(Experiment.of(SHORT), ["fedavg"], [], *arguments)
    assert not (tmp_path / "new").exists()
    tune(Experiment.of(SHORT), ["fedavg"], [Choice("training.lr", (0.1,))], *arguments)
    with pytest.raises(RunError, match="differs from what to tune"):
        tune(Experiment.of(SHORT), ["fedavg"], [Choice("training.lr", (0.2,))], *arguments, resume=True)
