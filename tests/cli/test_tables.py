"""`fedkin init --look` and `fedkin init`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli.invoked import refused, said


@pytest.fixture
def stays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    count = 300
    frame = pd.DataFrame({
        "stay": np.arange(count), "hospital": rng.choice(["north", "south", "west"], count),
        "age": rng.normal(60, 10, count), "ward": rng.choice(["icu", "er"], count), "died": rng.integers(0, 2, count),
    })  # fmt: skip
    frame.to_csv(tmp_path / "stays.csv", index=False)
    (tmp_path / "each").mkdir()
    for name, own in frame.groupby("hospital"):
        own.drop(columns="hospital").to_parquet(tmp_path / "each" / f"{name}.parquet")
    return tmp_path


def test_columns_are_listed_where_no_target_is_named(stays: Path) -> None:
    text = said("init", "--look", stays / "stays.csv")
    assert "300 rows. Name the column to predict" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["ward", "category", "string", "0", "2"] in [line[:5] for line in lines]
    found = json.loads(said("init", "--look", stays / "stays.csv", "--json"))
    assert [one["kind"] for one in found["columns"]] == ["number", "category", "number", "category", "number"]


@pytest.mark.parametrize("folder", [False, True])
def test_clients_and_what_looks_wrong_are_shown(stays: Path, folder: bool) -> None:
    words = [stays / "each"] if folder else [stays / "stays.csv", "--client", "hospital"]
    text = said("init", "--look", *words, "--target", "died")
    assert "3 clients, 240 training and 60 test rows, risk of died (event: 1), 5 inputs of 3 columns" in text
    assert "id: column 'stay' differs in every row" in text
    facts = json.loads(said("init", "--look", *words, "--target", "died", "--json"))
    assert [one["id"] for one in facts["clients"]] == ["north", "south", "west"]
    assert sum(one["train"] + one["test"] for one in facts["clients"]) == 300


@pytest.mark.parametrize("folder", [False, True])
def test_the_first_experiment_file_runs(stays: Path, folder: bool) -> None:
    words = [stays / "each"] if folder else [stays / "stays.csv", "--client", "hospital"]
    file = stays / "first.toml"
    text = said("init", *words, "--target", "died", "--out", file)
    assert f"wrote {file}" in text
    table = tomllib.loads(file.read_text())
    assert table["data"]["leave_out"] == ["stay"]
    assert table["data"]["kind"] == "risk"
    said("run", file, "--set", "training.rounds=2", "--out", stays / "out")
    assert (stays / "out" / "report.html").exists()
    assert f"{file}: exists; name another file: --out" in refused("init", *words, "--target", "died", "--out", file)
    nowhere = stays / "nowhere" / "first.toml"
    assert f"{nowhere}: cannot be written" in refused("init", *words, "--target", "died", "--out", nowhere)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stays.csv", "--target", "died"], "expected the name of the column that says whose each row is"),
        (["stays.csv", "--target", "dead", "--client", "hospital"], "did you mean 'died'"),
        (["stays.csv", "--target", "died", "--client", "hospital", "--kind", "risks"], "data.kind"),
        (["stays.txt"], "expected a file, or a folder of files, that ends with .csv"),
        (["none.csv", "--target", "died"], "no such file or folder"),
        (["empty"], "expected a file, or a folder of files, that ends with .csv"),
    ],
)
def test_what_is_wrong_is_one_line(stays: Path, words: list[str], text: str) -> None:
    (stays / "empty").mkdir()
    assert text in refused("init", "--look", stays / words[0], *words[1:])
