"""A comparison's table, recomputed by hand from the runs' own records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fedkin
from fedkin.records.comparison import table
from fedkin.records.models import StoredModels
from fedkin.running.experiment import Experiment
from fedkin.running.grid import compare
from fedkin.running.loop import run_experiment
from support import small_federation
from tiny import TABLE


def test_table_against_the_records(tmp_path: Path) -> None:
    results = compare(Experiment.of(TABLE), ["local", "fedavg"], [0, 1, 2], Path(), tmp_path / "c")
    rows = {row["method"]: row for row in table(results)}

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


def test_the_same_seed_is_the_same_federation_for_every_method(tmp_path: Path) -> None:
    compare(Experiment.of(TABLE), ["local", "fedavg"], [3], Path(), tmp_path / "c")
    one, other = ((tmp_path / "c" / f"{m}-seed3" / "federation.json").read_bytes() for m in ("local", "fedavg"))
    assert one == other


def test_models_stay_in_the_folders_of_a_comparison(tmp_path: Path) -> None:
    """Those of all runs together would not fit into memory."""
    results = compare(Experiment.of(TABLE), ["local", "fedavg"], [0], Path(), tmp_path / "c")
    for name, by_seed in results.items():
        result = by_seed[0]
        assert isinstance(result.models, StoredModels)
        alone = run_experiment(Experiment.of(TABLE).for_method(name), Path(), tmp_path / name).models
        assert isinstance(alone, dict)
        assert result.models.keys() == alone.keys()
        assert all(
            torch.equal(result.models[id][part], value) for id, model in alone.items() for part, value in model.items()
        )


def test_models_that_no_folder_has_stay_with_the_result(tmp_path: Path) -> None:
    for name, value in (("models", "none"), ("models_limit_mb", 1e-4)):
        plan = Experiment.of(TABLE).with_changes(**{f"run.{name}": value})
        result = compare(plan, ["fedavg"], [0], Path(), tmp_path / name)["fedavg"][0]
        assert len(result.models) == len(result.scores)
    assert len(compare(Experiment.of(TABLE), ["fedavg"], [0], Path())["fedavg"][0].models) == len(result.scores)


def test_a_message_between_peers_is_sent_once() -> None:
    result = fedkin.run("dfedavgm", small_federation(), rounds=1, training={"local_steps": 1})
    (row,) = table({"dfedavgm": {0: result}})
    assert row["bytes_sent"][0] == row["bytes_up"][0] == row["bytes_down"][0] > 0
    result = fedkin.run("fedavg", small_federation(), rounds=1, training={"local_steps": 1})
    (row,) = table({"fedavg": {0: result}})
    assert row["bytes_sent"][0] == row["bytes_up"][0] + row["bytes_down"][0]
