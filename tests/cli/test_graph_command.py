"""`fedkin graph TABLE --groups same`: raw rows and saved signatures, in words and as JSON."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from cli.invoked import Terminal, refused, said
from fedkin import graph as g


def run_json(*words: Any) -> Any:
    return json.loads(said("graph", *words, "--json"))


@pytest.fixture
def clients() -> Any:
    """Ids, vectors in three planted groups and one client of zeros, and the groups."""
    rng = np.random.default_rng(0)
    truth = np.append(rng.permutation(np.repeat([0, 1, 2], 7)), 3)
    x = np.vstack([np.eye(3), np.zeros((1, 3))])[truth] * 9 + rng.normal(size=(22, 3))
    x[21] = 0
    return [f"site-{row:02d}" for row in range(22)], x, truth


@pytest.fixture
def npz(tmp_path: Path, clients: Any) -> Path:
    np.savez(tmp_path / "table.npz", ids=np.array(clients[0]), x=clients[1])
    return tmp_path / "table.npz"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_on_a_full_disk_the_file_is_named(npz: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (full := tmp_path / "out" / "graph.json").symlink_to("/dev/full")
    assert f"{full}: No space left on device" in refused("graph", npz, "--out", tmp_path / "out")


def _found(summary: Any, ids: Any, truth: Any) -> float:
    group = {id: at for at, one in enumerate(summary["groups"]) for id in one["members"]}
    return g.ari(truth, [group[id] for id in ids])


STAGES = """
import numpy as np

from fedkin.graph import stage

@stage("similarity")
def own_dots(x):
    return x @ x.T / (np.linalg.norm(x, axis=1).max() ** 2)

@stage("sparsify")
def own_half(s):
    a = np.maximum((s + s.T) / 2, 0) / 2
    np.fill_diagonal(a, 0)
    return a

@stage("groups")
def own_largest(a, vectors):
    return np.asarray(vectors).argmax(1)

@stage("groups")
def own_wrong(a):
    return [1]
"""


@pytest.mark.usefixtures("forgotten")
def test_stages_of_a_file(here: Path, clients: Any, npz: Path) -> None:
    (here / "own_graph.py").write_text(STAGES)
    ids, x, _ = clients
    own = {"--similarity": "own_dots", "--sparsify": "own_half", "--groups": "own_largest"}
    words = [word for option, name in own.items() for word in (option, f"own_graph.py:{name}")]
    summary = run_json(npz, *words)
    assert (summary["similarity"], summary["sparsify"], summary["groups_by"]) == ("own-dots", "own-half", "own-largest")
    assert _found(summary, ids, x.argmax(1)) == 1
    similar = np.maximum(x @ x.T, 0)
    np.fill_diagonal(similar, 0)
    assert summary["edges"] == np.count_nonzero(np.triu(similar))
    for option, name, told in (
        ("--groups", "own_graph.py:own_wrong", "groups stage 'own-wrong': expected labels of shape (22,)"),
        ("--groups", "own_graph.py:own_larges", "no graph 'own_larges'; did you mean 'own_largest'"),
        ("--sparsify", "own_graph.py:own_largest", "this is a groups stage"), ("--groups", "none.py:own", "--groups: "),
    ):  # fmt: skip
        assert told in refused("graph", npz, option, name)


def test_the_same_groups_from_npz_csv_and_parquet(tmp_path: Path, clients: Any, npz: Path) -> None:
    ids, x, truth = clients
    frame = pd.DataFrame({"client": ids, "f0": x[:, 0], "f1": x[:, 1], "f2": x[:, 2]})
    frame.to_csv(csv := tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.rename(columns={"client": "site"}).to_parquet(tmp_path / "first.parquet")
    found = run_json(npz, "--sparsify", "knn:4")
    for path in (csv, tmp_path / "t.parquet", tmp_path / "first.parquet"):
        assert run_json(path, "--sparsify", "knn:4") == found
    assert _found(found, ids, truth) == 1
    assert found["isolated"] == ["site-21"]
    assert [one["size"] for one in found["groups"]] == [7, 7, 7, 1]
    assert 0.8 < found["groups"][0]["inner_similarity"] <= 1
    assert found["groups"][3]["inner_similarity"] is None


def test_the_table_for_people(npz: Path) -> None:
    text = said("graph", npz, "--sparsify", "knn:4")
    parts = ("22 clients", "4 groups (louvain)", "isolated (no edge): site-21", "most central (betweenness): site-")
    assert all(part in text for part in parts)


@pytest.mark.slow
def test_out_writes_every_format(tmp_path: Path, npz: Path) -> None:
    summary = run_json(npz, "--sparsify", "knn:4", "--out", tmp_path / "a" / "b")
    folder = tmp_path / "a" / "b"
    names = ["edges.csv", "graph.graphml", "graph.html", "graph.json", "graph.npz"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert {Path(path) for path in summary["files"]} == set(folder.iterdir())
    assert len(g.load_graph(folder / "graph.npz").ids) == 22
    assert len(pd.read_csv(folder / "edges.csv")) == summary["edges"]
    assert nx.read_graphml(folder / "graph.graphml").number_of_edges() == summary["edges"]
    page = (folder / "graph.html").read_text(encoding="utf-8")
    assert "site-07" in page
    assert "group 0 (7)" in page
    assert not re.search(r"<script[^>]+src=", page)
    bytes_before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run_json(npz, "--sparsify", "knn:4", "--out", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == bytes_before


@pytest.mark.slow
def test_many_clients_take_the_block_way_and_say_what_they_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = 5 * np.eye(4)[np.arange(1200) % 4] + np.random.default_rng(0).normal(size=(1200, 4))
    np.savez(tmp_path / "t.npz", ids=np.char.mod("c%d", np.arange(1200)), x=x.astype(np.float32))
    whole = run_json(tmp_path / "t.npz", "--sparsify", "knn:5")
    # The package's attribute of this name is the function.
    command = importlib.import_module("fedkin.cli.graph")
    monkeypatch.setattr(command, "_LARGEST_FULL", 1000)
    monkeypatch.setattr(command, "_LARGEST_BETWEENNESS", 1000)
    monkeypatch.setattr("fedkin.graph.picture._LARGEST_LAYOUT", 1000)
    summary = run_json(tmp_path / "t.npz", "--sparsify", "knn:5", "--out", tmp_path / "out")
    assert summary["edges"] == whole["edges"]
    assert groups(summary) == groups(whole)
    assert "degree" in summary["central"][0]
    page = (tmp_path / "out" / "graph.html").read_text(encoding="utf-8")
    assert "means over 8 clients" in page
    assert "Who is near whom" not in page
    for option, value, told in (
        ("--sparsify", "epsilon:0.4", "too many to compare all pairs"),
        ("--similarity", "l2", "too many to compare all pairs"), ("--groups", "hierarchical", "compares all pairs"),
    ):  # fmt: skip
        assert told in refused("graph", tmp_path / "t.npz", option, value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("client,a\nx,1\ny,2\nx,3\n", r"client 'x' is in rows 1 and 3; expected one vector each"),
        ("client,a,b\nx,1,2\ny,,3\n", "client 'y', column 'a': missing or not finite"),
        ("client,a\nx,1\ny,tall\n", "client 'y', column 'a': expected a number, got 'tall'"),
        ("client,a,b\nx,1,2\ny,3\n", "not a readable table"),
        ("client,a\nx,1\n", "1 client; expected at least two"),
        ("1,2,3\n4,5,6\n", "the first line holds only numbers"),
        ("client,a,a\nx,1,2\ny,2,3\n", "column 'a' occurs twice"),
        (bytes(range(256)).decode("latin-1"), "not a readable table"),
        ("\xff,a\n1,2\n3,4\n", "not a readable table"),
        ({"ids": ["a", "b"]}, "expected arrays 'ids' and 'x', found ids"),
        ({"ids": ["a", "b"], "x": [1.0, 2.0]}, r"'x': expected numbers \[n, d\], got"),
        ({"ids": ["a", "b"], "x": np.ones((2, 3, 2))}, r"one vector per client, got shape \(2, 3, 2\)"),
        ({"ids": ["a"], "x": [[1.0], [2.0]]}, "1 ids but 2 rows of 'x'"),
        ({"ids": [1.5, 2.5], "x": [[1.0], [2.0]]}, "'ids': expected one text or whole number"),
        ({"ids": ["a", "b"], "x": [[1.0], [np.nan]]}, "client 'b': a value is not finite"),
        ({"ids": [{}, {}], "x": np.ones((2, 2))}, "not a .npz file of plain arrays"),
    ],
)
def test_bad_tables_give_one_clear_line(content: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / ("t.csv" if isinstance(content, str) else "t.npz")
    if isinstance(content, str):
        path.write_text(content, encoding="latin-1")
    else:
        np.savez(path, **{name: np.array(values) for name, values in content.items()})  # type: ignore[arg-type]
    line = refused("graph", path)
    assert str(path) in line
    assert re.search(says, line)


def test_whole_numbers_beyond_those_of_floats_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"client,a\nann,{2**53 + 1}\nbob,2\n")
    assert run_json(tmp_path / "t.csv")["clients"] == 2


def test_bad_files_and_options_give_one_clear_line(npz: Path, tmp_path: Path, terminal: Terminal) -> None:
    for name in ("t.npz", "t.parquet"):
        (tmp_path / name).write_bytes(b"hello")
        assert str(tmp_path / name) in refused("graph", tmp_path / name)
    assert "no such file" in refused("graph", tmp_path / "none.csv")
    assert "expected a .npz, .csv or .parquet" in refused("graph", tmp_path / "t.xlsx")
    assert "did you mean 'louvain'" in refused("graph", npz, "--groups", "louvian")
    assert "no planted groups" in refused("graph", npz, "--groups", "planted")
    assert "expected 1 to 22" in refused("graph", npz, "--groups", "kmeans:99")
    assert "resolution: expected a number above 0" in refused("graph", npz, "--resolution", "0")
    (tmp_path / "file").write_text("")
    assert terminal.refused("graph", npz, "--out", tmp_path / "file") == f"{tmp_path / 'file'}: File exists"


# -- `fedkin graph TABLE --groups same`: raw rows and saved signatures, in words and as JSON ---


ODD = {f"clinic {i}" for i in (1, 3, 5, 7)}


@pytest.fixture
def frame() -> pd.DataFrame:
    """Eight clinics with 60 patients: half of them measure in another unit, all have a category and a target."""
    rng = np.random.default_rng(0)
    site = np.repeat([f"clinic {i}" for i in range(8)], 60)
    sex, ill = rng.choice(["f", "m"], size=480), rng.choice(["no", "yes"], size=480)
    weight = 60 + 12 * (sex == "m") + 8 * (ill == "yes") + 6 * rng.normal(size=480)
    weight[np.isin(site, sorted(ODD))] *= 2.2
    made = pd.DataFrame({"site": site, "sex": sex, "age": rng.normal(60, 9, 480), "weight": weight, "ill": ill})
    return made.sample(frac=1, random_state=1)


def groups(summary: Any) -> set[frozenset[str]]:
    return {frozenset(one["members"]) for one in summary["groups"]}


@pytest.fixture
def csv(tmp_path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_rows_from_csv_and_parquet(tmp_path: Path, frame: pd.DataFrame, csv: Path) -> None:
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    asked = ("--groups", "same", "--client", "site", "--target", "ill")
    one, two = run_json(csv, *asked), run_json(tmp_path / "rows.parquet", *asked)
    assert one == two
    assert groups(one) == {frozenset(ODD), frozenset(f"clinic {i}" for i in (0, 2, 4, 6))}
    assert [group["verdict"] for group in one["groups"]] == ["same", "same"]
    assert one["tree"][0]["p"]["x"] < 1e-6
    assert one["table"] == "480 samples of 4 numbers, target: classes"
    assert run_json(csv, *asked, "--seed", 1)["seed"] == 1


def test_words(csv: Path) -> None:
    text = said("graph", csv, "--groups", "same:0.01", "--client", "site", "--target", "ill")
    assert "8 clients, 2 groups (alpha 0.01)" in text
    assert "group 0: same, 4: clinic" in text
    assert "no significant difference: one model serves all" in text
    assert "differ in inputs (p " in text


def test_signatures_are_saved_and_read_again(tmp_path: Path, csv: Path) -> None:
    out = tmp_path / "result"
    one = run_json(csv, "--groups", "same", "--client", "site", "--out", out)
    names = ["groups.json", "signatures.npz", "graph.npz", "graph.graphml", "graph.json", "edges.csv", "graph.html"]
    assert one["files"] == [str(out / name) for name in names]
    assert json.loads((out / "groups.json").read_text())["tree"] == one["tree"]
    found = g.load_graph(out / "graph.npz")
    assert g.modularity(found.weights, found.labels) == pytest.approx(0.5)
    again = run_json(out / "signatures.npz", "--groups", "same")
    assert groups(again) == groups(one)
    assert again["table"] == "saved signatures"
    assert "leave them out" in refused("graph", out / "signatures.npz", "--groups", "same", "--client", "site")


def test_rows_from_npz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = np.repeat(["a", "b", "c", "d"], 50)
    x = rng.normal(size=(200, 2, 3)) + 2.0 * np.isin(ids, ["b", "d"])[:, None, None]
    for y, target in ((rng.integers(3, size=200), "classes"), (rng.normal(size=200), "number"), (None, "none")):
        arrays = {"ids": ids, "x": x} if y is None else {"ids": ids, "x": x, "y": y}
        np.savez(tmp_path / "rows.npz", **arrays)
        found = run_json(tmp_path / "rows.npz", "--groups", "same")
        assert found["table"] == f"200 samples of 6 numbers, target: {target}"
        if target != "classes":  # two clients each: with classes the shift is seen to be an offset of all
            assert groups(found) == {frozenset("ac"), frozenset("bd")}


@pytest.mark.slow
def test_what_cannot_be_used(tmp_path: Path, frame: pd.DataFrame, csv: Path) -> None:
    same = ("--groups", "same")
    assert "no column 'client'" in refused("graph", csv, *same)
    assert "did you mean 'site'" in refused("graph", csv, *same, "--client", "sit")
    assert "no column 'sick'" in refused("graph", csv, *same, "--client", "site", "--target", "sick")
    assert "--similarity" in refused("graph", csv, *same, "--client", "site", "--similarity", "cosine")
    assert "one vector per client" in refused("graph", csv, "--client", "site")
    assert "below 1" in refused("graph", csv, "--groups", "same:2", "--client", "site")
    assert "no such file" in refused("graph", tmp_path / "none.csv", *same)
    assert "one row per client" in refused("graph", csv, *same, "--client", "age")
    (tmp_path / "rows.txt").write_text("x")
    assert ".npz, .csv or .parquet" in refused("graph", tmp_path / "rows.txt", *same)
    frame["name"] = [f"p{i}" for i in range(480)]
    frame.to_csv(tmp_path / "names.csv", index=False)
    assert "'name' has 480 different values" in refused("graph", tmp_path / "names.csv", *same, "--client", "site")
    frame = frame.drop(columns="name")
    frame.loc[frame.index[4], "age"] = np.nan
    frame.to_csv(tmp_path / "gap.csv", index=False)
    assert "row 5, client" in refused("graph", tmp_path / "gap.csv", *same, "--client", "site")
    (tmp_path / "semi.csv").write_text("client;a\nx;1,5\n")
    for more in ((), same):
        assert "semi.csv: not a readable table: ';' sep" in refused("graph", tmp_path / "semi.csv", *more)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert "not a .npz" in refused("graph", tmp_path / "bad.npz", *same)
