"""`fedkin tune`: a table, a plot, going on, and what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from cli.invoked import Terminal, said
from fedkin.cli import app
from tiny import TABLE

SWEEP = ["tune", "small.toml", "--methods", "local,fedavg", "--grid", "training.lr=0.05,0.5", "--seeds", "0-1",
         "--out", "swept"]  # fmt: skip


@pytest.fixture(autouse=True)
def _experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(tomli_w.dumps({**TABLE, "training": {**TABLE["training"], "rounds": 2}}))


def test_a_table_a_plot_and_the_same_again() -> None:
    result = CliRunner().invoke(app, SWEEP)
    assert result.exit_code == 0, result.output
    for text in ("local, lr=0.05", "fedavg, lr=0.5", "seeds 0, 1", "to choose a setting, use fedkin tune", "sweep.csv"):
        assert text in result.stdout
    page = Path("swept/sweep.html").read_text()
    assert "training.lr" in page
    assert "small: a sweep" in page
    again = CliRunner().invoke(app, ["tune", "--resume", "swept", "--json"])
    rows = json.loads(again.stdout)
    assert [(row["method"], row["training.lr"]) for row in rows] == [
        ("local", 0.05), ("local", 0.5), ("fedavg", 0.05), ("fedavg", 0.5),
    ]  # fmt: skip
    assert rows[0]["gain"] is None
    assert rows[2]["gain"] is not None
    assert CliRunner().invoke(app, ["report", "swept/lr=0.05", "swept/lr=0.5"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune", "small.toml", "--grid", "training.lr=1", "--equal", "3"], "--grid runs every combination"),
        (["tune", "small.toml", "--grid", "training.lr"], "--grid 'training.lr': expected section.field=value,value"),
        (["tune", "small.toml", "--grid", "training.lrr=1"], "training.lrr: no such setting; did you mean 'lr'"),
        (
            ["tune", "small.toml", "--methods", "local,fedprox", "--grid", "fedavg:training.lr=1"],
            "--grid fedavg:training.lr: method 'fedavg' does not run here; known: fedprox, local",
        ),
        (["tune", "--resume", "swept", "--seeds", "1"], "give no others"),
        (["compare", "--resume", "swept"], "--resume swept: continue it with fedkin tune --resume"),
        (
            ["run", "--resume", "swept"],
            "a comparison, a tuning or a sweep, not a run; continue it with fedkin tune --resume",
        ),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], says: str, terminal: Terminal) -> None:
    if "swept" in words:
        grid = ["tune", "small.toml", "--methods", "local", "--grid", "training.lr=0.1", "--out", "swept"]
        assert CliRunner().invoke(app, grid).exit_code == 0
    code, _, err = terminal(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert says in err


def test_check_knows_a_sweep() -> None:
    assert CliRunner().invoke(app, SWEEP).exit_code == 0
    said = CliRunner().invoke(app, ["runs", "check", "swept"]).stdout
    assert "sweep: of 8 runs begun, 8 are over; goes on with fedkin tune --resume swept" in said


@pytest.mark.usefixtures("forgotten")
def test_a_change_may_name_a_method_of_a_file_that_is_compared() -> None:
    Path("own_prox.py").write_text(
        "from typing import ClassVar\nfrom fedkin.methods.fedprox import FedProx\n\n"
        "class Mine(FedProx):\n    name: ClassVar[str] = 'own-prox'\n    title: ClassVar[str] = 'Own'\n"
    )
    change = ("--set", "methods.own-prox.method.mu=7.5", "--out", "mine")
    said("compare", "small.toml", "--methods", "own_prox.py:Mine", *change)
    assert "mu = 7.5" in Path("mine/own-prox-seed0/experiment.toml").read_text()
