"""Further metrics of each client: by name, from a file, and from Python, in records, tables and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

import fedkin
from fedkin.errors import ConfigError, FedkinError
from fedkin.federation import Federation
from fedkin.learning.metrics import balanced_accuracy
from fedkin.records.run import read_run
from fedkin.report.tables import comparison, one_run
from fedkin.running.experiment import load
from fedkin.running.loop import run_experiment
from fedkin.running.trackers import figures_of
from support import present, small_federation
from tiny import written

Values = npt.NDArray[Any]
FEW: dict[str, Any] = {"rounds": 1, "training": {"local_steps": 2, "lr": 0.1}}
FILE = """
import fedkin

@fedkin.metric(higher=False, title="missed zeros")
def missed_zeros(outputs, targets):
    zeros = targets == 0
    return (outputs.argmax(1)[zeros] != 0).mean() if zeros.any() else None

def plain(outputs, targets):
    return 1.0
"""


@fedkin.metric(higher=False)
def wrong(outputs: Values, targets: Values) -> float:
    return float((outputs.argmax(1) != targets).mean())


def test_every_clients_figure_is_that_of_its_samples_and_reaches_records_tables_and_report(tmp_path: Path) -> None:
    federation = small_federation()
    metrics: list[Any] = ["balanced-accuracy", wrong]
    found = fedkin.compare(federation, ["local", "fedavg"], metrics=metrics, **FEW, out=tmp_path / "c")
    result = found["fedavg"][0]
    models = fedkin.load(tmp_path / "c" / "fedavg-seed0")
    for id, client in federation.items():
        truth = client.test.labels().numpy()
        predicted = models.predict(client.test.x, client=id)
        assert result.metrics["wrong"][id] == pytest.approx((predicted != truth).mean())
        assert result.metrics["balanced-accuracy"][id] == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert read_run(tmp_path / "c" / "fedavg-seed0").metrics == result.metrics
    told = result.summary["metrics"]["wrong"]
    assert told["mean"] == pytest.approx(1 - result.accuracy)
    assert told["worst10"] == pytest.approx(max(map(present, result.metrics["wrong"].values())))
    assert result.to_frame().set_index("client")["wrong"].to_dict() == result.metrics["wrong"]
    local, fedavg = (row["metrics"]["wrong"] for row in found.rows)
    assert fedavg["gain"] == pytest.approx(local["mean"] - fedavg["mean"]) == pytest.approx(found.rows[1]["gain"][0])
    assert found.table["metrics.wrong.mean"][1] == pytest.approx(told["mean"])
    page = present(found.report).read_text()
    assert "wrong, lower is better" in page
    assert f"<td>{told['mean']:.3f} (worst 10 %: {told['worst10']:.3f})</td>" in page
    heads = [column.header for part in comparison(found.rows).renderables for column in part.columns]  # type: ignore[union-attr]
    assert {"wrong", "balanced-accuracy"} <= set(heads)
    assert "wrong, mean over clients" in list(one_run(result).columns[0].cells)


def test_every_evaluated_round_has_them_in_its_records(tmp_path: Path) -> None:
    federation = small_federation()
    settings = {"evaluate_every": 2}
    some: dict[str, Any] = {"rounds": 3, "training": {"local_steps": 2, "lr": 0.1}, "metrics": [wrong]}
    result = fedkin.run("fedavg", federation, settings=settings, out=tmp_path / "r", **some)
    assert [row["round"] for row in result.rounds if "metrics" in row] == [2, 3]
    assert result.rounds == read_run(tmp_path / "r").rounds
    for row in result.rounds[1:]:
        assert row["metrics"]["wrong"]["mean"] == pytest.approx(1 - row["accuracy"]["mean"])
        assert row["metrics"]["wrong"]["worst10"] == pytest.approx(1 - row["accuracy"]["worst10"])
    told = result.summary["metrics"]["wrong"]
    assert {name: told[name] for name in result.rounds[2]["metrics"]["wrong"]} == result.rounds[2]["metrics"]["wrong"]
    assert "metrics.wrong.mean" in (tmp_path / "r" / "rounds.csv").read_text().splitlines()[0]
    assert figures_of(result.rounds[2])["metrics/wrong"] == told["mean"]
    plain = fedkin.run("fedavg", federation, settings=settings, **{**some, "metrics": []})
    assert [{**row, "metrics": 0} for row in plain.rounds] == [{**row, "metrics": 0} for row in result.rounds]


@pytest.mark.usefixtures("forgotten")
def test_a_function_of_a_file_in_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "own_measured.py").write_text(FILE)
    path = written(tmp_path / "e.toml", run={"metrics": ["own_measured.py:missed_zeros"]})
    plan = load(path, ["training.rounds=1"])
    assert plan.run.metrics == ("missed-zeros",)
    result = run_experiment(plan, tmp_path, tmp_path / "run")
    assert result.summary["metrics"]["missed-zeros"]["title"] == "missed zeros"
    assert load(tmp_path / "run" / "experiment.toml").run.metrics == ("missed-zeros",)
    with pytest.raises(ConfigError, match="plain does not say whether higher is better"):
        load(path, [f"run.metrics=['{tmp_path}/own_measured.py:plain']"])


giving = fedkin.metric(higher=True, name="mine")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["balanced"], "no 'balanced'; did you mean 'balanced-accuracy'"),
        (["balanced-accuracy", balanced_accuracy], "metrics: 'balanced-accuracy' twice"),
        ([len], "metrics: expected a list of names and of what @fedkin.metric"),
        ([giving(lambda outputs, _: outputs)], "metric 'mine', client '.*': expected"),
        ([giving(lambda outputs, _: 1 / 0)], "metric 'mine', .*: ZeroDivisionError"),
        ([giving(lambda outputs, _: 10**5000)], r"'mine', client '.*': expected a number of at most 1e\+150, got a"),
        ([giving(lambda outputs, _: -1.7e308)], r"'mine', client '.*': expected a number of at most 1e\+150"),
        ([giving(lambda outputs, targets: targets)], r"expected one number, got ndarray of shape \([0-9]+,\)$"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(metrics: list[Any], words: str) -> None:
    with pytest.raises(FedkinError, match=words) as caught:
        fedkin.run("fedavg", small_federation(), metrics=metrics, **FEW)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics": ["balanced"]}, "metrics: no 'balanced'; did you mean 'balanced-accuracy'"),
        ({"metrics": [wrong, wrong]}, "metrics: 'wrong' twice"),
        ({"metrics": 3}, "metrics: expected a list of names"),
        ({"metrics": [wrong], "settings": {"metrics": ["wrong"]}}, "metrics: given in settings too: name all of them"),
    ],
)
def test_metrics_are_checked_before_anything_is_written(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        fedkin.run("local", small_federation(), **given, **FEW, out=tmp_path / "r")
    with pytest.raises(ConfigError, match=words):
        fedkin.compare(small_federation(), ["local"], **given, **FEW, out=tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_clients_whose_samples_do_not_determine_it_are_left_out() -> None:
    clients = list(small_federation().values())
    few = replace(clients[0], test=clients[0].test.take(torch.arange(5)))
    federation = Federation([few, *clients[1:]], small_federation().task, "unlike")

    @fedkin.metric(higher=True)
    def of_many(outputs: Values, targets: Values) -> float | None:
        return float((outputs.argmax(1) == targets).mean()) if len(targets) > 5 else None

    result = fedkin.run("local", federation, metrics=[of_many], **FEW)
    told = result.summary["metrics"]["of-many"]
    assert (told["clients"], told["left_out"]) == (len(clients) - 1, 1)
    assert told["values"][few.id] is None
    assert told["mean"] == pytest.approx(np.mean([result.values[client.id] for client in clients[1:]]))


def test_a_metric_that_writes_into_its_arrays_changes_nothing() -> None:
    @fedkin.metric(higher=True)
    def one_against_all(outputs: Values, targets: Values) -> float:
        targets[targets > 0] = 1
        outputs[:] = 0
        return float(targets.mean())

    federation = small_federation()
    before = {id: client.test.labels().clone() for id, client in federation.items()}
    alone = fedkin.run("fedavg", federation, metrics=[wrong], settings={"dtype": "float64"}, **FEW)
    both = fedkin.run("fedavg", federation, metrics=[one_against_all, wrong], settings={"dtype": "float64"}, **FEW)
    assert all(torch.equal(client.test.labels(), before[id]) for id, client in federation.items())
    assert both.metrics["wrong"] == alone.metrics["wrong"]


def test_names_of_columns_are_no_names_of_metrics() -> None:
    federation = small_federation()
    found = fedkin.compare(federation, ["local", "fedavg"], **FEW)
    heads = [str(column.header) for part in comparison(found.rows).renderables for column in part.columns]  # type: ignore[union-attr]
    taken = {head for head in heads if " " not in head} | {*found["fedavg"][0].to_frame().columns}
    assert {"mean", "gain", "client", "n", "loss", "accuracy"} <= taken
    for name in (*taken, "Mean", "auc", "average_precision", "epsilon", "unseen"):
        with pytest.raises(ConfigError, match=f"metric '{name}': a column of tables has this name"):
            fedkin.metric(higher=True, name=name)(lambda outputs, targets: 1.0)
    with pytest.raises(ConfigError, match="metric 'a b': this is no plain word: give it another"):
        fedkin.metric(higher=True, name="a b")(lambda outputs, targets: 1.0)
