"""Who may look into the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedkin.errors import RunError
from fedkin.folders import locked
from fedkin.running.api import run
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from support import small_federation
from tiny import TABLE

EXPERIMENT = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 1}})


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_owner_may_look_into_a_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        compare(Runs(EXPERIMENT), ["local"], [0], tmp_path / "many" / "all")
        run("local", small_federation(), rounds=1, out=tmp_path / "one")
    finally:
        os.umask(before)
    assert mode(tmp_path / "many") == 0o755
    assert mode(tmp_path / "many" / "all") == mode(tmp_path / "many" / "all" / "local-seed0") == 0o700
    assert mode(tmp_path / "one") == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o750)
    with locked(tmp_path / "mine"):
        assert mode(tmp_path / "mine") == 0o750


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be used"), locked(tmp_path / "file" / "run"):
        pass
