"""Features in a run's records: at the rounds that were asked for, and without changing anything else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from tiny import TABLE


def ran(folder: Path, **run: Any) -> Path:
    table = copy.deepcopy(TABLE)
    table["training"]["rounds"] = 4
    table["run"] |= run
    run_experiment(Experiment.of(table), Path(), folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "features").iterdir())


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("usual") / "run")


def test_only_the_last_round_unless_asked(usual: Path, tmp_path: Path) -> None:
    assert names(usual) == ["round-000004.safetensors"]
    every = ran(tmp_path / "run", embeddings_every=1, evaluate_every=3)
    assert names(every) == ["round-000003.safetensors", "round-000004.safetensors"]


def test_nothing_else_changes(usual: Path, tmp_path: Path) -> None:
    often = ran(tmp_path / "run", embeddings_every=1)
    assert len(names(often)) == 4
    for name in ("rounds.jsonl", "clients.parquet", "messages.parquet", "rounds.csv", "graphs/round-000004.npz"):
        assert (often / name).read_bytes() == (usual / name).read_bytes(), name
    assert (often / "features" / names(usual)[0]).read_bytes() == (usual / "features" / names(usual)[0]).read_bytes()
