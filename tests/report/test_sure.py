"""The page and the terminal say how sure a gain is, with the counts that the outcomes give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import fedkin
from fedkin.analysis.paired import VERDICTS, difference, verdict
from fedkin.errors import RunError
from fedkin.records.comparison import comparison_rows
from fedkin.records.run import read_run
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.tables import comparison, one_run
from support import printed, small_federation
from task_kinds import federation_of, model_of

PLAN = {"local_steps": 3, "batch_size": 8, "lr": 0.05}
METHODS = ("local", "fedavg", "ifca")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a risk task and of a classification, by kind."""
    home = tmp_path_factory.mktemp("sure")
    for kind, federation, model in (
        ("risk", federation_of("risk"), model_of("risk")),
        ("classification", small_federation(), "mlp"),
    ):
        for method in METHODS:
            options: dict[str, Any] = {"clusters": 2} if method == "ifca" else {}
            fedkin.run(method, federation, rounds=2, model=model, training=PLAN, out=home / kind / method, **options)
    return {kind: home / kind for kind in ("risk", "classification")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["risk", "classification"])
def test_counts_agree_in_sentence_table_bars_and_terminal(places: dict[str, Path], kind: str) -> None:
    data = collect([places[kind]])
    results = {method: {0: read_run(places[kind] / method)} for method in METHODS}
    local = results["local"][0]
    for row, run in zip(data["table"], data["runs"], strict=True):
        assert row["label"] == run["label"]
        mine = results[run["label"]][0]
        ids = data["federations"][run["federation"]]["ids"]
        if run["label"] == "local":
            assert row["gained"] is None
            assert run["sure"]["verdict"] == [None] * len(ids)
            continue
        words = {
            id: verdict(difference(mine.metric.name, one, local.outcomes[id]))
            for id, one in mine.outcomes.items()
            if id not in mine.unseen
        }
        assert run["sure"]["verdict"] == [words.get(id) for id in ids]
        counts = [list(words.values()).count(word) for word in VERDICTS]
        assert [row[name][0] for name in ("gained", "lost", "apart", "few")] == counts
        sure = next(line for line in comparison_rows(results) if line["method"] == run["label"])["surely"]
        assert list(sure.values()) == counts
        shown = printed(comparison(comparison_rows(results)), 80)
        assert "/".join(map(str, counts if counts[-1] else counts[:-1])) in shown
    if kind == "risk":
        assert "with too few events" in data["sentence"]
        events = data["runs"][0]["sure"]["events"]
        assert [n for n in events if n is not None] == [
            one.events for id, one in sorted(local.outcomes.items()) if id not in local.unseen
        ]


def test_what_was_told_stands_in_sentence_table_and_terminal(places: dict[str, Path]) -> None:
    data = collect([places["classification"]])
    told = {row["label"]: row["given"] for row in data["table"]}
    assert told == {"local": [], "fedavg": [], "ifca": ["2 groups, given"]}
    assert "(2 groups, given)" in data["sentence"]
    results = {method: {0: read_run(places["classification"] / method)} for method in METHODS}
    text = " ".join(printed(comparison(comparison_rows(results)), 80).split())
    assert "*given: ifca: 2 groups, given" in text
    assert "(2 groups, given)" in " ".join(printed(one_run(results["ifca"][0]), 80).split())


@pytest.mark.slow
def test_warnings_stand_at_the_top_of_the_page(tmp_path: Path) -> None:
    federation = small_federation()
    fedkin.run("mapl", federation, rounds=2, training=PLAN, out=tmp_path / "run", warmup=9)
    assert collect([tmp_path / "run"])["warnings"][0].startswith("MAPL, seed 0: the warm-up of 9 rounds")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index("Warning: MAPL, seed 0: the warm-up of 9") < page.index("<main")


def unsealed(place: Path, folder: Path) -> None:
    """Copies of these runs in which a file may be changed."""
    shutil.copytree(place, folder, ignore=shutil.ignore_patterns("seal.json"))


def without_outcomes(place: Path, folder: Path, engine: str) -> Path:
    """Copies of these runs as a server leaves them: with counts, without outcomes of single samples."""
    unsealed(place, folder)
    for path in folder.rglob("outcomes.parquet"):
        path.unlink()
    for path in folder.rglob("summary.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "engine": engine}))
    return folder


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("network", "no per-sample outcomes leave a client over a network"),
        ("peer", "no per-sample outcomes leave a client over a network"),
        ("local", "no per-sample outcomes were kept"),
    ],
)
def test_accuracies_without_outcomes_have_the_intervals_of_their_counts(
    places: dict[str, Path], tmp_path: Path, engine: str, why: str
) -> None:
    known = collect([places["classification"]])
    data = collect([without_outcomes(places["classification"], tmp_path / "counts", engine)])
    for run, full in zip(data["runs"], known["runs"], strict=True):
        assert any(run["sure"]["own"])
        assert run["sure"]["own"] == full["sure"]["own"]
        assert run["sure"]["verdict"] == run["sure"]["gain"] == [None] * len(full["sure"]["own"])
        assert run["sure"]["withheld"] == ("" if run["label"] == "local" else why)
        assert full["sure"]["withheld"] == ""
    assert "surely" not in data["sentence"]
    assert all(row["gained"] is None for row in data["table"])


def test_outcomes_of_other_samples_are_refused(places: dict[str, Path], tmp_path: Path) -> None:
    unsealed(places["classification"], tmp_path / "mixed")
    path = tmp_path / "mixed/fedavg/outcomes.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(RunError, match="not of the same samples"):
        collect([tmp_path / "mixed"])


def test_means_over_seeds_are_whole_clients_so_that_the_table_fits_a_terminal(places: dict[str, Path]) -> None:
    results = {method: {0: read_run(places["classification"] / method)} for method in METHODS}
    rows = comparison_rows(results)
    for row in rows:
        row["seeds"] = [0, 1, 2]
        if row["surely"]:
            row["surely"] = {"gained": 0.3333, "lost": 0.0, "apart": 39.6667, "few": 0.0}
    shown = printed(comparison(rows), 80)
    assert "0/0/40" in shown
    assert "apart (means over seeds, rounded)" in " ".join(shown.split())
    assert "…" not in shown


def test_the_table_has_means_weighted_and_pooled_and_the_least_events(places: dict[str, Path]) -> None:
    rows = {row["label"]: row for row in collect([places["risk"]])["table"]}
    for label, row in rows.items():
        result = read_run(places["risk"] / label)
        each = {id: one for id, one in result.outcomes.items() if id not in result.unseen}
        values = result.values
        sizes = [len(each[id]) for id in values]
        assert row["weighted"][0] == pytest.approx(np.average(list(values.values()), weights=sizes))
        scores = np.concatenate([one.values for one in each.values()])
        classes = [np.asarray(one.labels) for one in each.values()]
        labels = np.concatenate(classes)
        assert row["pooled"][0] == pytest.approx(roc_auc_score(labels, scores))
        assert row["events"][0] == min(min(labels.sum(), (1 - labels).sum()) for labels in classes)
    rows = {row["label"]: row for row in collect([places["classification"]])["table"]}
    for label, row in rows.items():
        right = np.concatenate([one.values for one in read_run(places["classification"] / label).outcomes.values()])
        assert row["weighted"] == row["pooled"]
        assert row["pooled"][0] == pytest.approx(right.mean())
        assert row["events"] is None
    assert comparison_rows({"local": {0: read_run(places["risk"] / "local")}})[0]["weighted"] is not None
