"""`fedkin graph TABLE --groups same`: raw rows and saved signatures, in words and as JSON."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from fedkin import graph as g
from fedkin.cli.graph import graph
from fedkin.errors import FedkinError

app = typer.Typer()
app.command("graph")(graph)


@app.command()
def other() -> None:
    """A second command, so that the first keeps its name."""


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["graph", *map(str, arguments)])


def run_json(*arguments: Any) -> Any:
    result = run(*arguments, "--json")
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def fails(*arguments: Any) -> str:
    """The one line that the user sees."""
    result = run(*arguments)
    assert isinstance(result.exception, FedkinError), (result.exception, result.output)
    assert "\n" not in str(result.exception)
    return str(result.exception)


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
    text = run(csv, "--groups", "same:0.01", "--client", "site", "--target", "ill").output
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
    assert "leave them out" in fails(out / "signatures.npz", "--groups", "same", "--client", "site")


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
    assert "no column 'client'" in fails(csv, *same)
    assert "did you mean 'site'" in fails(csv, *same, "--client", "sit")
    assert "no column 'sick'" in fails(csv, *same, "--client", "site", "--target", "sick")
    assert "--similarity" in fails(csv, *same, "--client", "site", "--similarity", "cosine")
    assert "one vector per client" in fails(csv, "--client", "site")
    assert "below 1" in fails(csv, "--groups", "same:2", "--client", "site")
    assert "no such file" in fails(tmp_path / "none.csv", *same)
    assert "one row per client" in fails(csv, *same, "--client", "age")
    (tmp_path / "rows.txt").write_text("x")
    assert ".npz, .csv or .parquet" in fails(tmp_path / "rows.txt", *same)
    frame["name"] = [f"p{i}" for i in range(480)]
    frame.to_csv(tmp_path / "names.csv", index=False)
    assert "'name' has 480 different values" in fails(tmp_path / "names.csv", *same, "--client", "site")
    frame = frame.drop(columns="name")
    frame.loc[frame.index[4], "age"] = np.nan
    frame.to_csv(tmp_path / "gap.csv", index=False)
    assert "row 5, client" in fails(tmp_path / "gap.csv", *same, "--client", "site")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert "not a .npz" in fails(tmp_path / "bad.npz", *same)


def test_the_command_line_says_it() -> None:
    text = importlib.import_module("fedkin.graph.stages").__doc__ or ""
    assert "same:ALPHA" in text
    assert "--client" in run("--help").output
