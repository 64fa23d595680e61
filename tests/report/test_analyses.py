"""The analyses of a report: every figure is the records' own, checked by plain loops and scipy."""

from __future__ import annotations

import base64
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import silhouette_score

from fedkin.analysis import read_features
from fedkin.graph import Graph, load_graph
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.report.features import FeatureBudget, features_of
from fedkin.report.graphs import learned_weights
from fedkin.report.page import page
from fedkin.report.sections import phases_in
from report.fake_runs import make_comparison, make_run, run_in
from support import present


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("analyses") / "made"
    return make_comparison(made, (0, 1), clients=12, rounds=6, groups=3, clients_per_round=8, features=(3, 6), owned=3)


@pytest.fixture(scope="module")
def data(comparison_folder: Path) -> Any:
    return collect([comparison_folder])


def graph(comparison_folder: Path, round: int) -> Graph:
    return load_graph(comparison_folder / f"sfmtl-graph-seed0/graphs/round-{round:06d}.npz")


# -- traffic ------------------------------------------------------------------------------------------------------


def test_phases_count_floats_and_bytes_of_every_message(comparison_folder: Path, data: Any) -> None:
    messages = pq.read_table(comparison_folder / "fedavg-seed0/messages.parquet").to_pylist()
    for phase in data["phases"]["fedavg"]:
        here = (phase["phase"], phase["way"] == "down")
        mine = [one for one in messages if (one["phase"], one["from"] == "server") == here]
        assert phase["bytes"] == sum(one["bytes"] for one in mine)
        assert phase["floats"] == sum(one["floats"] for one in mine)
        assert phase["rounds"] == len({one["round"] for one in mine})
        assert phase["clients"] == 12
        assert phase["once"] == (phase["phase"] == "sign")


@pytest.mark.parametrize(
    ("rows", "once"),
    [
        ([(1, "a"), (1, "b")], True),
        ([(1, "a"), (4, "b")], True),  # a newcomer signs later
        ([(1, "a"), (4, "a")], False),  # signs again
        ([(n, f"c{n}") for n in range(1, 11)], False),  # a phase of every round that meets nobody twice
        ([(n, f"c{n}") for n in range(1, 5)], True),
    ],
)
def test_once_is_once_a_client_and_in_few_rounds(tmp_path: Path, rows: list[tuple[int, str]], once: bool) -> None:
    folder = make_run(tmp_path / "run", "local", rounds=10)
    table = pq.read_table(folder / "messages.parquet")
    columns = {
        "round": [n for n, _ in rows], "from": [id for _, id in rows], "to": ["server"] * len(rows),
        "phase": ["sign"] * len(rows), "bytes": [8] * len(rows), "floats": [2] * len(rows),
        "missing": [""] * len(rows), "reason": [""] * len(rows),
    }  # fmt: skip
    pq.write_table(pa.table(columns, schema=table.schema), folder / "messages.parquet")
    (phase,) = phases_in(read_run(folder))
    assert (phase["once"], phase["floats"]) == (once, 2 * len(rows))


# -- weights and what is shared -------------------------------------------------------------------------------------


def test_weights_are_compared_with_the_classes_in_common(comparison_folder: Path, data: Any) -> None:
    run = run_in(data, "sfmtl-graph")
    sharing, facts = run["sharing"], data["federations"][run["federation"]]
    assert sharing["by"] == "classes"
    labels = dict(zip(facts["ids"], map(set, facts["labels"]), strict=True))
    for k, round in enumerate(sharing["figures"]["round"]):
        found = graph(comparison_folder, round)
        pairs = list(permutations(range(8), 2))
        both = [(labels[found.ids[i]], labels[found.ids[j]]) for i, j in pairs]
        shares = [len(one & other) / len(one | other) for one, other in both]
        weights = [found.weights[i, j] for i, j in pairs]
        assert sharing["figures"]["correlation"][k] == pytest.approx(pearsonr(weights, shares)[0], abs=1e-3)
        alike = [weight for weight, share in zip(weights, shares, strict=True) if share == 1]
        assert sharing["figures"]["all"][k] == pytest.approx(np.mean(alike), rel=1e-3)


def test_without_unlike_classes_it_is_the_planted_group(tmp_path: Path) -> None:
    assert collect([make_run(tmp_path / "same")])["runs"][0]["sharing"]["by"] == "groups"
    assert collect([make_run(tmp_path / "unknown", planted=False)])["runs"][0]["sharing"] is None


def test_learned_rows_are_told_from_a_mixing_step() -> None:
    rows = np.array([[0.5, 0.5, 0.0], [0.1, 0.6, 0.3], [0.0, 0.2, 0.8]])
    weights = (rows + rows.T) / 2
    np.fill_diagonal(weights, 0)
    np.testing.assert_array_equal(learned_weights(Graph(("a", "b", "c"), weights, mixing=rows)), rows)
    np.testing.assert_array_equal(learned_weights(Graph(("a", "b", "c"), weights, mixing=np.eye(3))), weights)


# -- influence --------------------------------------------------------------------------------------------------------


def test_centrality_follows_the_frames_clients(comparison_folder: Path, data: Any) -> None:
    run = run_in(data, "sfmtl-graph")
    ids = data["federations"][run["federation"]]["ids"]
    for frame in run["graph"]["frames"]:
        found = graph(comparison_folder, frame["round"])
        expected = dict(zip(found.ids, found.values["centrality"].tolist(), strict=True))
        for client, value in zip(frame["clients"], frame["values"]["centrality"], strict=True):
            assert value == pytest.approx(expected[ids[client]], rel=0.01)
        assert "lambda" not in frame["values"]


# -- features ---------------------------------------------------------------------------------------------------------


def test_features_of_the_lowest_seed_are_drawn(data: Any) -> None:
    first, second = (run_in(data, "local", seed)["features"] for seed in (0, 1))
    assert first["drawn"]
    assert not second["drawn"]
    assert [entry["round"] for entry in first["rounds"]] == [3, 6]
    cloud = first["rounds"][1]["clouds"]["features"]
    assert len(cloud["x"]) == len(cloud["client"]) == 36
    assert "x" not in second["rounds"][0]["clouds"]["features"]
    assert first["rounds"][0]["heads"] is None


def test_silhouettes_are_scikit_learns(comparison_folder: Path, data: Any) -> None:
    run = run_in(data, "sfmtl-graph")
    facts = data["federations"][run["federation"]]
    planted = dict(zip(facts["ids"], facts["planted"], strict=True))
    for entry in run["features"]["rounds"]:
        found = read_features(comparison_folder / f"sfmtl-graph-seed0/features/round-{entry['round']:06d}.safetensors")
        points, owner = found.features.points, [found.ids[i] for i in found.features.client]
        told = entry["clouds"]["features"]["separation"]
        assert told["class"] == pytest.approx(silhouette_score(points, found.features.label), abs=1e-3)
        assert told["planted"] == pytest.approx(silhouette_score(points, [planted[id] for id in owner]), abs=1e-3)
        groups = graph(comparison_folder, entry["round"]).groups
        assert groups is not None
        known = [i for i, id in enumerate(owner) if id in groups]
        expected = silhouette_score(points[known], [groups[owner[i]] for i in known])
        assert told["found"] == pytest.approx(expected, abs=1e-3)


def test_heads_are_ordered_by_planted_group(data: Any) -> None:
    run = run_in(data, "sfmtl-graph")
    heads, facts = run["features"]["rounds"][-1]["heads"], data["federations"][run["federation"]]
    groups = [facts["planted"][client] for client in heads["clients"]]
    assert groups == sorted(groups)
    cells = np.frombuffer(base64.b64decode(heads["matrix"]), "u1").reshape(12, 12)
    same = np.array([[a == b for a in groups] for b in groups])
    apart = ~np.eye(12, dtype=bool)
    assert cells[same & apart].min() == 255
    assert cells[~same].max() == 0


def test_a_small_budget_leaves_whole_clients(comparison_folder: Path) -> None:
    run = read_run(comparison_folder / "sfmtl-graph-seed0")
    found = features_of(run, sorted(run.client_facts), FeatureBudget(points=10, seed=0))
    clients = present(found)["rounds"][0]["clouds"]["features"]["client"]
    assert len(clients) == 9
    assert len(set(clients)) == 3


def test_sections_stand_only_where_there_are_records(comparison_folder: Path, tmp_path: Path) -> None:
    every = page(collect([comparison_folder]))
    for id in ("sharing", "influence", "features", "matrix", "traffic"):
        assert f'<section id="{id}"' in every
    alone = page(collect([make_run(tmp_path / "run", "local")]))
    for id in ("sharing", "influence", "features", "matrix", "traffic"):
        assert f'<section id="{id}"' not in alone
