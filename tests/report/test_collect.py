"""Records in, the page's data out: every number is the records' own."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from fedkin.analysis import class_overlap, correlation, mean_by_level, read_features
from fedkin.graph import Graph, load_graph
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.report.features import FeatureBudget, features_of
from fedkin.report.graphs import NOTHING, Follower, learned_weights
from fedkin.report.page import page
from fedkin.report.runs import labels_of
from fedkin.report.sections import phases_in
from report.fake_runs import last, make_comparison, make_run, run_in
from support import present


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods and two seeds; two thirds of the clients in a round, and features in two rounds."""
    made = tmp_path_factory.mktemp("report") / "made"
    return make_comparison(made, (0, 1), clients=12, rounds=6, groups=3, clients_per_round=8, features=(3, 6), owned=3)


@pytest.fixture(scope="module")
def data(comparison_folder: Path) -> Any:
    return collect([comparison_folder])


def graph(comparison_folder: Path, round: int) -> Graph:
    return load_graph(comparison_folder / f"sfmtl-graph-seed0/graphs/round-{round:06d}.npz")


def test_methods_seeds_and_order(data: Any) -> None:
    assert [method["label"] for method in data["methods"]] == ["local", "fedavg", "sfmtl-graph"]
    assert data["seeds"] == [0, 1]
    assert data["runs"][data["shown"]]["method"] == "sfmtl-graph"
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_curves_are_the_rounds_lines(comparison_folder: Path, data: Any) -> None:
    run = run_in(data, "sfmtl-graph", 1)
    text = (comparison_folder / "sfmtl-graph-seed1/rounds.jsonl").read_text()
    lines = list(map(json.loads, text.splitlines()))
    sent = np.cumsum([line["bytes"]["up"] + line["bytes"]["down"] for line in lines])
    assert run["curve"]["round"] == [line["round"] for line in lines]
    assert run["curve"]["mean"] == pytest.approx([line["accuracy"]["mean"] for line in lines], abs=1e-6)
    assert run["curve"]["ari"] == pytest.approx([line["groups"]["ari"] for line in lines], abs=1e-6)
    assert run["curve"]["bytes"] == sent.tolist()
    assert run["curve"]["seconds"] == [0.5 * line["round"] for line in lines]


def test_gain_is_against_local_of_the_same_seed(comparison_folder: Path, data: Any) -> None:
    run = run_in(data, "fedavg", 1)
    own, alone = (last(comparison_folder / f"{name}-seed1") for name in ("fedavg", "local"))
    ids = data["federations"][run["federation"]]["ids"]
    assert run["gain"] == pytest.approx([own[id] - alone[id] for id in ids], abs=1e-6)
    row = next(row for row in data["table"] if row["label"] == "fedavg")
    assert row["seeds"] == 2
    gains = [one["gain"] for one in data["runs"] if one["label"] == "fedavg"]
    assert row["hurt"][0] == pytest.approx(np.mean(np.array(gains) < 0))


def test_fairness_of_the_last_round(comparison_folder: Path, data: Any) -> None:
    row = next(row for row in data["table"] if row["label"] == "local")
    found = [np.array([*last(comparison_folder / f"local-seed{seed}").values()]) for seed in (0, 1)]
    assert row["jain"][0] == pytest.approx(np.mean([np.mean(x) ** 2 / np.mean(np.square(x)) for x in found]))
    shares = [x / np.sum(x) for x in found]
    assert row["entropy"][0] == pytest.approx(np.mean([-(p * np.log(p)).sum() / np.log(12) for p in shares]))
    # Student's quantile for two seeds is 12.706.
    half = 12.7062 * np.std([np.mean(x) for x in found], ddof=1) / np.sqrt(2)
    assert row["mean"] == pytest.approx([np.mean(found), half], rel=1e-4)
    assert row["gain"] is None


def test_frames_hold_the_graphs(comparison_folder: Path, data: Any) -> None:
    run = data["runs"][data["shown"]]
    ids = data["federations"][run["federation"]]["ids"]
    frames = run["graph"]["frames"]
    assert [frame["round"] for frame in frames] == [1, 2, 3, 4, 5, 6]
    for frame in frames:
        found = graph(comparison_folder, frame["round"])
        clients = [ids[i] for i in frame["clients"]]
        assert sorted(clients) == sorted(found.ids)
        assert frame["groups"] == sorted(frame["groups"])
        together = {(a, b) for a in found.ids for b in found.ids if found.groups and found.groups[a] == found.groups[b]}
        named = dict(zip(clients, frame["groups"], strict=True))
        assert together == {(a, b) for a in clients for b in clients if named[a] == named[b]}
        at = {id: i for i, id in enumerate(found.ids)}
        for a, b, weight in zip(frame["from"], frame["to"], frame["weight"], strict=True):
            assert weight == pytest.approx(found.weights[at[ids[a]], at[ids[b]]], rel=0.01)
        matrix = np.frombuffer(base64.b64decode(frame["matrix"]), "u1").reshape(8, 8) / 255
        order = [at[id] for id in clients]
        apart = ~np.eye(8, dtype=bool)
        assert isinstance(found.weights, np.ndarray)
        scaled = frame["low"] + (frame["high"] - frame["low"]) * matrix
        assert np.abs(scaled - found.weights[np.ix_(order, order)])[apart].max() < 0.003


def test_history_marks_who_was_not_there(data: Any) -> None:
    run = data["runs"][data["shown"]]
    packed = base64.b64decode(run["graph"]["history"]["group"])
    history = np.frombuffer(packed, "<u2").reshape(12, 6)
    assert ((history != NOTHING).sum(0) == 8).all()
    for column, frame in enumerate(run["graph"]["frames"]):
        assert history[frame["clients"], column].tolist() == frame["groups"]


def test_one_run_without_planted_groups_or_local(tmp_path: Path) -> None:
    data = collect([make_run(tmp_path / "run", planted=False)])
    assert "without a comparable run of Local" in data["sentence"]
    assert "planted" not in data["sentence"]
    assert data["runs"][0]["gain"] is None
    assert data["table"][0]["ari"] is None


def test_no_test_data(tmp_path: Path) -> None:
    data = collect([make_run(tmp_path / "run", tested=0)])
    assert "8 clients without test data" in data["sentence"]
    assert data["table"][0]["mean"] is None


def test_unfinished_runs_are_named(comparison_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(comparison_folder, tmp_path / "made")
    (copy / "fedavg-seed1" / "summary.json").unlink()
    assert collect([copy])["unfinished"] == ["fedavg-seed1"]


def test_files_that_a_report_can_do_without_may_be_gone(comparison_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(comparison_folder, tmp_path / "made")
    for run in copy.glob("*-seed*"):
        (run / "timing.jsonl").unlink()
    assert collect([copy])["sentence"] == collect([comparison_folder])["sentence"]


def test_rerun_names_the_command(comparison_folder: Path, data: Any) -> None:
    assert data["rerun"]["command"] == "fedkin compare experiment.toml --methods local,fedavg,sfmtl-graph --seeds 0,1"
    assert collect([comparison_folder / "local-seed0"])["rerun"]["command"] == "fedkin run experiment.toml"


def test_groups_keep_their_numbers() -> None:
    follower = Follower()
    named = {1: follower.name({"a": 0, "b": 0, "c": 1, "d": 1}), 2: follower.name({"a": 1, "b": 1, "c": 0, "d": 2})}
    assert named[2]["a"] == named[2]["b"] == named[1]["a"]
    assert sorted([named[2]["c"], named[2]["d"]]) == [named[1]["c"], 2]
    assert follower.moves == 1


def test_a_frame_stands_until_the_next_graph_and_the_last_to_the_end(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=9, still=3, owned=4)
    assert [load_graph(path).round for path in sorted((folder / "graphs").iterdir())] == [1, 2, 3]
    run = collect([folder])["runs"][0]
    graph = run["graph"]
    assert [(frame["round"], frame["until"]) for frame in graph["frames"]] == [(1, 1), (2, 2), (3, 9)]
    assert (graph["history"]["rounds"], graph["history"]["until"]) == ([1, 2, 3], [1, 2, 9])
    assert run["sharing"]["until"] == 9


@pytest.mark.slow
def test_between_graphs_that_are_not_kept_a_frame_does_not_stretch(tmp_path: Path) -> None:
    """45 rounds, each with another graph; 40 frames: none of these stood for more than its round."""
    graph = collect([make_run(tmp_path / "run", rounds=45, clients=4)])["runs"][0]["graph"]
    assert len(graph["frames"]) == 40
    assert all(frame["until"] == frame["round"] for frame in graph["frames"])


# -- which runs belong together, and the Local and FedAvg that a run is measured against ---------------------------


_PATHS = st.lists(st.sampled_from(["a", "b", "main"]), min_size=2, max_size=4).map(lambda parts: Path("/", *parts))


def expected(run: Path, local: Path) -> Any:
    own, alone = last(run), last(local)
    return pytest.approx([own[id] - alone[id] for id in sorted(own)], abs=1e-6)


def change(folder: Path, section: str) -> Path:
    """A setting of this section that no other run has."""
    with (folder / "experiment.toml").open("a") as file:
        file.write(f"[{section}]\nother = 1\n")
    return folder


# -- what methods are called ----------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        _PATHS,
        st.tuples(
            st.sampled_from(["local", "mapl"]),
            st.integers(0, 2),
            st.sampled_from(["", "mine", "mine@self"]),
            st.sampled_from([0.1, 0.3]),
        ),
        min_size=1,
    )
)
def test_no_two_runs_have_one_label_and_seed_or_one_label_and_other_settings(
    kinds: dict[Path, tuple[str, int, str, float]],
) -> None:
    runs: Any = [
        SimpleNamespace(
            folder=folder, method=method, seed=seed, label=label,
            settings={"training": {"lr": lr}, "data": {"seed": seed}, "run": {"seed": seed, "workers": lr}},
        )
        for folder, (method, seed, label, lr) in kinds.items()
    ]  # fmt: skip
    labels = labels_of(runs)
    assert len({(label, run.seed) for label, run in zip(labels, runs, strict=True)}) == len(runs)
    rates = {(label, run.settings["training"]["lr"]) for label, run in zip(labels, runs, strict=True)}
    assert len(rates) == len(set(labels))
    for label, run in zip(labels, runs, strict=True):
        name = run.label or run.method
        mine = [other for other in runs if (other.label or other.method) == name]
        rates_of_mine = {other.settings["training"]["lr"] for other in mine}
        assert (label == name) == (len({other.seed for other in mine}) == len(mine) and len(rates_of_mine) == 1)
        assert label.startswith(name)


def test_folders_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path: Path) -> None:
    places = [make_run(tmp_path / name / "main" / "local-seed0", "local") for name in ("a", "b")]
    data = collect(places)
    assert [method["label"] for method in data["methods"]] == ["local (a/main)", "local (b/main)"]
    assert [method["method"] for method in data["methods"]] == ["local", "local"]
    assert [row["seeds"] for row in data["table"]] == [1, 1]
    assert "seeds" not in data["sentence"]


def test_the_first_seed_is_the_lowest(tmp_path: Path) -> None:
    """Not the first folder in the order of letters, seed10."""
    data = collect([make_comparison(tmp_path / "made", (10, 9))])
    assert [run["seed"] for run in data["runs"] if run["label"] == "sfmtl-graph"] == [9, 10]
    assert data["runs"][data["shown"]]["seed"] == 9


def test_runs_on_other_data_are_no_further_seeds(tmp_path: Path) -> None:
    """The row of a method would be the mean over both data sets."""
    for name, seeds in (("digits", (0, 1)), ("wine", (2, 3))):
        for seed in seeds:
            folder = make_run(tmp_path / name / f"fedavg-seed{seed}", "fedavg", seed)
            path = folder / "experiment.toml"
            path.write_text(path.read_text().replace("digits", name))
    table = collect([tmp_path / "digits", tmp_path / "wine"])["table"]
    assert [(row["label"], row["seeds"]) for row in table] == [("fedavg (digits)", 2), ("fedavg (wine)", 2)]


def test_a_folder_named_twice_is_one_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "main" / "local-seed0", "local")
    (tmp_path / "link").symlink_to(folder.parent, target_is_directory=True)
    data = collect([folder, folder.parent, tmp_path / "link"])
    assert [run["label"] for run in data["runs"]] == ["local"]


# -- what a run is measured against ---------------------------------------------------------------------------------


def test_gain_is_against_the_local_beside_a_run(tmp_path: Path) -> None:
    for name, skill in (("a", 0.4), ("b", 0.8)):
        make_run(tmp_path / name / "local-seed0", "local", skill=skill)
        make_run(tmp_path / name / "fedavg-seed0", "fedavg")
    data = collect([tmp_path / "a", tmp_path / "b"])
    for name in ("a", "b"):
        runs = (tmp_path / name / f"{method}-seed0" for method in ("fedavg", "local"))
        assert run_in(data, f"fedavg ({name})")["gain"] == expected(*runs)
    hurt = {row["label"]: row["hurt"] and row["hurt"][0] for row in data["table"]}
    assert hurt["fedavg (a)"] == 0
    assert hurt["fedavg (b)"] == 1


@pytest.mark.parametrize("differs", ["", "rounds", "training", "model", "scenario"])
def test_a_local_elsewhere_counts_with_the_same_settings(tmp_path: Path, differs: str) -> None:
    local = make_run(tmp_path / "a" / "local-seed0", "local", rounds=5 if differs == "rounds" else 4)
    run = make_run(tmp_path / "b" / "fedavg-seed0", "fedavg")
    if differs not in ("", "rounds"):
        change(local, differs)
    data = collect([local, run])
    assert run_in(data, "fedavg")["gain"] == (None if differs else expected(run, local))
    assert ("without a comparable run of Local" in data["sentence"]) == bool(differs)


def test_beside_a_run_its_settings_decide_between_two_locals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "fedavg", "fedavg")
    tuned = change(make_run(tmp_path / "local-1", "local", skill=0.8), "training")
    # A comparison may train every method in its own way.
    assert run_in(collect([tmp_path]), "fedavg")["gain"] == expected(run, tuned)
    plain = make_run(tmp_path / "local-2", "local", skill=0.5)
    assert run_in(collect([tmp_path]), "fedavg")["gain"] == expected(run, plain)
    change(plain, "model")
    assert run_in(collect([tmp_path]), "fedavg")["gain"] is None


# -- analyses, checked by plain loops and scipy --------------------------------------------------------------------


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
        overlap = class_overlap([labels[id] for id in found.ids])
        assert sharing["figures"]["correlation"][k] == pytest.approx(correlation(found.weights, overlap), abs=1e-3)
        assert sharing["figures"]["all"][k] == pytest.approx(mean_by_level(found.weights, overlap)[2], rel=1e-3)


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


def test_sections_stand_only_where_there_are_records(data: Any, tmp_path: Path) -> None:
    every = page(data)
    for id in ("sharing", "influence", "features", "matrix", "traffic"):
        assert f'<section id="{id}"' in every
    alone = page(collect([make_run(tmp_path / "run", "local")]))
    for id in ("sharing", "influence", "features", "matrix", "traffic"):
        assert f'<section id="{id}"' not in alone
