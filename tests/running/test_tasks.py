"""Runs of other tasks than classification: figures, records, tables and reports name the task's metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import fedkin
from fedkin.engines import Score
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Federation
from fedkin.keys import key
from fedkin.learning.models import MODELS
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.records import metrics
from fedkin.records.comparison import comparison_rows
from fedkin.records.run import read_run
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.tables import one_run
from fedkin.settings import parse
from support import by_pattern, default_method, present, printed, small_federation
from task_kinds import KINDS, TASKS, federation_of, model_of

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
    assert f"{metric.title}, mean over 1 unseen clients" in text
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
