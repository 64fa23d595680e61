"""Candidates chosen by Optuna: in their ranges, the same each time, nearer to the best, and the same after a stop."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.errors import ConfigError, RunError
from fedkin.records.files import read_json
from fedkin.report.results import _tuning
from fedkin.running.experiment import Experiment
from fedkin.running.holdout import HoldOut
from fedkin.running.papers import Equally, PaperTable
from fedkin.running.tune import RATE, Equal, OptunaSearch, best, tune
from fedkin.settings import Span
from tiny import TABLE, CutAt

BASE = Experiment.of({**TABLE, "method": {"name": "fedprox"}, "training": {**TABLE["training"], "rounds": 2}})
EQUAL = Equal(7, (0.001, 1.0), optuna=True)
HOLD = HoldOut("samples", 0.2)


def tuning(folder: Path, equal: Equal = EQUAL, **more: Any) -> Any:
    return tune(BASE, ["fedavg", "fedprox"], equal, HOLD, [0, 1], Path("nowhere"), folder, **more)


def test_without_optuna_it_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs Optuna: pip install 'fedkin\[optuna\]'"):
        tuning(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_halving_and_optuna_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        Equal.parse("9", halving=True, optuna=True)


@pytest.mark.parametrize(("candidates", "chosen"), [(4, 1), (6, 3), (9, 6), (12, 8)])
def test_how_many_are_chosen_and_that_none_would_be_is_refused(candidates: int, chosen: int) -> None:
    assert Equal(candidates, optuna=True).chosen == chosen
    assert Equal(candidates).chosen == 0
    how = Equally(candidates=candidates, rates=(0.01, 0.1), optuna=True)
    table = PaperTable.model_construct(title="a table", source="a paper", seeds=(0,), tune=how)
    assert f" {chosen} of them chosen by Optuna" in _tuning(table)
    for few in (2, 3):
        with pytest.raises(ConfigError, match=f"with {few} candidates it would choose none.*take 4 or more"):
            Equal.parse(str(few), optuna=True)
        with pytest.raises(ValueError, match="it would choose none"):
            Equally(candidates=few, rates=(0.01, 0.1), optuna=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "ifca", "mapl", "sfmtl-graph", "tfl"])
def test_every_method_takes_what_is_chosen(name: str) -> None:
    pytest.importorskip("optuna")
    base = BASE.for_method(name)
    ranges = EQUAL.ranges(base)
    first, second = (OptunaSearch(ranges, 3, higher=True) for _ in range(2))
    for number in range(8):
        values = first.ask()
        assert values == second.ask()
        for path, span in ranges.items():
            assert span.low <= values[path] <= span.high if isinstance(span, Span) else values[path] in span
        changed = base.with_changes(**values)
        assert EQUAL.values(changed) == values
        for guide in (first, second):
            guide.tell(values, math.nan if number == 2 else values[RATE])


@pytest.mark.slow
def test_what_is_chosen_comes_nearer_to_the_best_than_what_spreads() -> None:
    """A loss with its least value at rate .03 and mu .2: 24 candidates, ten draws each."""
    pytest.importorskip("optuna")
    ranges = {RATE: Span(0.001, 1.0), "method.mu": Span(0.001, 1.0)}

    def loss(values: Any) -> float:
        return math.log10(values[RATE] / 0.03) ** 2 + math.log10(values["method.mu"] / 0.2) ** 2

    spread, guided = [], []
    for seed in range(10):
        drawn = Equal(24, (0.001, 1.0), seed).settings(BASE)[1:]
        spread.append(min(map(loss, drawn)))
        guide, found = OptunaSearch(ranges, seed, higher=False), []
        for values in drawn[:8]:
            guide.tell(values, loss(values))
            found.append(loss(values))
        while len(found) < len(drawn):
            values = guide.ask()
            guide.tell(values, loss(values))
            found.append(loss(values))
        guided.append(min(found))
    assert np.median(guided) < np.median(spread) / 2


@pytest.mark.slow
def test_it_goes_on_where_it_stopped_and_keeps_to_the_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("optuna")
    watched: list[tuple[str, int, int]] = []

    def hears(method: str, values: object, seed: int, done: int, of: int) -> CutAt:
        watched.append((method, done, of))
        return CutAt(99)

    whole = tuning(tmp_path / "whole", watcher=hears)
    assert [(method, done) for method, done, _ in watched] == [
        (method, number)
        for method, numbers in (("fedavg", range(14)), ("fedprox", range(14, 28)))
        for number in numbers
    ]
    assert {of for *_, of in watched} == {28}
    for name, tried in whole.items():
        base = BASE.for_method(name)
        assert [dict(one.settings) for one in tried[:3]] == EQUAL.settings(base)[:3]
        assert len({json.dumps(dict(one.settings)) for one in tried}) == 7
        assert best(tried, True) is not None

    def cut(method: str, values: object, seed: int, done: int, of: int) -> CutAt:
        return CutAt(1 if (method, done) == ("fedprox", 24) else 99)

    with pytest.raises(RuntimeError, match="cut"):
        tuning(tmp_path / "cut", watcher=cut)
    assert tuning(tmp_path / "cut", resume=True) == whole
    assert (tmp_path / "cut" / "tuned.toml").read_bytes() == (tmp_path / "whole" / "tuned.toml").read_bytes()
    assert not [record for record in caplog.records if record.name.startswith("optuna")]


@pytest.mark.slow
def test_another_version_of_optuna_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    equal = Equal(4, (0.01, 0.1), optuna=True)
    tuning(tmp_path, equal)
    assert read_json(tmp_path / "plan.json")["optuna"] == optuna.__version__
    monkeypatch.setattr(optuna, "__version__", "0.0.1")
    with pytest.raises(RunError, match=r"chosen by Optuna .*; 0\.0\.1, which is installed, may choose others"):
        tuning(tmp_path, equal, resume=True)


@pytest.mark.slow
def test_the_command_takes_it_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(BASE.to_toml())
    words = ["tune", "e.toml", "--methods", "local,fedavg", "--equal", "5", "--out", "t"]
    assert "--equal N" in str(CliRunner().invoke(app, [*words[:4], "--optuna", "--try", "training.lr=1"]).exception)
    result = CliRunner().invoke(app, [*words, "--optuna"])
    assert result.exit_code == 0, result.output
    again = CliRunner().invoke(app, ["tune", "--resume", "t"])
    assert [line for line in again.stdout.splitlines() if "held out" in line or "lr=" in line] == [
        line for line in result.stdout.splitlines() if "held out" in line or "lr=" in line
    ]
    assert "give no others" in str(CliRunner().invoke(app, ["tune", "--resume", "t", "--optuna"]).exception)
