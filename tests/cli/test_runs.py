"""`fedkin runs` and `fedkin runs diff`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.invoked import Terminal, said
from fedkin.cli import app
from fedkin.records.listing import listed, listed_difference, read_listed
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from tiny import TABLE, cut


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, of unlike methods and rates."""
    where = tmp_path_factory.mktemp("runs")
    for name, method, lr in (("one", "fedavg", 0.1), ("two", "local", 0.2)):
        plan = Experiment.of({**TABLE, "method": {"name": method}})
        short = plan.with_changes(**{"training.lr": lr, "training.rounds": 2})
        run_experiment(short, Path(), where / "deep" / name)
    return where


def test_the_list_names_each_run(folder: Path) -> None:
    head, *lines = said("runs", "--in", folder, columns=80).splitlines()
    assert max(map(len, (head, *lines))) <= 80
    assert head.split()[:5] == ["run", "method", "seed", "rounds", "accuracy"]
    assert [line.split()[:4] for line in lines] == [
        ["deep/one", "fedavg", "0", "2/2"], ["deep/two", "local", "0", "2/2"],
    ]  # fmt: skip
    rows = json.loads(said("runs", "--in", folder, "--json"))
    assert [(row["method"], row["rounds"], row["planned"]) for row in rows] == [("fedavg", 2, 2), ("local", 2, 2)]
    one = read_listed(folder / "deep" / "one")
    assert one.summary is not None
    figures = rows[0]["figures"]
    assert figures["accuracy mean"] == one.summary["accuracy"]["mean"]
    assert figures["bytes up"] == one.summary["bytes"]["up"] > 0
    assert figures["bytes sent"] == figures["bytes up"] + figures["bytes down"]
    assert rows[1]["figures"]["bytes up"] == 0


def test_what_differs_is_named_and_nothing_else(folder: Path) -> None:
    one, two = listed([folder])
    settings, figures = listed_difference(one, two)
    changed = {name: (first, second) for name, first, second in settings}
    assert changed["method.name"] == ("fedavg", "local")
    assert changed["training.lr"] == (0.1, 0.2)
    assert not any(name.startswith(("data.", "scenario.", "model.")) for name in changed)
    assert {name for name, _, _ in figures} >= {"accuracy mean", "bytes up", "seconds total"}
    assert "training.lr" in said("runs", "diff", one.folder, two.folder, columns=300)
    told = json.loads(said("runs", "diff", one.folder, two.folder, "--json"))
    assert told["runs"] == [str(one.folder), str(two.folder)]
    assert {row["setting"]: (row["one"], row["other"]) for row in told["settings"]} == changed
    assert [(row["figure"], row["one"], row["other"]) for row in told["figures"]] == figures


def test_a_run_that_is_not_finished_has_no_figures(folder: Path, tmp_path: Path) -> None:
    experiment = Experiment.of({**TABLE, "method": {"name": "local"}})
    cut(experiment, tmp_path / "cut", 5)
    (found,) = listed([tmp_path])
    # Checkpoints are made every other round: this is where a resume goes on.
    assert (found.rounds, found.planned) == (4, 7)
    assert found.figures() == {}
    line = said("runs", "--in", tmp_path, columns=80).splitlines()[1]
    assert line.split() == ["cut", "local", "0", "4/7", "not", "finished"]
    whole = folder / "deep" / "one"
    assert listed_difference(found, read_listed(whole))[1] == []
    assert f"{tmp_path / 'cut'}: not finished" in said("runs", "diff", tmp_path / "cut", whole, columns=300)


@pytest.fixture
def bracketed(folder: Path, tmp_path: Path) -> Path:
    """A folder with a run whose name is long and reads as rich's markup."""
    shutil.copytree(folder / "deep" / "one", tmp_path / ("ex[red]p" + 30 * ":smile:"))
    return tmp_path


def test_names_are_printed_whole_and_letter_by_letter(bracketed: Path) -> None:
    (inside,) = bracketed.iterdir()
    lines = said("runs", "--in", bracketed, columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[-1] == "sent"
    assert "".join(line.split(" ")[0] for line in lines[1:]) == inside.name
    other = shutil.copytree(inside, inside.with_name("other"))
    first, second, *_ = said("runs", "diff", inside, other, columns=400).splitlines()
    assert first == "no setting differs"
    assert second.split() == ["figure", inside.name, "other", "difference"]


def test_a_pipe_gets_a_line_a_run(bracketed: Path) -> None:
    told = CliRunner().invoke(app, ["runs", "--in", str(bracketed)], env={"COLUMNS": None})
    (line,) = told.output.splitlines()[1:]
    assert line.split()[:2] == [next(bracketed.iterdir()).name, "fedavg"]


def test_folders_of_two_places_are_told_apart(folder: Path, tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        shutil.copytree(folder / "deep" / "one", place / "run")
    lines = said("runs", "--in", places[0], "--in", places[1], columns=300).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [str(place / "run") for place in places]


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("summary.json", "{}", "method: field required"),
        ("experiment.toml", '[training]\nrounds = "many"', "training.rounds: input should be a valid integer, got"),
    ],
)
def test_a_damaged_run_is_one_line(
    folder: Path, tmp_path: Path, file: str, content: str, expected: str, terminal: Terminal
) -> None:
    shutil.copytree(folder / "deep" / "one", tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    assert terminal.refused("runs", "--in", tmp_path).startswith(f"{tmp_path / 'run' / file}: {expected}")
