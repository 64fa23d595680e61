"""`fedkin tune`: a table, an experiment file that `compare` takes, and going on after a stop."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from fedkin.cli import app, main
from tiny import TABLE


@pytest.fixture(autouse=True)
def _experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table: dict[str, Any] = {**TABLE, "training": {**TABLE["training"], "rounds": 2}}
    Path("small.toml").write_text(tomli_w.dumps(table))


TUNE = ["tune", "small.toml", "--methods", "local,fedavg", "--try", "training.lr=0.001,0.5", "--out", "tuned"]


def test_what_was_chosen_is_what_compare_runs() -> None:
    result = CliRunner().invoke(app, TUNE)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("chosen") == 3
    assert "judged on samples:0.2 of the training data, seeds 0" in result.stdout
    chosen = tomllib.loads(Path("tuned/tuned.toml").read_text())["methods"]["fedavg"]["training.lr"]
    again = CliRunner().invoke(app, ["tune", "--resume", "tuned", "--json"])
    rows = json.loads(again.stdout)["fedavg"]
    assert max(rows, key=lambda row: row["values"][0])["settings"] == {"training.lr": chosen}
    result = CliRunner().invoke(app, ["compare", "tuned/tuned.toml", "--methods", "fedavg", "--out", "c"])
    assert result.exit_code == 0, result.output
    assert tomllib.loads(Path("c/fedavg-seed0/experiment.toml").read_text())["training"]["lr"] == chosen


def test_a_method_whose_candidates_all_fail_does_not_cost_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--try", "local:training.lr=0.1", "--try", "fedavg:training.lr=1e30"]
    monkeypatch.setattr(sys, "argv", ["fedkin", *TUNE[:4], *grid, "--out", "tuned"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out.count("chosen") == 2
    assert "every candidate failed of fedavg" in said.err
    assert "fedavg: round 1, client" in said.err
    assert tomllib.loads(Path("tuned/tuned.toml").read_text())["methods"] == {"local": {"training.lr": 0.1}}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune", "small.toml"], "--try: name at least one setting"),
        (["tune", "small.toml", "--try", "training.lr"], "expected section.field=value,value"),
        (["tune", "small.toml", "--try", "training.lrr=1"], "training.lrr: no such setting; did you mean 'lr'"),
        (["tune", "small.toml", "--try", "training.lr=1", "--hold-out", "half"], "--hold-out 'half': expected"),
        (["tune", "--resume", "tuned", "--methods", "local"], "give no others"),
        (["compare", "--resume", "tuned"], "a tuning, not a comparison"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "tuned" in words:
        assert CliRunner().invoke(app, TUNE).exit_code == 0
    monkeypatch.setattr(sys, "argv", ["fedkin", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_an_equal_tuning_goes_on_with_its_candidates() -> None:
    words = [
        "tune",
        "small.toml",
        "--methods",
        "local,fedprox",
        "--equal",
        "3",
        "--rates",
        "0.01,0.5",
        "--out",
        "tuned",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("chosen") == 3
    again = CliRunner().invoke(app, ["tune", "--resume", "tuned", "--json"])
    rows = json.loads(again.stdout)
    assert [len(tried) for tried in rows.values()] == [3, 3]
    assert set(rows["fedprox"][1]["settings"]) == {"training.lr", "method.mu"}
    assert "tuning: of 6 runs begun, 6 are over" in CliRunner().invoke(app, ["check", "tuned"]).stdout
