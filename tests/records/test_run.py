"""What a result is in Python, in a notebook, as a table and in LaTeX; and who joined and left."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fedkin
from fedkin.engines import Score
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.graph import Graph
from fedkin.methods.fedavg import FedAvg
from fedkin.records.run import Result, read_run
from fedkin.report.collect import collect
from fedkin.report.page import page
from fedkin.running.experiment import RunSettings
from fedkin.running.loop import execute
from support import present, small_federation, small_setup

PLAN = {"local_steps": 2, "lr": 0.1}


@pytest.fixture(scope="module")
def result() -> Result:
    return fedkin.run("sfmtl-graph", small_federation(), rounds=3, seed=4, training=PLAN)


def test_a_result_is_one_line(result: Result) -> None:
    text = repr(result)
    assert len(text) < 200
    assert text.startswith("Result('sfmtl-graph', clients 6, rounds 3, seed 4, accuracy ")
    assert f"{result.accuracy:.4g}" in text


@pytest.mark.slow
def test_the_last_graph_and_its_groups_are_at_hand(federation: Federation, tmp_path: Path) -> None:
    for method in ("flt-same", "sfmtl-graph", "kin"):
        here = fedkin.run(method, federation, rounds=3, seed=4, training=PLAN)
        kept = fedkin.run(method, federation, rounds=3, seed=4, training=PLAN, out=tmp_path / method)
        again = read_run(tmp_path / method)
        assert sorted(here.groups) == sorted(federation)
        assert here.groups == kept.groups == again.groups
        assert len(set(here.groups.values())) == here.summary["groups"]["found"]
        assert present(here.graph).digest() == present(again.graph).digest()
    alone = fedkin.run("local", federation, rounds=1, training=PLAN)
    assert alone.graph is None
    assert alone.groups == {}


def test_notebooks_show_tables_in_which_nothing_is_markup(result: Result) -> None:
    evil = "<script>alert(1)</script>"
    first, *others = small_federation().values()
    named = Federation([replace(first, id=evil), *others], small_federation().task, evil)
    graph = Graph((evil, "b"), [[0.0, 1.0], [1.0, 0.0]], groups={evil: 0, "b": 1})  # type: ignore[arg-type]
    strange = replace(result, summary={**result.summary, "method": evil})
    for shown in (named, graph, strange):
        html = shown._repr_html_()
        assert "<script" not in html
        assert "&lt;script&gt;" in html
        assert "<table" in html
    assert repr(graph) == "Graph(2 clients, 2 groups)"


def test_a_large_federation_is_a_short_table() -> None:
    fed = fedkin.federate("digits", "iid", clients=50)
    assert "and 30 more clients" in fed._repr_html_()
    assert fed._repr_html_().count("<tr>") == 21


def test_frames_have_the_figures_of_the_run(result: Result) -> None:
    last = result.to_frame()
    assert type(last).__module__.startswith("pandas")
    accuracies = {id: score.right / score.n for id, score in result.scores.items()}
    assert dict(zip(last["client"], last["accuracy"], strict=True)) == pytest.approx(accuracies)
    assert set(last["round"]) == {3}
    assert len(result.to_frame("clients")) == 3 * len(last)
    rounds = result.to_frame("rounds")
    assert rounds["accuracy.mean"].iloc[-1] == result.accuracy
    assert result.to_frame("messages")["bytes"].sum() == sum(result.summary["bytes"][way] for way in ("up", "down"))
    with pytest.raises(ConfigError, match="to_frame: no table 'client'; did you mean 'clients'"):
        result.to_frame("client")  # type: ignore[arg-type]


def test_frames_without_pandas_are_tables_of_arrow(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = result.to_frame()
    assert isinstance(table, pa.Table)
    assert table.num_rows == len(result.scores)


def test_gains_leave_out_clients_without_test_samples(result: Result) -> None:
    def scored(a: int) -> Result:
        return replace(result, scores={"a": Score(4, 0.1, a), "b": Score(0, float("nan"), 0)})

    assert scored(3).gains(scored(1)) == {"a": 0.5}


# -- who joined and left -------------------------------------------------------------------------------------------


def test_the_records_and_the_report_say_who_joined_and_left(tmp_path: Path) -> None:
    whole = small_federation()
    late, gone = sorted(whole)[:2]
    when: dict[str, dict[str, Any]] = {late: {"joins": 2}, gone: {"away": ((3, None),)}}
    moving = Federation([replace(client, **when.get(id, {})) for id, client in whole.items()], whole.task)
    result = execute(small_setup(FedAvg(), moving), RunSettings(mode="one-by-one"), folder=tmp_path / "run")
    assert [row.get("events") for row in result.rounds] == [None, {"joined": [late]}, {"left": [gone]}]
    words = [f"round 2: {late} joined", f"round 3: {gone} left: data no longer count from this round on"]
    assert read_run(tmp_path / "run").summary["events"] == words
    html = page(collect([tmp_path / "run"]))
    assert all(line in html for line in words)
