"""A combinations of settings: its runs are those of single experiments, and it goes on after a stop."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedkin.errors import ConfigError, RunError
from fedkin.records.models import StoredModels
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Choice, check_choices, combinations, rows, sweep
from fedkin.running.loop import Stop, run_experiment
from tiny import TABLE, CutAt

NOWHERE = Path("nowhere")
GRID = [Choice.parse("training.lr=0.05,0.5", "--grid"), Choice.parse("fedprox:method.mu=0,1", "--grid")]


@pytest.fixture
def small() -> Experiment:
    return Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 2}, "method": {"name": "fedprox"}})


def test_every_run_is_that_of_its_settings(small: Experiment, tmp_path: Path) -> None:
    found = sweep(small, ["local", "fedprox"], GRID, [0, 1], NOWHERE, tmp_path / "s")
    assert [(one.method, tuple(one.settings.values())) for one in found] == [
        ("local", (0.05,)), ("local", (0.5,)),
        ("fedprox", (0.05, 0)), ("fedprox", (0.05, 1)), ("fedprox", (0.5, 0)), ("fedprox", (0.5, 1)),
    ]  # fmt: skip
    alone = run_experiment(small.with_changes(**{"training.lr": 0.5, "method.mu": 1, "run.seed": 1}), NOWHERE)
    assert found[-1].results[1].scores == alone.scores
    assert alone.scores != found[-2].results[1].scores
    assert all(isinstance(result.models, StoredModels) for one in found for result in one.results.values())
    made = rows(found)
    assert made[-1]["settings"] == "lr=0.5, mu=1"
    assert made[-1]["mean"][0] == pytest.approx((found[-1].results[0].value + found[-1].results[1].value) / 2)
    with (tmp_path / "s" / "sweep.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["settings"] for line in lines] == [row["settings"] for row in made]
    assert float(lines[0]["mean.mean"]) == pytest.approx(made[0]["mean"][0])


def test_gains_are_against_local_with_the_same_settings(small: Experiment, tmp_path: Path) -> None:
    found = sweep(small, ["local", "fedavg"], GRID[:1], [0], NOWHERE, tmp_path / "s")
    for row, alone, other in zip(rows(found)[2:], found[:2], found[2:], strict=True):
        assert row["gain"][0] == pytest.approx(other.results[0].value - alone.results[0].value)


class Count(CutAt):
    """Counts the runs that begin, and stops one of them."""

    begun = 0

    def started(self, rounds: int, done: int) -> None:
        Count.begun += 1


def test_a_sweep_that_was_stopped_goes_on_and_ends_alike(small: Experiment, tmp_path: Path) -> None:
    def stops(name: str, settings: Mapping[str, Any], seed: int, done: int, of: int) -> CutAt:
        assert of == 4
        return CutAt(1 if done == 2 else 99, "stop")

    whole = sweep(small, ["fedprox"], GRID, [0], NOWHERE, tmp_path / "whole")
    with pytest.raises(Stop):
        sweep(small, ["fedprox"], GRID, [0], NOWHERE, tmp_path / "cut", watcher=stops)
    assert not (tmp_path / "cut" / "sweep.csv").exists()
    again = sweep(
        small, ["fedprox"], GRID, [0], NOWHERE, tmp_path / "cut", resume=True, watcher=lambda *_: Count(99)
    )  # fmt: skip
    assert Count.begun == 2
    assert [one.results[0].scores for one in again] == [one.results[0].scores for one in whole]
    for name in ("plan.json", "experiment.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(RunError, match="differs from what to sweep"):
        sweep(small, ["fedprox"], GRID[:1], [0], NOWHERE, tmp_path / "cut", resume=True)


def test_what_is_wrong_is_refused_before_anything_runs(small: Experiment, tmp_path: Path) -> None:
    for choices, why in (
        (["method.mu=0,-1"], r"method\.mu"), (["training.lrr=1"], r"training\.lrr: no such setting"),
        (["training.clients_per_round=2,99"], "99 clients a round"),
    ):  # fmt: skip
        wanted = [Choice.parse(text, "--grid") for text in choices]
        with pytest.raises(ConfigError, match=why):
            sweep(small, ["fedprox"], wanted, [0], NOWHERE, tmp_path / "s")
        assert not (tmp_path / "s").exists()


def test_values_for_a_method_are_also_those_of_its_controls(small: Experiment, tmp_path: Path) -> None:
    wanted = [Choice.parse("fedprox:method.mu=0.1,1", "--grid")]
    check_choices(wanted, ["fedprox@self"], "--grid")
    assert (
        combinations(wanted, "fedprox@self")
        == combinations(wanted, "fedprox")
        == [{"method.mu": 0.1}, {"method.mu": 1}]
    )
    assert combinations(wanted, "fedavg@self") == [{}]
    found = sweep(small, ["fedavg", "fedprox@self"], wanted, [0], NOWHERE, tmp_path / "s")
    assert [(one.method, dict(one.settings)) for one in found] == [
        ("fedavg", {}), ("fedprox@self", {"method.mu": 0.1}), ("fedprox@self", {"method.mu": 1}),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="method 'fedprox' does not run here; known: fedavg"):
        check_choices(wanted, ["fedavg@self"], "--grid")


def test_names_of_folders_differ_where_values_do(small: Experiment, tmp_path: Path) -> None:
    wanted = [Choice.parse("model.hidden=[8],[4, 4]", "--grid")]
    assert wanted[0].values == ([8], [4, 4])
    found = sweep(small, ["fedavg"], wanted, [0], NOWHERE, tmp_path / "s")
    homes = [one.results[0].folder for one in found]
    assert len({home.parent.name for home in homes if home is not None}) == 2
