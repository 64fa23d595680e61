"""What a run cost in privacy: in the summary, on the terminal, in a comparison and in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkin.engines import Privacy
from fedkin.errors import RunError
from fedkin.records import reading
from fedkin.records.comparison import comparison_rows
from fedkin.records.metrics import privacy_sentence, privacy_spent
from fedkin.report.collect import collect
from fedkin.report.page import page
from fedkin.report.tables import comparison, one_run
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import run_experiment
from support import printed
from tiny import TABLE

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
