"""Other tasks than classification, and further metrics: figures, records, tables and reports name the metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn

import fedkin
from fedkin.engines import Score
from fedkin.errors import ConfigError, FedkinError, RunError
from fedkin.federation import Federation
from fedkin.keys import key
from fedkin.learning.metrics import balanced_accuracy
from fedkin.learning.models import MODELS
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.records import metrics
from fedkin.records.comparison import comparison_rows
from fedkin.records.run import read_run
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.tables import comparison, one_run
from fedkin.running.experiment import load
from fedkin.running.loop import run_experiment
from fedkin.running.trackers import figures_of
from fedkin.settings import parse
from support import by_pattern, default_method, present, printed, small_federation
from task_kinds import KINDS, TASKS, federation_of, model_of
from tiny import written

PLAN = {"local_steps": 3, "batch_size": 8, "lr": 0.05}


def run(kind: str, method: Any = "fedavg", rounds: int = 2, **more: Any) -> Any:
    federation = more.pop("federation", None) or federation_of(kind)
    return fedkin.run(method, federation, rounds=rounds, model=model_of(kind), training=PLAN, **more)


def outputs_of(federation: Federation, kind: str, params: Any, id: str) -> tuple[np.ndarray, np.ndarray]:
    net = Net.build(lambda: parse(MODELS[model_of(kind)], {}, "model").build(federation.task), key(0, "net"))
    module = net.scratch()
    module.load_state_dict(dict(params))
    module.eval()
    test = federation[id].test
    with torch.no_grad():
        return module(test.inputs(slice(None))).double().numpy(), test.labels().numpy()


def by_hand(kind: str, outputs: np.ndarray, y: np.ndarray) -> float:
    if kind == "regression":
        return float(((outputs - y) ** 2).sum(1).mean())
    if kind == "risk":
        return float(roc_auc_score(y, outputs[:, 1] - outputs[:, 0]))
    predicted = outputs.argmax(1)
    return float(2 * (predicted * y).sum() / (predicted.sum() + y.sum()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_figures_against_the_models_themselves(kind: str) -> None:
    federation = federation_of(kind)
    result = run(kind)
    metric = TASKS[kind].metric
    values = {id: by_hand(kind, *outputs_of(federation, kind, result.models[id], id)) for id in federation}
    for id, score in result.scores.items():
        assert metrics.value_of(score) == pytest.approx(values[id], abs=1e-5)
    seen = [values[id] for id in federation.seen]
    own = result.summary[metric.name]
    assert result.metric == metric
    assert result.value == own["mean"] == pytest.approx(np.mean(seen), abs=1e-5)
    worst = min(seen) if metric.higher else max(seen)
    assert own["worst10"] == pytest.approx(worst, abs=1e-5)
    assert own["clients"] == 4
    assert result.summary["unseen"]["mean"] == pytest.approx(values["s4"], abs=1e-5)
    sign = 1 if metric.higher else -1
    assert result.summary["gap"] == pytest.approx(sign * (np.mean(seen) - values["s4"]), abs=1e-5)
    assert "accuracy" not in result.summary
    each = [outputs_of(federation, kind, result.models[id], id) for id in federation.seen]
    together = [np.concatenate(part) for part in zip(*each, strict=True)]
    assert own["pooled"] == pytest.approx(by_hand(kind, *together), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_modes_agree(kind: str, workers_here: None) -> None:
    reference = run(kind, settings={"mode": "one-by-one"})
    for mode in ("fast", "workers"):
        other = run(kind, settings={"mode": mode, "workers": 2})
        for id, params in reference.models.items():
            for name, tensor in params.items():
                torch.testing.assert_close(other.models[id][name], tensor, rtol=1e-4, atol=1e-5)
        if mode == "workers":
            assert other.scores == reference.scores


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_unseen_client_changes_nothing(kind: str) -> None:
    federation = federation_of(kind)
    without = federation.reorder(federation.seen)
    a, b = run(kind, federation=federation), run(kind, federation=without)
    assert all(torch.equal(a.models[id][name], t) for id in without for name, t in b.models[id].items())
    assert "unseen" not in b.summary
    assert "gap" not in b.rounds[0]
    assert a.summary[a.metric.name] == b.summary[b.metric.name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_gets_better(kind: str) -> None:
    first, last = run(kind, rounds=0), run(kind, rounds=12)
    assert first.metric.better(last.value, first.value) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_records_tables_and_report(kind: str, tmp_path: Path) -> None:
    runs = {name: run(kind, name, out=tmp_path / name) for name in ("local", "fedavg")}
    metric = TASKS[kind].metric
    fedavg, again = runs["fedavg"], read_run(tmp_path / "fedavg")
    assert again.summary == json.loads(json.dumps(fedavg.summary))
    assert again.unseen == ("s4",)
    for id, score in again.scores.items():
        assert (*score[:2], score.figures) == (*fedavg.scores[id][:2], fedavg.scores[id].figures)
    columns = pq.read_table(tmp_path / "fedavg" / "clients.parquet").column_names
    assert columns == ["round", "client", "n", "loss", *(each.name for each in TASKS[kind].figures)]
    gained = fedavg.gains(runs["local"])
    assert gained.keys() == {"s0", "s1", "s2", "s3"}
    for id, gain in gained.items():
        value, alone = (present(metrics.value_of(runs[name].scores[id])) for name in ("fedavg", "local"))
        assert gain == metric.better(value, alone)
    row = comparison_rows({name: {0: result} for name, result in runs.items()})[1]
    assert row["metric"] == metric.name
    assert row["unseen"] == (fedavg.summary["unseen"]["mean"], 0.0)
    text = printed(one_run(fedavg), 150)
    assert f"{metric.title}, mean over clients" in text
    assert f"{metric.title}, mean over 1 unseen client" in text
    data = collect([tmp_path / "local", tmp_path / "fedavg"])
    assert data["metric"] == {"title": metric.title, "higher": metric.higher, "share": metric.share}
    assert data["federations"][0]["unseen"] == [False] * 4 + [True]
    unseen = [row["unseen"]["mean"] for row in fedavg.rounds]
    assert data["runs"][1]["curve"]["unseen"] == pytest.approx(unseen, abs=1e-6)
    html = write_report([tmp_path / "local", tmp_path / "fedavg"], tmp_path / "report.html").read_text()
    assert f"{metric.title[:1].upper()}{metric.title[1:]} over the rounds" in html
    assert "accuracy over" not in html.split('<script type="application/json"')[0]


def test_one_report_holds_one_metric(tmp_path: Path) -> None:
    run("regression", out=tmp_path / "a")
    run("risk", out=tmp_path / "b")
    with pytest.raises(RunError, match="one report holds runs of one metric"):
        collect([tmp_path / "a", tmp_path / "b"])


def test_clients_of_one_class_are_left_out_and_counted() -> None:
    federation = federation_of("risk", unseen=0)
    test = federation["s0"].test
    sick = replace(federation["s0"], test=test.take(np.flatnonzero(test.labels().numpy() == 1)))
    clients = [sick if id == "s0" else client for id, client in federation.items()]
    result = run("risk", federation=Federation(clients, federation.task))
    own = result.summary["auc"]
    assert (own["clients"], own["left_out"]) == (4, 1)
    assert result.scores["s0"].figures == (None, None)
    known = [score.figures for id, score in result.scores.items() if id != "s0"]
    assert own["mean"] == pytest.approx(np.mean([auc for auc, _ in known]))
    assert own["average_precision"]["mean"] == pytest.approx(np.mean([ap for _, ap in known]))
    blind = {"a": Score(3, 0.5, 3, (None, None), ((0.1, 0.2, 0.3), (0.0, 0.0, 0.0)))}
    assert metrics.figures(blind, TASKS["risk"])["clients"] == 0
    assert metrics.figures(blind, TASKS["risk"])["left_out"] == 1


@pytest.mark.slow
def test_methods_that_need_classes_say_so() -> None:
    needing = [name for name, method in METHODS.items() if method.needs_classes]
    assert {"sfmtl-graph"} <= set(needing)
    for name in needing:
        run("risk", name, rounds=0)
        for kind in ("regression", "segmentation"):
            with pytest.raises(ConfigError, match=rf"method\.name: '{name}'"):
                run(kind, name, rounds=0)


@pytest.mark.parametrize(
    "name", by_pattern(n for n, method in METHODS.items() if not (method.needs_classes or method.linear))
)
def test_other_methods_take_regression(name: str) -> None:
    result = run("regression", default_method(name))
    assert np.isfinite(result.value)
    assert np.isfinite(result.summary["gap"])


def test_nets_must_give_the_tasks_outputs() -> None:
    with pytest.raises(ConfigError, match=r"expected outputs \[batch, 3\], got \(1, 4\)"):
        fedkin.run("fedavg", federation_of("regression"), model=(nn.Linear(5, 4), nn.Linear(4, 4)))
    with pytest.raises(ConfigError, match=r"expected outputs \[batch, 2, 8, 8\]"):
        fedkin.run("fedavg", federation_of("segmentation"), model="mlp")


def test_classification_keeps_its_rows_and_gets_unseen_beside_them() -> None:
    plain = small_federation()
    last = list(plain)[-1]
    split = Federation([replace(c, seen=id != last) for id, c in plain.items()], plain.task)
    result = fedkin.run("fedavg", split, rounds=2, training=PLAN)
    row = result.rounds[-1]
    assert list(row)[:6] == ["round", "sampled", "accuracy", "unseen", "gap", "groups"]
    assert last not in row["sampled"]
    assert row["accuracy"] == metrics.figures({id: s for id, s in result.scores.items() if id != last}, plain.task)
    assert row["unseen"] == metrics.figures({last: result.scores[last]}, plain.task)
    assert row["gap"] == pytest.approx(row["accuracy"]["mean"] - row["unseen"]["mean"])
    (row,) = fedkin.run("fedavg", plain, rounds=1, training=PLAN).rounds
    assert list(row)[:4] == ["round", "sampled", "accuracy", "groups"]


# -- further metrics of each client: by name, from a file, and from Python -----------------------------------------


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


def test_a_gain_is_of_the_clients_that_both_methods_have_a_value_for(tmp_path: Path) -> None:
    @fedkin.metric(higher=True)
    def confident(outputs: Values, targets: Values) -> float | None:
        """Undefined for most models that were not trained alone."""
        share = float(outputs.max(1).mean())
        return share if share > 1.57 else None

    found = fedkin.compare(small_federation(), ["local", "fedavg"], metrics=[confident], **FEW, out=tmp_path / "c")
    local, fedavg = (found[name][0].metrics["confident"] for name in ("local", "fedavg"))
    pairs = [(fedavg[id], local[id]) for id in local]
    both = [(one, two) for one, two in pairs if one is not None and two is not None]
    assert 0 < len(both) < len([value for value in local.values() if value is not None])
    expected = sum(one - two for one, two in both) / len(both)
    assert found.rows[1]["metrics"]["confident"]["gain"] == pytest.approx(expected)
    page = present(found.report).read_text()
    known = sum(value is not None for value in fedavg.values())
    assert f", over {known} of {len(fedavg)} clients)</td>" in page


def test_every_evaluated_round_has_them_in_its_records(federation: Federation, tmp_path: Path) -> None:
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


def test_names_of_columns_are_no_names_of_metrics(federation: Federation) -> None:
    found = fedkin.compare(federation, ["local", "fedavg"], **FEW)
    heads = [str(column.header) for part in comparison(found.rows).renderables for column in part.columns]  # type: ignore[union-attr]
    taken = {head for head in heads if " " not in head} | {*found["fedavg"][0].to_frame().columns}
    assert {"mean", "gain", "client", "n", "loss", "accuracy"} <= taken
    for name in (*taken, "Mean", "auc", "average_precision", "epsilon", "unseen"):
        with pytest.raises(ConfigError, match=f"metric '{name}': a column of tables has this name"):
            fedkin.metric(higher=True, name=name)(lambda outputs, targets: 1.0)
    with pytest.raises(ConfigError, match="metric 'a b': this is no plain word: give it another"):
        fedkin.metric(higher=True, name="a b")(lambda outputs, targets: 1.0)
