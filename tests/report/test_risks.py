"""The page's calibration and decision curves against scikit-learn and counts over the runs' own outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

import fedkin
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.report.sections import over_seeds
from task_kinds import federation_of, model_of


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("risks")
    for method in ("local", "fedavg"):
        for seed in (0, 1):
            fedkin.run(
                method, federation_of("risk"), rounds=3, seed=seed, model=model_of("risk"),
                training={"local_steps": 3, "batch_size": 8, "lr": 0.05}, out=home / f"{method}-seed{seed}",
            )  # fmt: skip
    return home


def pooled(folder: Path) -> tuple[Any, Any]:
    result = read_run(folder)
    known = [one for id, one in result.outcomes.items() if id not in result.unseen]
    return np.concatenate([one.values for one in known]), np.concatenate([one.labels for one in known])


@pytest.mark.slow
def test_figures_are_those_of_the_pooled_outcomes(runs_folder: Path) -> None:
    data = collect([runs_folder])
    for run in data["runs"]:
        scores, labels = pooled(runs_folder / f"{run['label']}-seed{run['seed']}")
        risks, found = 1 / (1 + np.exp(-scores)), run["risks"]
        assert (found["n"], found["events"]) == (len(labels), labels.sum())
        assert found["brier"] == pytest.approx(brier_score_loss(labels, risks))
        assert found["none"] == pytest.approx(brier_score_loss(labels, np.full(len(labels), labels.mean())))
        fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(scores[:, None], labels)
        assert found["slope"][0] == pytest.approx(fitted.coef_[0, 0], rel=1e-3)
        assert found["slope"][1] < found["slope"][0] < found["slope"][2]
        assert sum(one[4] for one in found["bins"]) == len(labels)
        acted = risks >= 0.3
        net = (acted & (labels == 1)).mean() - (acted & (labels == 0)).mean() * 0.3 / 0.7
        assert found["net"][29] == pytest.approx(net, abs=1e-6)


def test_more_seeds_on_the_same_samples_do_not_narrow_an_interval() -> None:
    one = [1.2, 0.7, 1.7]
    assert over_seeds([one])[1] == pytest.approx(one[1:])
    assert over_seeds([one] * 5)[1] == pytest.approx(one[1:])
    mean, wide = over_seeds([[1.0, 0.5, 1.5], [1.4, 0.9, 1.9]])
    # By hand: within (0.5 / 1.96)^2, between 0.08, times 1.5.
    half = 1.959964 * np.sqrt((0.5 / 1.959964) ** 2 + 1.5 * 0.08)
    assert (mean, wide.low, wide.high) == pytest.approx((1.2, 1.2 - half, 1.2 + half))
