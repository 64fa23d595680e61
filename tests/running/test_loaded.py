"""Models of a finished run that predict: what they answer is what the run was judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import fedkin
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Federation, Samples
from fedkin.learning.metrics import roc_auc
from fedkin.learning.models import Mixed
from fedkin.running.model_loader import Loaded
from support import present, small_federation

PLAN = {"local_steps": 3, "lr": 0.1}
INPUTS = ["age", "ward", "admitted", "smoker", "lactate"]


def stored(samples: Samples) -> Any:
    return samples.x if samples.rows is None else samples.x[samples.rows]


@pytest.mark.parametrize(
    ("method", "model"),
    [("fedavg", "mlp"), ("fedsr", "mlp"), ("mapl", "mlp"), ("local", Mixed(bodies=("small-plain", "small-wide")))],
)
def test_predictions_have_the_accuracy_that_the_run_recorded(tmp_path: Path, method: str, model: Any) -> None:
    fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)  # uint8 with a scale
    result = fedkin.run(method, fed, rounds=2, model=model, training=PLAN, out=tmp_path / "run")
    models = fedkin.load(tmp_path / "run")
    assert models.clients == fed.seen
    assert len({str(models[id]) for id in fed}) == 1 + (model != "mlp")
    for id in fed:
        right = (models.predict(stored(fed[id].test), id) == fed[id].test.labels().numpy()).sum()
        assert right == result.scores[id].right
        assert not models[id].training


def hospitals(rows: int = 240, target: str = "died") -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "age": rng.normal(60, 10, rows), "ward": rng.choice(["surgery", "medicine", "icu"], rows),
        "admitted": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
        "smoker": rng.random(rows) < 0.3,
        "lactate": np.where(rng.random(rows) < 0.3, np.nan, rng.gamma(2, 1, rows)),
        "hospital": rng.choice(["a", "b", "c"], rows), "part": np.where(np.arange(rows) % 4, "train", "test"),
    })  # fmt: skip
    score = (frame["age"] - 60) / 10 + (frame["ward"] == "icu") + frame["lactate"].fillna(1.0) - 2
    values = {"died": (score + rng.normal(size=rows) > 0).astype(int), "days": 5 + 20 * score,
              "unit": np.where(score > 0.5, "high", np.where(score > -1, "mid", "low"))}  # fmt: skip
    frame[target] = values[target]
    return frame


def trained(tmp_path: Path, target: str) -> tuple[pd.DataFrame, Federation, fedkin.Result, Loaded]:
    frame = hospitals(target=target)
    fed = Federation.from_frame(frame, target=target, client="hospital", split="part")
    result = fedkin.run("local", fed, rounds=3, training=PLAN, out=tmp_path / "run")
    return frame, fed, result, fedkin.load(tmp_path / "run")


def held_out(frame: pd.DataFrame, id: str) -> pd.DataFrame:
    return frame[(frame["hospital"] == id) & (frame["part"] == "test")]


def test_risks_of_raw_rows_rank_as_the_run_recorded(tmp_path: Path) -> None:
    frame, fed, result, models = trained(tmp_path, "died")
    for id in fed:
        rows = held_out(frame, id)
        risk = models.predict(rows, id)
        assert ((risk >= 0) & (risk <= 1)).all()
        assert roc_auc(risk, rows["died"].to_numpy()) == pytest.approx(result.scores[id].figures[0])
        np.testing.assert_allclose(models.probabilities(rows, id)[:, 1], risk)
    # The same rows as another frame, and without the columns that are no inputs.
    plain = rows[INPUTS]
    for other in (plain, pa.Table.from_pandas(plain, preserve_index=False), plain.to_dict("list")):
        np.testing.assert_allclose(models.predict(other, id), risk, rtol=1e-6)


def test_predicted_numbers_are_in_the_units_of_the_target(tmp_path: Path) -> None:
    frame, fed, result, models = trained(tmp_path, "days")
    for id in fed:
        rows = held_out(frame, id)
        days = models.predict(rows, id)
        error = np.mean(((days - rows["days"].to_numpy()) / present(models.target).deviation) ** 2)
        assert error == pytest.approx(result.scores[id].figures[0], rel=1e-4)


def test_predicted_classes_have_the_names_of_the_table(tmp_path: Path) -> None:
    frame, fed, result, models = trained(tmp_path, "unit")
    for id in fed:
        rows = held_out(frame, id)
        assert (models.predict(rows, id) == rows["unit"].to_numpy()).sum() == result.scores[id].right
    assert present(models.target).classes == ("high", "low", "mid")
    assert models.probabilities(rows, id).shape == (len(rows), 3)


def test_for_a_comparison_one_of_its_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no summary\.json"):
        fedkin.load(tmp_path)
    for name in ("kin-seed0", "local-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"holds several runs; name one of them, such as .*kin-seed0"):
        fedkin.load(tmp_path)


def test_unknown_categories_and_missing_values_are_treated_as_in_training(tmp_path: Path) -> None:
    frame, fed, _, models = trained(tmp_path, "died")
    strange = {"ward": ["helipad", None, "icu"], "lactate": [np.nan, np.nan, 400.0], "age": [np.nan, 60, 60]}
    odd = frame.head(3)[INPUTS].assign(**strange)
    wanted = present(fed.encoding)(pa.Table.from_pandas(odd, preserve_index=False))
    np.testing.assert_array_equal(models.inputs(odd, "a").numpy(), wanted)
    with torch.no_grad():
        risk = torch.softmax(models.model("a")(torch.from_numpy(wanted)).double(), 1)[:, 1].numpy()
    np.testing.assert_array_equal(models.predict(odd, "a"), risk)
    np.testing.assert_array_equal(models.predict(wanted, "a"), risk)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop(columns="age"), "frame: no column 'age'; known: ward, admitted, smoker, lactate"),
        (lambda frame: frame.assign(age="old"), "column 'age': expected numbers, as in training, got"),
        (lambda frame: frame.assign(admitted="2024"), "column 'admitted': expected numbers, as in training, got"),
        (lambda frame: frame.to_numpy()[:, :2].astype(float), r"x: expected an array \[n, "),
        (lambda frame: 3, "frame: expected a frame of pandas or polars"),
    ],
)
def test_frames_that_do_not_fit_are_refused(tmp_path: Path, change: Any, said: str) -> None:
    frame, _, _, models = trained(tmp_path, "died")
    rows = frame.head(4)[INPUTS].assign(ward="icu", age=1.0, smoker=True, lactate=1.0)
    if "array" in said:
        rows = rows[["age", "lactate"]]
    with pytest.raises(DataError, match=said):
        models.predict(change(rows), "a")


def test_clients_that_are_not_known_are_refused_with_those_that_are(federation: Federation, tmp_path: Path) -> None:
    fedkin.run("local", federation, rounds=1, training=PLAN, out=tmp_path / "own")
    models = fedkin.load(tmp_path / "own")
    each = "each client has its own model, so name one"
    wrong: dict[Any, str] = {"elsewhere": "no 'elsewhere' in this run", 1: "no 1 in this run", None: each}
    for client, said in wrong.items():
        with pytest.raises(ConfigError, match=f"client: {said}; known: site-"):
            models.predict(np.zeros((1, 5)), client)
    fedkin.run("fedavg", federation, rounds=1, training=PLAN, out=tmp_path / "one")
    shared = fedkin.load(tmp_path / "one")
    assert shared.predict(np.zeros((1, 5))) == shared.predict(np.zeros((1, 5)), federation.seen[0])
    with pytest.raises(ConfigError, match="leave client out to use it"):
        shared.predict(np.zeros((1, 5)), "elsewhere")


def test_nets_of_ones_own_need_their_modules(tmp_path: Path) -> None:
    class Body(nn.Module):
        def __init__(self, width: int = 7) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(5, width), nn.BatchNorm1d(width)
            self.frozen = nn.Linear(width, width).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.frozen(self.norm(self.layer(x))))

    fed, folder = small_federation(), tmp_path / "run"
    net = (Body(), nn.Linear(7, 4))
    result = fedkin.run("local", fed, rounds=2, model=net, training={**PLAN, "batch_size": 5}, out=folder)
    with pytest.raises(ConfigError, match=r"modules of your own.*model=\(body, head\).*Linear\(in_features=5"):
        fedkin.load(folder).model(fed.seen[0])
    with pytest.raises(ConfigError, match=r"model: not the net of .*: body\.frozen\.bias is \[8\] here, \[7\] in the"):
        fedkin.load(folder, model=(Body(8), nn.Linear(8, 4))).model(fed.seen[0])
    # Other initial values do not matter: all values are kept, frozen ones and statistics too.
    for given in ((Body(), nn.Linear(7, 4)), lambda task: (Body(), nn.Linear(7, task.classes))):
        models = fedkin.load(folder, model=given)
        for id in fed:
            right = (models.predict(stored(fed[id].test), id) == fed[id].test.labels().numpy()).sum()
            assert right == result.scores[id].right


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    fedkin.run("fedavg", small_federation(), rounds=1, training=PLAN, out=tmp_path / "run")
    models = fedkin.load(tmp_path / "run")
    for wrong, said in (
        (np.zeros((2, 6)), r"expected an array \[n, 5\], got \[2, 6\]"),
        (np.full((1, 5), np.nan), "NaN"),
        (np.full((1, 5), 1e300), "32 bits"),
        ("text", "expected an array of numbers|expected an array"),
    ):
        with pytest.raises(DataError, match=said):
            models.predict(wrong)
    assert models.predict(np.zeros((0, 5))).shape == (0,)


def test_a_regression_has_no_probabilities(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    fed = Federation.from_arrays(x, x * 2 + 1, ["a", "b"] * 20, kind="regression")
    fedkin.run("fedavg", fed, rounds=1, training=PLAN, out=tmp_path / "numbers")
    models = fedkin.load(tmp_path / "numbers")
    assert models.predict(x[:3]).shape == (3, 2)
    with pytest.raises(ConfigError, match="probabilities"):
        models.probabilities(x)
