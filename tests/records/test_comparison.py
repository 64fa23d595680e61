"""What a comparison says of methods with unlike learning rates."""

from __future__ import annotations

from pathlib import Path

from fedkin.records.comparison import unlike_rates
from fedkin.running.experiment import load
from fedkin.running.grid import compare

PRESET = Path(__file__).parents[2] / "presets" / "digits-rotated.toml"


def words(folder: Path, *changes: str) -> str:
    plan = load(PRESET, ["training.rounds=1", "training.lr=0.3", *changes])
    return unlike_rates(compare(plan, ["local", "fedavg", "fedavg@self"], [0], Path(), folder))


def test_unlike_rates_of_methods_are_said(tmp_path: Path) -> None:
    assert words(tmp_path / "alike") == ""
    said = words(tmp_path / "unlike", "methods.fedavg.training.lr=0.7")
    assert said.startswith("learning rates differ (local: 0.3; fedavg: 0.7)")
