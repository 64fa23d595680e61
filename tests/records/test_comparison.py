"""What a comparison says of methods that do not run under the same conditions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.records.comparison import over_how_many, unequal_conditions
from fedkin.report.collect import collect
from fedkin.report.page import page
from fedkin.running.experiment import load
from fedkin.running.grid import Runs, compare
from fedkin.tasks import Kind

PRESET = Path(__file__).parents[2] / "presets" / "digits-rotated.toml"


def sentences(folder: Path, methods: list[str], *changes: str) -> list[str]:
    plan = load(PRESET, ["training.rounds=1", "training.lr=0.3", *changes])
    results = compare(Runs(plan), methods, [0], folder)
    return unequal_conditions({name: by_seed[0] for name, by_seed in results.items()})


@pytest.mark.slow
def test_unlike_settings_of_training_are_said(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "fedavg@self"]
    assert sentences(tmp_path / "alike", methods) == []
    (text,) = sentences(tmp_path / "unlike", methods, "methods.fedavg.training.lr=0.7")
    assert text.startswith("learning rates differ (local: 0.3; fedavg: 0.7)")
    assert sentences(tmp_path / "steps", methods, "methods.local.training.local_steps=3") == [
        "training.local_steps differs (local: 3; fedavg: 5)"
    ]


@pytest.mark.slow
def test_methods_that_are_told_the_number_of_groups_are_named(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path / "told", ["fedavg", "ifca"], "methods.ifca.method.clusters=4")
    assert text == "not all methods are told the same (fedavg: nothing; ifca: 4 groups, given)"


def test_figures_over_fewer_clients_say_so(tmp_path: Path) -> None:
    y = np.array([0, 1] * 20 + [0] * 20)
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    client, split = ["north"] * 20 + ["south"] * 20 + ["west"] * 20, ["train", "train", "test", "test"] * 15
    cases: tuple[tuple[Kind, str], ...] = (
        ("risk", "ROC-AUC: figures are over 2 of 3 clients, since the test samples of the others are of one"),
        ("classification", ""),
    )
    for kind, said in cases:
        federation = fedkin.Federation.from_arrays(x, y, client=client, split=split, kind=kind)
        run = fedkin.run("local", federation, rounds=1, out=tmp_path / kind)
        assert over_how_many([run]).startswith(said)
        assert bool(over_how_many([run])) == bool(said)
        assert ("figures are over" in page(collect([tmp_path / kind]))) == bool(said)
