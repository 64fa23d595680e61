"""What a comparison says beside figures: controls and what communication adds, unlike conditions, and privacy."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.analysis.intervals import added
from fedkin.engines import Privacy
from fedkin.errors import ConfigError, RunError
from fedkin.flow import PeerMethod
from fedkin.learning.metrics import Score
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.comparison import comparison_rows, figures_of, over_how_many, unequal_conditions
from fedkin.records.controls import controls_of, with_controls
from fedkin.records.metrics import privacy_sentence, privacy_spent
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.page import page
from fedkin.report.tables import comparison, one_run
from fedkin.running.experiment import Experiment, load
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import run_experiment
from fedkin.tasks import METRICS, Kind
from support import changed, present, printed
from task_kinds import federation_of
from tiny import TABLE, assert_equal_runs, cut

SMALL: dict[str, Any] = {**TABLE, "training": {**TABLE["training"], "rounds": 3}}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_control_without_exchange_that_its_settings_allow(name: str) -> None:
    experiment = Experiment.of(SMALL)
    for control in controls_of(METHODS[name]):
        made = experiment.for_method(f"{name}@{control}")
        assert made.method.name == name
        assert made.resolved() != experiment.for_method(name).resolved() or isinstance(made.method, PeerMethod)
    assert ("self" in controls_of(METHODS[name])) == (name != "local")


def test_a_control_has_its_methods_settings_then_its_own() -> None:
    sections = {"fedu": {"training.lr": 0.3, "method.lam": 0.2}, "fedu@self": {"training.lr": 0.7}}
    experiment = Experiment.of({**SMALL, "methods": sections})
    one, other = experiment.for_method("fedu@self"), experiment.for_method("fedu@random")
    assert (one.training.lr, one.method.lam, one.method.graph.control) == (0.7, 0.2, "self")  # type: ignore[union-attr]
    assert (other.training.lr, other.method.graph.control) == (0.3, "random")  # type: ignore[union-attr]


def test_no_weighted_mean_is_known_if_no_client_has_a_value() -> None:
    """Each client's test samples are of one class: the ROC-AUC of all samples together is no mean of theirs."""
    made = federation_of("risk", unseen=0)
    for number, id in enumerate(made):
        test = made[id].test
        made = changed(made, id, test=replace(test, y=torch.full_like(test.y, number % 2)))
    result = fedkin.run("fedavg", made, rounds=1, training={"local_steps": 1})
    figures = figures_of(result, None)
    assert (figures["mean"], figures["weighted"]) == (None, None)
    assert figures["pooled"] is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [("flt@slef", "did you mean 'self'"), ("fltt@self", "did you mean 'flt'"), ("local@self", "exchanges nothing")],
)
def test_a_wrong_name_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.of(SMALL).for_method(name)
    with pytest.raises(ConfigError, match=words):
        Experiment.of({**SMALL, "methods": {name: {"training.lr": 0.1}}})


def test_controls_stand_behind_their_method() -> None:
    names = ["mapl", "mapl@self", "mapl@one", "mapl@random", "mapl@oracle", "local"]
    assert with_controls(["mapl", "local"], planted=True) == names
    assert with_controls(["ifca", "ifca@one"], planted=False) == ["ifca", "ifca@self", "ifca@one"]


@pytest.mark.slow
def test_what_communication_adds_by_hand(tmp_path: Path) -> None:
    names = ["local", "fedavg", "fedavg@self", "sfmtl-graph", "sfmtl-graph@self", "tfl"]
    results = compare(Runs(Experiment.of(SMALL)), names, [0, 1, 2], tmp_path / "c")
    rows = {row["method"]: row for row in comparison_rows(results)}
    # FedAvg without exchange is local training, bit for bit, as both have one rate here.
    for seed in (0, 1, 2):
        assert results["fedavg@self"][seed].values == results["local"][seed].values
    assert rows["fedavg"]["adds"]["mean"] == pytest.approx(rows["fedavg"]["gain"][0])
    expected = present(added({s: results["fedavg"][s].gains(results["fedavg@self"][s]) for s in (0, 1, 2)}))
    assert (rows["fedavg"]["adds"]["low"], rows["fedavg"]["adds"]["high"]) == (expected.low, expected.high)
    assert rows["local"]["adds"] == rows["fedavg@self"]["adds"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert rows["tfl"]["adds"] is None
    with (tmp_path / "c" / "compare.csv").open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if line["method"] == "fedavg")
    assert float(line["adds.mean"]) == rows["fedavg"]["adds"]["mean"]
    text = " ".join(printed(comparison(comparison_rows(results)), 80).split())
    assert " adds " in text
    assert "NAME@self, in which clients exchange nothing with each other" in text
    folders = [r.folder for by_seed in results.values() for r in by_seed.values() if r.folder is not None]
    page = collect(folders)
    shown = {row["label"]: row["adds"] for row in page["table"]}
    assert shown["fedavg"] == pytest.approx([expected.value, expected.high - expected.value])  # type: ignore[operator]
    assert shown["tfl"] is None
    assert "@" not in page["sentence"]
    assert "exchange adds" in write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    # The same folder is resumed: nothing runs again.
    again = compare(Runs(Experiment.of(SMALL)), names, [0, 1, 2], tmp_path / "c")
    assert comparison_rows(again) == comparison_rows(results)


def test_of_one_seed_or_of_one_without_clients_there_is_no_interval() -> None:
    assert added({0: {}, 1: {"a": 0.1}}) is None
    assert present(added({0: {"a": 0.1}})).against() == "one seed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ifca", "tfl", "mapl-plus"])
def test_a_control_that_was_cut_ends_the_same(tmp_path: Path, name: str) -> None:
    """The states of all the clients' servers are in the checkpoint."""
    experiment = Experiment.of({**SMALL, "training": {**SMALL["training"], "rounds": 5}}).for_method(f"{name}@self")
    whole = run_experiment(experiment, Path(), tmp_path / "whole")
    cut(experiment, tmp_path / "cut", 3)
    run_experiment(experiment, Path(), tmp_path / "cut")
    assert_equal_runs(present(whole.folder), tmp_path / "cut")


# -- methods that do not run under the same conditions -------------------------------------------------------------


PRESET = Path(__file__).parents[2] / "presets" / "digits-rotated.toml"


def sentences(folder: Path, methods: list[str], *changes: str) -> list[str]:
    plan = load(PRESET, ["training.rounds=1", "training.lr=0.3", *changes])
    results = compare(Runs(plan), methods, [0], folder)
    return unequal_conditions({name: by_seed[0] for name, by_seed in results.items()})


@pytest.mark.slow
def test_unlike_settings_of_training_are_said(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "fedavg@self"]
    assert sentences(tmp_path / "alike", methods) == []
    (text,) = sentences(tmp_path / "unlike", methods, "methods.fedavg.training.lr=0.7")
    assert text.startswith("learning rates differ (local: 0.3; fedavg: 0.7)")
    (text,) = sentences(tmp_path / "steps", methods, "methods.local.training.local_steps=3")
    assert text == "training.local_steps differs (local: 3; fedavg: 5)"


@pytest.mark.slow
def test_methods_that_are_told_the_number_of_groups_are_named(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path / "told", ["fedavg", "ifca"], "methods.ifca.method.clusters=4")
    assert text == "not all methods are told the same (fedavg: nothing; ifca: 4 groups, given)"


def test_figures_over_fewer_clients_say_so(tmp_path: Path) -> None:
    y = np.array([0, 1] * 20 + [0] * 20)
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    client, split = ["north"] * 20 + ["south"] * 20 + ["west"] * 20, ["train", "train", "test", "test"] * 15
    cases: tuple[tuple[Kind, str], ...] = (
        ("risk", "ROC-AUC: figures are over 2 of 3 clients, since the test samples of the others are of one"),
        ("classification", ""),
    )
    for kind, said in cases:
        federation = fedkin.Federation.from_arrays(x, y, client=client, split=split, kind=kind)
        run = fedkin.run("local", federation, rounds=1, out=tmp_path / kind)
        assert over_how_many([run]).startswith(said)
        assert bool(over_how_many([run])) == bool(said)
        assert ("figures are over" in page(collect([tmp_path / kind]))) == bool(said)


@pytest.mark.parametrize(("tested", "said"), [
    ("ns", "accuracy: figures are over 2 of 3 clients, since the others have no test samples"), ("", ""), ("nsw", ""),
])  # fmt: skip
def test_clients_without_test_samples_are_counted_unless_no_client_has_any(tested: str, said: str) -> None:
    for unseen in (False, True):
        ids = {id: Score(4, 0.0, 2) if id in tested else Score(0, 0.0, 0) for id in ("nswo" if unseen else "nsw")}
        run: Any = SimpleNamespace(metric=METRICS["accuracy"], scores=ids, unseen=set("nsw") if unseen else set())
        assert over_how_many([run], unseen) == (said.replace("clients", "unseen clients") if unseen else said)


# -- what a run cost in privacy: in the summary, on the terminal, in a comparison and in the report ----------------


SHORT = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 2}})
PRIVATE = SHORT.with_changes(**{"privacy.clip": 1.0, "privacy.noise": 4.0})
RELEASES = {
    "b": {"releases": 0, "signed": 0.0, "open": {}},
    "a": {"releases": 3, "signed": 0.0, "open": {"train": ["n"], "sign": ["k"]}},
    "c": {"releases": 1, "signed": 0.0, "open": {"train": ["classes", "n"]}},
}


def test_the_entry_of_clients_that_released_unlike_often() -> None:
    privacy = Privacy(clip=1.0, noise=2.0)
    entry = privacy_spent(privacy, RELEASES)
    one, three = privacy.epsilon(1), privacy.epsilon(3)
    assert entry["epsilon"] == {
        "max": three, "mean": pytest.approx((one + three) / 3), "clients": {"a": three, "b": 0.0, "c": one}
    }  # fmt: skip
    assert entry["releases"] == {"a": 3, "b": 0, "c": 1}
    assert entry["open"] == {"sign": ["k"], "train": ["classes", "n"]}
    words = privacy_sentence(entry)
    assert words.startswith(f"epsilon {three:.2f} (mean over clients {(one + three) / 3:.2f}) at delta 1e-05")
    assert words.endswith("at most 3 releases; sent as they are: k (sign), classes, n (train)")


def test_clipping_alone_promises_nothing() -> None:
    entry = privacy_spent(Privacy(clip=1.0, noise=0.0), RELEASES)
    assert entry["epsilon"] == {"max": None, "mean": None, "clients": {"a": None, "b": 0.0, "c": None}}
    assert privacy_sentence(entry).startswith("no finite epsilon (no noise)")
    json.dumps(entry, allow_nan=False)


def test_epsilon_is_in_summary_terminal_comparison_and_report(tmp_path: Path) -> None:
    results = compare(Runs(PRIVATE), ["local", "sfmtl-graph"], [0], tmp_path / "both")
    result = results["sfmtl-graph"][0]
    folder = tmp_path / "both" / "sfmtl-graph-seed0"
    summary = json.loads((folder / "summary.json").read_text())
    reading.checked(reading.Summary, summary, folder / "summary.json")
    sent = [row[1] for row in result.messages if row[3] == "train" and row[1] != "server"]
    entry = summary["privacy"]
    assert entry["releases"] == {id: sent.count(id) for id in result.scores}
    most = Privacy(clip=1.0, noise=4.0).epsilon(max(entry["releases"].values()))
    assert entry["epsilon"]["max"] == most
    assert entry["open"] == {"train": ["classes", "n"]}
    assert f"epsilon {most:.2f}" in printed(one_run(result), 200)
    assert "sent as they are: classes, n (train)" in printed(one_run(result), 200)
    shown = printed(comparison(comparison_rows(results)), 200)
    assert "epsilon" in shown
    assert f"{most:.2f}" in shown
    assert "epsilon" in (tmp_path / "both" / "compare.csv").read_text().splitlines()[0]
    html = page(collect([tmp_path / "both"]))
    assert "Privacy of uploads" in html
    assert html.partition('<script type="application/json"')[0].count(f"epsilon {most:.2f} (mean over clients") == 1


def test_without_it_nothing_is_written(tmp_path: Path) -> None:
    result = run_experiment(SHORT, Path(), tmp_path / "run")
    assert "privacy" not in result.summary
    assert "privacy" not in (tmp_path / "run" / "experiment.toml").read_text()
    assert "privacy" not in printed(one_run(result), 200)
    assert "epsilon" not in comparison_rows({"sfmtl-graph": {0: result}})[0]
    html = page(collect([tmp_path / "run"]))
    assert "Privacy of uploads" not in html


def test_damaged_entries_are_refused() -> None:
    privacy: Any = privacy_spent(Privacy(clip=1.0, noise=0.0), RELEASES)
    summary = {**run_experiment(SHORT, Path()).summary, "privacy": privacy}
    reading.checked(reading.Summary, summary, Path("summary.json"))
    privacy["epsilon"]["max"] = "low"
    with pytest.raises(RunError, match=r"privacy\.epsilon\.max: input should be a valid number"):
        reading.checked(reading.Summary, summary, Path("summary.json"))
