"""`fedkin advise`: from a table to a recommendation, its files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from advised import hospitals
from cli.invoked import refused, said
from fedkin.records.files import read_json
from fedkin.running.experiment import load
from fedkin.running.loop import run_experiment

HOSPITALS = ["--target", "died", "--client", "hospital", "--person", "patient"]
FAST = ["--set", "training.rounds=20", "--set", "model.hidden=[6]", "--budget", "0.001"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The town's hospitals as a CSV file, with a column of patients of two stays each."""
    lines = ["hospital,patient,died," + ",".join(f"x{i}" for i in range(12))]
    patient = 0
    for id, client in hospitals().items():
        for samples in (client.train, client.test):
            x = np.asarray(samples.inputs(slice(None)))
            for place, (row, label) in enumerate(zip(x, samples.labels().tolist(), strict=True)):
                patient += place % 2
                lines.append(f"{id},p{patient},{label},{','.join(map(str, row))}")
    path = tmp_path_factory.mktemp("table") / "stays.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def advised(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advice") / "out"
    text = said("advise", table, *HOSPITALS, "--out", folder, *FAST)
    assert read_json(folder / "advice.json")["sentence"] in " ".join(text.split())
    assert "Within the budget, 3 folds" in text
    return folder


@pytest.mark.slow
def test_the_experiment_does_what_was_recommended(advised: Path) -> None:
    told = read_json(advised / "advice.json")
    experiment = load(advised / "recommended.toml")
    assert experiment.method.name == "given"
    text = (advised / "recommended.toml").read_text(encoding="utf-8")
    assert f'"{Path.cwd().anchor}' not in text, "an absolute path is of this machine only"
    assert "evaluate_every" not in text, "a default needs no line"
    recorded = load(advised / "given" / "experiment.toml")
    for section in ("scenario", "model", "training", "method", "faults", "run"):
        assert getattr(experiment, section) == getattr(recorded, section)
    assert experiment.table["data"]["person"] == "patient", "no input, and on one side of the test split"
    result = run_experiment(experiment, Path("data"))
    assert {client["id"] for client in told["clients"]} <= result.models.keys()
    groups = [sorted(members) for members in experiment.table["method"]["groups"].values()]
    assert sorted(groups) == [sorted(members) for members in told["groups"]]


@pytest.mark.slow
def test_the_report_begins_with_the_answer(advised: Path) -> None:
    html = (advised / "report.html").read_text(encoding="utf-8")
    told = read_json(advised / "advice.json")
    assert html.index('<section id="answer"') == html.index("<section id=")
    assert told["sentence"] in html
    assert html.index('scope="row">gus<') < html.index('<section id="comparison"')


@pytest.mark.slow
def test_the_same_command_goes_on_and_says_the_same(advised: Path, table: Path) -> None:
    before = (advised / "advice.json").read_bytes()
    runs = {path: path.stat().st_mtime_ns for path in (advised / "folds").iterdir()}
    again = json.loads(said("advise", table, *HOSPITALS, "--out", advised, *FAST, "--json"))
    assert again["sentence"] == json.loads(before)["sentence"]
    assert {path: path.stat().st_mtime_ns for path in (advised / "folds").iterdir()} == runs
    assert (advised / "advice.json").read_bytes() == before


@pytest.mark.slow
def test_who_should_train_alone_gets_an_experiment_without_groups(tmp_path: Path) -> None:
    """Six clients whose inputs have opposite effects, or none in common."""
    rng, lines = np.random.default_rng(0), ["site,y,x0,x1,x2,x3"]
    for place in range(6):
        slopes = np.roll([2.0, -2.0, 0.0, 0.0], place % 3) * (-1) ** (place // 3)
        x = rng.normal(size=(60, 4))
        y = rng.random(60) < 1 / (1 + np.exp(-2 * x @ slopes))
        lines += [f"s{place},{label:d},{','.join(map(str, row))}" for row, label in zip(x, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said("advise", tmp_path / "t.csv", "--target", "y", "--client", "site", "--out", tmp_path / "out", *FAST)
    told = read_json(tmp_path / "out" / "advice.json")
    assert told["sentence"].startswith("Train alone")
    experiment = load(tmp_path / "out" / "recommended.toml")
    assert experiment.method.name == "local"
    assert experiment.training.lr == told["own_rate"]
    assert not (tmp_path / "out" / "given").exists()
    assert experiment.method == load(tmp_path / "out" / "local" / "experiment.toml").method


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--client", "hospital"], "--target: name the column to predict"),
        (["--target", "died", "--client", "hospital", "--person", "patiend"],
         "person: no column 'patiend'; did you mean 'patient'"),
        (["--target", "died", "--client", "hospital", "--budget", "0"], "budget: expected minutes above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_advised_on_is_said(table: Path, tmp_path: Path, more: list[str], text: str) -> None:
    assert text in refused("advise", table, *more, "--out", tmp_path / "o")


def test_advice_reads_a_csv_file_as_init_does(tmp_path: Path) -> None:
    """A number with two possible meanings needs a setting, and the options of init give it."""
    data, columns = tmp_path / "d.csv", ("--target", "died", "--client", "site", "--out", tmp_path / "o")
    data.write_text("site;cost;died\n" + "".join(f"{'abc'[row % 3]};1.{100 + row};{row % 2}\n" for row in range(60)))
    assert "say which: data.decimal" in refused("advise", data, *columns)
    assert "2 clients with enough training samples" in refused("advise", data, *columns, "--decimal", ".")
