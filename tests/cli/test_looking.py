"""`fedkin init --look EXPERIMENT.toml`: the clients of a federation, as it is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from cli.invoked import refused, said
from fedkin.running.experiment import load
from tiny import TABLE


def written(tmp_path: Path, **changes: Any) -> Path:
    place = tmp_path / "small.toml"
    place.write_text(tomli_w.dumps({**TABLE, **changes}))
    return place


def test_figures_are_those_of_the_federation(tmp_path: Path) -> None:
    place = written(tmp_path)
    federation = load(place).federation(Path("nowhere"))
    shown = json.loads(said("init", "--look", place, "--json"))
    assert [one["id"] for one in shown["clients"]] == sorted(federation)
    for one in shown["clients"]:
        client = federation[one["id"]]
        assert (one["train"], one["test"]) == (len(client.train), len(client.test))
        assert one["classes"] == np.bincount(client.train.labels().numpy(), minlength=10).tolist()
    text = said("init", "--look", place)
    assert "6 clients" in text
    assert "rot0" in text
    assert "skew" not in text  # rotations change no labels


def test_clients_with_classes_of_their_own_are_skewed(tmp_path: Path) -> None:
    place = written(tmp_path, scenario={"name": "classes-per-client", "clients": 6, "classes": 2})
    assert "skew: targets differ between clients beyond chance (effect 0." in said("init", "--look", place)


@pytest.mark.parametrize("command", [["init", "--look"], ["advise"]])
def test_options_of_tables_are_refused(tmp_path: Path, command: list[str]) -> None:
    for words in (["--target", "died"], ["--leave-out", "a"]):
        assert f"{words[0]}: not for these data" in refused(*command, written(tmp_path), *words)


def test_an_empty_cell_is_no_value_of_its_column(tmp_path: Path) -> None:
    place = tmp_path / "stays.csv"
    place.write_text("site,age,died\nn,,0\ns,2,1\nn,3,0\nn,,1\n")
    column = json.loads(said("init", "--look", place, "--json"))["columns"][1]
    assert (column["empty"], column["different"], column["values"]) == (2, 2, ["2", "3"])
