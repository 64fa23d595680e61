"""Trackers: what they hear, settings, trackers that fail, and the table of rounds."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.errors import ConfigError
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.running.trackers import figures_of
from running.tracking_support import PLAN, Heard, tracked
from support import small_federation
from tiny import TABLE, CutAt

# -- what they hear ---------------------------------------------------------------------------------------------


def test_a_tracker_of_ones_own_hears_the_whole_run() -> None:
    heard = Heard()
    result = fedkin.run("sfmtl-graph", small_federation(), rounds=3, seed=2, training=PLAN, trackers=[heard])
    ((name, done, settings),) = heard.begun
    assert (name, done) == ("small-sfmtl-graph-seed2", 0)
    assert settings["method.name"] == "sfmtl-graph"
    assert settings["method.graph.sparsify"]
    assert (settings["training.lr"], settings["run.seed"], settings["clients"]) == (0.1, 2, 6)
    assert [round for round, _ in heard.rounds] == [1, 2, 3]
    assert heard.ended == [result.summary]
    for row, (_, figures) in zip(result.rounds, heard.rounds, strict=True):
        assert figures["accuracy/mean"] == row["accuracy"]["mean"]
        assert figures["accuracy/worst10"] == row["accuracy"]["worst10"]
        assert figures["loss"] == row["accuracy"]["loss"]
        assert figures["groups/found"] == row["groups"]["found"]
        assert figures["groups/ari"] == pytest.approx(row["groups"]["ari"])
        assert (figures["bytes/up"], figures["bytes/down"]) == (row["bytes"]["up"], row["bytes"]["down"])


def test_figures_that_are_not_known_are_left_out() -> None:
    row: dict[str, Any] = {
        "round": 2, "squared_error": {"mean": 0.5, "worst10": float("nan"), "loss": None, "clients": 3}, "groups": {},
        "bytes": {"up": 8, "down": 0}, "unseen": {"mean": 0.75}, "gap": -0.25,
        "figures": {"entropy": 1.5, "note": "text", "weights": {"a": 0.5}},
    }  # fmt: skip
    assert figures_of(row) == {
        "squared_error/mean": 0.5, "unseen/mean": 0.75, "gap": -0.25, "bytes/up": 8.0, "bytes/down": 0.0,
        "method/entropy": 1.5, "method/weights.a": 0.5,
    }  # fmt: skip
    not_evaluated = {"round": 1, "accuracy": None, "groups": {}, "bytes": {"up": 1, "down": 2}}
    assert figures_of(not_evaluated) == {"bytes/up": 1.0, "bytes/down": 2.0}


def test_a_run_that_breaks_off_tells_its_trackers() -> None:
    heard = Heard()
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), rounds=3, training=PLAN, trackers=[heard], watcher=CutAt(2))
    assert [round for round, _ in heard.rounds] == [1, 2]
    assert heard.ended == [None]


def test_a_resumed_run_says_how_far_it_was(tmp_path: Path) -> None:
    heard = Heard()
    said: dict[str, Any] = {"rounds": 5, "training": PLAN, "settings": {"checkpoint_every": 2}, "out": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), trackers=[heard], watcher=CutAt(3), **said)
    fedkin.run("local", small_federation(), trackers=[heard], **said)
    assert [done for _, done, _ in heard.begun] == [0, 2]
    rounds = [round for round, _ in heard.rounds]
    assert rounds == [1, 2, 3, 3, 4, 5]
    assert heard.rounds[2] == heard.rounds[3]


def test_trackers_change_no_figure() -> None:
    plain, other = (
        fedkin.run("sfmtl-graph", small_federation(), rounds=2, training=PLAN, trackers=trackers)
        for trackers in ([], [Heard()])
    )
    assert plain.rounds == other.rounds


# -- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs the package {name}: pip install 'fedkin\[{name}\]'"):
        run_experiment(tracked(name), Path(), tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"fedkin\[{name}\]"):
        fedkin.run("local", small_federation(), rounds=1, out=tmp_path / "run", trackers=[name])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["tensorbord"], r"run\.trackers: no 'tensorbord'; did you mean 'tensorboard'\?"),
        ("wandb,wandb", r"run\.trackers: 'wandb' is there twice"),
        (3, r"run\.trackers: "),
    ],
)
def test_names_are_checked(given: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Experiment.of(TABLE).with_changes(**{"run.trackers": given})


def test_objects_are_checked() -> None:
    for wrong in (3, Heard, "tensorbord"):
        with pytest.raises(ConfigError, match="trackers: "):
            fedkin.run("local", small_federation(), rounds=1, trackers=[wrong])  # type: ignore[list-item]


def test_any_object_tracks_even_one_without_a_hash() -> None:
    @dataclass
    class Kept(Heard):
        place: str = "here"

        def __post_init__(self) -> None:
            super().__init__()

    one, other = Kept(), Kept()
    assert one == other
    with pytest.raises(TypeError):
        hash(one)
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, trackers=[one, other, one])
    assert [[round for round, _ in heard.rounds] for heard in (one, other)] == [[1], [1]]


@pytest.mark.parametrize("when", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_warned_of_once_and_ends_no_run(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = Heard(), Heard()

    def fail(*told: Any) -> None:
        calls.append(when)
        raise OSError("no space left")

    calls: list[str] = []
    monkeypatch.setattr(broken, when, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fedkin.run("local", small_federation(), rounds=3, training=PLAN, trackers=[broken, sound])
    (warning,) = caught
    assert str(warning.message) == "tracker Heard: OSError: no space left; the run goes on without it"
    assert calls == [when]
    assert len(result.rounds) == len(sound.rounds) == 3
    assert sound.ended == [result.summary]


# -- rounds.csv -----------------------------------------------------------------------------------------------------


def test_rounds_as_a_table(tmp_path: Path) -> None:
    experiment = tracked(**{"run.evaluate_every": 2, "training.rounds": 5})
    result = run_experiment(experiment, Path(), tmp_path / "run")
    with (tmp_path / "run" / "rounds.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    kept = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == len(kept) == len(result.rounds) == 5
    for line, row in zip(lines, kept, strict=True):
        assert int(line["round"]) == row["round"]
        assert int(line["sampled"]) == len(row["sampled"])
        assert int(line["bytes.up"]) == row["bytes"]["up"]
        assert float(line["groups.ari"]) == row["groups"]["ari"]
        if row["accuracy"] is None:
            assert line["accuracy.mean"] == ""
        else:
            assert float(line["accuracy.mean"]) == row["accuracy"]["mean"]
    assert {line["accuracy.mean"] == "" for line in lines} == {True, False}
