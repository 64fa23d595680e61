"""Outcomes of single samples: written with a run, read back the same, absent where they must not be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fedkin
from fedkin.analysis.paired import figure
from fedkin.engines import Score
from fedkin.errors import RunError
from fedkin.records.metrics import value_of
from fedkin.records.outcomes import FILE, calibration_of, outcomes_of, read_outcomes, write_outcomes
from fedkin.records.run import read_run
from fedkin.tasks import METRICS
from support import changed, present, small_federation
from task_kinds import TASKS, federation_of, model_of

PLAN = {"local_steps": 3, "batch_size": 8, "lr": 0.05}


def run(kind: str, out: Path | None = None, method: str = "fedavg", **more: Any) -> Any:
    classes = kind == "classification"
    federation = small_federation() if classes else federation_of(kind)
    model = "mlp" if classes else model_of(kind)
    return fedkin.run(method, federation, rounds=2, model=model, training=PLAN, out=out, **more)


@pytest.mark.parametrize("kind", ["classification", *TASKS])
def test_what_is_kept_gives_the_figures_of_the_run_and_is_read_back_the_same(kind: str, tmp_path: Path) -> None:
    made = run(kind, tmp_path / "run")
    read = read_run(tmp_path / "run")
    assert made.outcomes.keys() == read.outcomes.keys()
    assert made.outcomes
    name = made.metric.name
    for id, mine in made.outcomes.items():
        assert np.array_equal(mine.values, read.outcomes[id].values)
        assert mine.labels is None or np.array_equal(mine.labels, present(read.outcomes[id].labels))
        value = value_of(made.scores[id])
        assert len(mine) == made.scores[id].n
        assert figure(name, mine) == (None if value is None else pytest.approx(value, rel=1e-5))
        if value is not None:
            low, high = read.intervals()[id]
            assert low - 1e-9 <= value <= high + 1e-9


def test_a_risk_tasks_summary_has_brier_score_and_calibration(tmp_path: Path) -> None:
    made = run("risk", tmp_path / "run")
    taking = [one for id, one in made.outcomes.items() if id not in made.unseen]
    risks = 1 / (1 + np.exp(-np.concatenate([one.values for one in taking])))
    labels = np.concatenate([one.labels for one in taking])
    found = read_run(tmp_path / "run").summary["calibration"]
    assert found["brier"] == pytest.approx(np.mean((risks - labels) ** 2))
    assert found["brier_none"] == pytest.approx(labels.mean() * (1 - labels.mean()))
    assert found["slope_low"] < found["slope"] < found["slope_high"]
    # All clients have equally many test samples here.
    assert made.summary["auc"]["weighted"] == pytest.approx(made.summary["auc"]["mean"])
    assert calibration_of(run("classification").outcomes) == {}


def test_persons_of_test_samples_are_kept_and_counted(tmp_path: Path) -> None:
    """Each test sample of three clients stands four times: as if once, and the last client's persons are not known."""
    federation = federation_of("risk", unseen=0)
    often = torch.arange(14).repeat_interleave(4)
    for id in list(federation)[:-1]:
        test = federation[id].test
        rows = replace(test.take(often).own(), person=often + 100)
        federation = changed(federation, id, test=rows)
    made = fedkin.run("fedavg", federation, rounds=2, training=PLAN, out=tmp_path / "run")
    read = read_run(tmp_path / "run")
    for id, outcomes in read.outcomes.items():
        known = id != "s4"
        assert (outcomes.persons is not None) == (present(made.outcomes[id]).persons is not None) == known
        assert not known or present(outcomes.persons).tolist() == (often.tolist())
        assert outcomes.independent[0] == 14
    bare = {id: replace(each, persons=None) for id, each in read.outcomes.items()}
    wide, narrow = calibration_of(read.outcomes), calibration_of(bare)
    width = [present(each["slope_high"]) - present(each["slope_low"]) for each in (wide, narrow)]
    assert wide["slope"] == narrow["slope"]
    assert width[0] > 1.5 * width[1]
    assert read.summary["calibration"] == wide


def test_differences_to_another_run_are_of_the_same_samples() -> None:
    made, alone = run("classification"), run("classification", method="local")
    found = made.difference(alone)
    assert found.keys() == made.scores.keys()
    for id, (gap, _) in found.items():
        mine, other = (present(value_of(run.scores[id])) for run in (made, alone))
        assert gap.value == pytest.approx(mine - other)
        assert gap.n == made.scores[id].n


def test_a_run_without_the_file_is_read_and_one_whose_file_is_damaged_is_refused(tmp_path: Path) -> None:
    run("classification", tmp_path / "run")
    path, whole = tmp_path / "run" / FILE, (tmp_path / "run" / FILE).read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(RunError, match=r"outcomes\.parquet: not as it was written"):
        read_run(tmp_path / "run")
    (tmp_path / "run" / "seal.json").unlink()
    path.unlink()
    assert read_run(tmp_path / "run").outcomes == {}


def test_odd_tables_are_refused(tmp_path: Path) -> None:
    for label, metric, says in (
        ([0, None], "auc", "a label for each sample"),
        ([None, None], "accuracy", r"not the outcomes of a run .*1 for a right label"),
    ):
        columns = {"client": ["a", "a"], "value": [0.5, 0.6], "label": pa.array(label, pa.int8())}
        pq.write_table(pa.table(columns), tmp_path / FILE)
        with pytest.raises(RunError, match=says):
            read_outcomes(tmp_path, METRICS[metric])


def test_nothing_is_written_where_no_sample_is_known(tmp_path: Path) -> None:
    scores = {"a": Score(5, 0.1, 4), "b": Score(3, 0.2, 0, (None, None))}
    assert write_outcomes(tmp_path, outcomes_of(METRICS["accuracy"], scores)) is None
    assert write_outcomes(tmp_path, outcomes_of(METRICS["auc"], scores)) is None
    assert not (tmp_path / FILE).exists()
    diverged = {"a": Score(2, 0.1, 0, (float("inf"),), outcomes=np.array([1.0, np.inf], "<f4").tobytes())}
    assert outcomes_of(METRICS["squared_error"], diverged) == {}
    ranked = {"a": Score(2, 0.1, 0, (None, None), ((float("nan"), 1.0), (0.0, 1.0)))}
    assert outcomes_of(METRICS["auc"], ranked) == {}
