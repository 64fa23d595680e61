"""`fedkin graph TABLE --groups same`: raw rows and saved signatures, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cli.invoked import refused, said
from fedkin import graph as g


@pytest.fixture
def frame() -> pd.DataFrame:
    """Eight clinics with 60 patients: half of them measure in another unit, all have a category and a target."""
    rng = np.random.default_rng(0)
    site = np.repeat([f"clinic {i}" for i in range(8)], 60)
    sex = rng.choice(["f", "m"], size=480)
    age = rng.normal(60, 9, size=480)
    ill = rng.choice(["no", "yes"], size=480)
    weight = 60 + 12 * (sex == "m") + 8 * (ill == "yes") + 6 * rng.normal(size=480)
    weight[np.isin(site, [f"clinic {i}" for i in (1, 3, 5, 7)])] *= 2.2
    return pd.DataFrame({"site": site, "sex": sex, "age": age, "weight": weight, "ill": ill}).sample(
        frac=1, random_state=1
    )


def run_json(*words: Any) -> Any:
    return json.loads(said("graph", *words, "--json"))


ODD = {f"clinic {i}" for i in (1, 3, 5, 7)}


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
    assert "cannot be told apart: one model serves all" in text
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
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert "not a .npz" in refused("graph", tmp_path / "bad.npz", *same)
