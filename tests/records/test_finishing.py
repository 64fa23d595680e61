"""The end of a run: what stays of it when it is made lighter."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fedkin
from fedkin.federation import Federation
from fedkin.records.checking import check
from fedkin.records.files import drop_models
from fedkin.records.run import read_run
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from support import small_federation
from tiny import TABLE


@pytest.mark.slow
def test_a_light_run_has_its_figures_and_is_as_it_was_written(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    run = tmp_path / "run"
    run_experiment(experiment, tmp_path, run)
    whole = read_run(run)
    assert (run / "models").is_dir()
    shutil.copytree(run, tmp_path / "killed")
    drop_models(run)
    assert not (run / "models").exists()
    assert not (run / "checkpoint").exists()
    (found,) = check(run)
    assert not found.problems
    light = read_run(run)
    assert (light.summary, light.scores) == (whole.summary, whole.scores)
    # As a process leaves it that was killed after it had written the seal.
    shutil.copy(run / "seal.json", tmp_path / "killed" / "seal.json")
    (found,) = check(tmp_path / "killed")
    assert not found.problems
    drop_models(tmp_path / "killed")
    assert not (tmp_path / "killed" / "models").exists()


def test_a_run_that_is_not_finished_keeps_what_it_goes_on_with(tmp_path: Path) -> None:
    for name in ("models", "checkpoint"):
        (tmp_path / name).mkdir()
    drop_models(tmp_path)
    assert (tmp_path / "checkpoint").is_dir()


def test_a_finished_run_that_is_read_again_stays_as_it_was_written(tmp_path: Path) -> None:
    """Also where clients are told of otherwise, which is no part of their samples."""
    federation = small_federation()
    first = fedkin.run("local", federation, rounds=1, out=tmp_path / "run")
    before = (tmp_path / "run" / "federation.json").read_bytes()
    told = [replace(client, about={"place": id}) for id, client in federation.items()]
    again = fedkin.run("local", Federation(told, federation.task, federation.name), rounds=1, out=tmp_path / "run")
    assert again.values == first.values
    assert (tmp_path / "run" / "federation.json").read_bytes() == before
