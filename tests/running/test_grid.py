"""A comparison's table, recomputed by hand from the runs' own records."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fedkin
from fedkin.errors import ConfigError, RunError
from fedkin.records.comparison import comparison_rows
from fedkin.records.models import StoredModels
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Choice, Runs, check_choices, combinations, compare, rows, sweep
from fedkin.running.loop import Stop, run_experiment
from support import small_federation
from tiny import TABLE, CutAt


@pytest.mark.slow
def test_table_against_the_records(tmp_path: Path) -> None:
    results = compare(Runs(Experiment.of(TABLE)), ["local", "fedavg"], [0, 1, 2], tmp_path / "c")
    rows = {row["method"]: row for row in comparison_rows(results)}

    def last(method: str, seed: int) -> dict[str, float]:
        found = pq.read_table(tmp_path / "c" / f"{method}-seed{seed}" / "clients.parquet").to_pandas()
        found = found[found["round"] == 7]
        return dict(zip(found["client"], found["accuracy"], strict=True))

    means = [np.mean(list(last("fedavg", seed).values())) for seed in (0, 1, 2)]
    assert rows["fedavg"]["mean"] == (pytest.approx(np.mean(means)), pytest.approx(np.std(means, ddof=1)))
    gained = [[last("fedavg", seed)[id] - last("local", seed)[id] for id in last("local", seed)] for seed in (0, 1, 2)]
    assert rows["fedavg"]["gain"][0] == pytest.approx(np.mean(gained))
    assert rows["fedavg"]["hurt"][0] == pytest.approx(np.mean(np.array(gained) < -1e-9))
    assert rows["local"]["gain"] is None
    assert rows["local"]["bytes_up"] == (0.0, 0.0)
    assert rows["fedavg"]["found"] is None
    one, other = ((tmp_path / "c" / f"{name}-seed2" / "federation.json").read_bytes() for name in ("local", "fedavg"))
    assert one == other


@pytest.mark.slow
def test_models_stay_in_the_folders_of_a_comparison(tmp_path: Path) -> None:
    """Those of all runs together would not fit into memory."""
    results = compare(Runs(Experiment.of(TABLE)), ["local", "fedavg"], [0], tmp_path / "c")
    for name, by_seed in results.items():
        result = by_seed[0]
        assert isinstance(result.models, StoredModels)
        alone = run_experiment(Experiment.of(TABLE).for_method(name), Path()).models
        assert isinstance(alone, dict)
        assert result.models.keys() == alone.keys()
        assert all(
            torch.equal(result.models[id][part], value) for id, model in alone.items() for part, value in model.items()
        )


@pytest.mark.slow
def test_models_that_no_folder_has_stay_with_the_result(tmp_path: Path) -> None:
    for name, value in (("models", "none"), ("models_limit_mb", 1e-4)):
        plan = Experiment.of(TABLE).with_changes(**{f"run.{name}": value})
        result = compare(Runs(plan), ["fedavg"], [0], tmp_path / name)["fedavg"][0]
        assert len(result.models) == len(result.scores)
    assert len(compare(Runs(Experiment.of(TABLE)), ["fedavg"], [0])["fedavg"][0].models) == len(result.scores)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_comparison_goes_on_with_the_samples_that_it_began_with(tmp_path: Path, seed: int) -> None:
    rows = [f"{'ab'[row % 2]},{row % 7},{row % 3 == 0:d}" for row in range(60)]
    place = tmp_path / "stays.csv"
    plan = Experiment.of(
        {
            **TABLE, "data": {"source": "csv", "path": str(place), "target": "died", "client": "site"},
            "scenario": {"name": "natural"}, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1},
            "run": {"adversaries": "label-flip:0.5"},
        }
    )  # fmt: skip
    place.write_text("\n".join(["site,age,died", *rows]))
    compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")
    shutil.rmtree(tmp_path / "all" / f"fedavg-seed{seed}")
    place.write_text("\n".join(["site,age,died", *rows[::-1]]))
    with pytest.raises(RunError, match=r"local-seed0.*the clients or their samples are not those that this run began"):
        compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")
    assert not (tmp_path / "all" / f"fedavg-seed{seed}").exists()
    place.write_text("\n".join(["site,age,died", *rows]))
    assert set(compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")["fedavg"]) == {0, 1}


def test_a_message_between_peers_is_sent_once() -> None:
    result = fedkin.run("dfedavgm", small_federation(), rounds=1, training={"local_steps": 1})
    (row,) = comparison_rows({"dfedavgm": {0: result}})
    assert row["bytes_sent"][0] == row["bytes_up"][0] == row["bytes_down"][0] > 0
    result = fedkin.run("fedavg", small_federation(), rounds=1, training={"local_steps": 1})
    (row,) = comparison_rows({"fedavg": {0: result}})
    assert row["bytes_sent"][0] == row["bytes_up"][0] + row["bytes_down"][0]


# -- a combinations of settings: its runs are those of single experiments, and it goes on after a stop ---------------


NOWHERE = Path("nowhere")
GRID = [Choice.parse("training.lr=0.05,0.5", "--grid"), Choice.parse("fedprox:method.mu=0,1", "--grid")]


@pytest.fixture
def small() -> Experiment:
    return Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 2}, "method": {"name": "fedprox"}})


@pytest.mark.slow
def test_every_run_is_that_of_its_settings(small: Experiment, tmp_path: Path) -> None:
    found = sweep(Runs(small), ["local", "fedprox"], GRID, [0, 1], tmp_path / "s")
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
    found = sweep(Runs(small), ["local", "fedavg"], GRID[:1], [0], tmp_path / "s")
    for row, alone, other in zip(rows(found)[2:], found[:2], found[2:], strict=True):
        assert row["gain"][0] == pytest.approx(other.results[0].value - alone.results[0].value)


class Count(CutAt):
    """Counts the runs that begin, and stops one of them."""

    begun = 0

    def started(self, rounds: int, done: int) -> None:
        Count.begun += 1


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on_and_ends_alike(small: Experiment, tmp_path: Path) -> None:
    def stops(what: str, done: int, of: int) -> CutAt:
        assert of == 4
        return CutAt(1 if done == 2 else 99, "stop")

    whole = sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "whole")
    with pytest.raises(Stop):
        sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "cut", watch=stops)
    assert not (tmp_path / "cut" / "sweep.csv").exists()
    again = sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "cut", watch=lambda *_: Count(99))
    assert Count.begun == 2
    assert [one.results[0].scores for one in again] == [one.results[0].scores for one in whole]
    for name in ("plan.json", "experiment.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(RunError, match="differs from what to sweep"):
        sweep(Runs(small), ["fedprox"], GRID[:1], [0], tmp_path / "cut")


def test_what_is_wrong_is_refused_before_anything_runs(small: Experiment, tmp_path: Path) -> None:
    for choices, why in (
        (["method.mu=0,-1"], r"^grid for fedprox: method\.mu"), (["training.lr=a,b"], "^grid for fedprox: training"),
        (["training.lrr=1"], r"training\.lrr: no such setting"),
        (["training.clients_per_round=2,99"], "99 clients a round"),
    ):  # fmt: skip
        wanted = [Choice.parse(text, "--grid") for text in choices]
        with pytest.raises(ConfigError, match=why):
            sweep(Runs(small), ["fedprox"], wanted, [0], tmp_path / "s")
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
    found = sweep(Runs(small), ["fedavg", "fedprox@self"], wanted, [0], tmp_path / "s")
    assert [(one.method, dict(one.settings)) for one in found] == [
        ("fedavg", {}), ("fedprox@self", {"method.mu": 0.1}), ("fedprox@self", {"method.mu": 1}),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="method 'fedprox' does not run here; known: fedavg"):
        check_choices(wanted, ["fedavg@self"], "--grid")


def test_names_of_folders_differ_where_values_do(small: Experiment, tmp_path: Path) -> None:
    wanted = [Choice.parse("model.hidden=[8],[4, 4]", "--grid")]
    assert wanted[0].values == ([8], [4, 4])
    found = sweep(Runs(small), ["fedavg"], wanted, [0], tmp_path / "s")
    homes = [one.results[0].folder for one in found]
    assert len({home.parent.name for home in homes if home is not None}) == 2
