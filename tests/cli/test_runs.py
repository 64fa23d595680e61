"""`fedkin runs`, `fedkin runs diff` and `fedkin runs check`."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from cli.invoked import Terminal, refused, said
from fedkin.cli import app
from fedkin.folders import locked
from fedkin.network.status import StatusFile
from fedkin.records.files import write_bytes, write_seal
from fedkin.records.listing import listed, listed_difference, read_listed
from fedkin.records.run import unfinished
from fedkin.running.api import run as run_in_python
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from network.memory import MemoryNetwork
from support import present, small_federation
from tiny import TABLE, CutAt, cut, reseal, written


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
    assert [" ".join(line.split()[:4]) for line in lines] == ["deep/one fedavg 0 2/2", "deep/two local 0 2/2"]
    rows = json.loads(said("runs", "--in", folder, "--json"))
    assert [(row["method"], row["rounds"], row["planned"]) for row in rows] == [("fedavg", 2, 2), ("local", 2, 2)]
    one, figures = present(read_listed(folder / "deep" / "one").summary), rows[0]["figures"]
    assert figures["accuracy mean"] == one["accuracy"]["mean"]
    assert figures["bytes up"] == one["bytes"]["up"] > 0
    assert figures["bytes sent"] == figures["bytes up"] + figures["bytes down"]
    assert rows[1]["figures"]["bytes up"] == 0


def test_what_differs_is_named_and_nothing_else(folder: Path) -> None:
    (one, two), _ = listed([folder])
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
    (found,), _ = listed([tmp_path])
    # Checkpoints are made every other round: this is where a resume goes on.
    assert (found.rounds, found.planned) == (4, 7)
    assert found.figures() == {}
    line = said("runs", "--in", tmp_path, columns=80).splitlines()[1]
    assert line.split() == ["cut", "local", "0", "4/7", "not", "finished"]
    whole = folder / "deep" / "one"
    assert listed_difference(found, read_listed(whole))[1] == []
    assert f"{tmp_path / 'cut'}: not finished" in said("runs", "diff", tmp_path / "cut", whole, columns=300)


def test_the_list_names_what_it_cannot_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "deep", tmp_path / "runs")
    shutil.copytree(tmp_path / "runs" / "two", tmp_path / "runs" / "damaged")
    with (tmp_path / "runs" / "damaged" / "summary.json").open("a") as file:
        file.write(" ")
    scandir = os.scandir

    def scan(place: str) -> Any:
        if place.endswith("one"):
            raise PermissionError(errno.EACCES, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", scan)
    code, out, err = Terminal(monkeypatch, capsys)("runs", "--in", tmp_path)
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["run", "runs/two"]
    assert err.splitlines()[0] == f"{tmp_path / 'runs' / 'one'}: cannot be read (Permission denied)"
    assert "damaged/summary.json: not as it was written" in err


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
    for words in ("not as it was written", expected):
        code, out, err = terminal("runs", "--in", tmp_path)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"{tmp_path / 'run' / file}: {words}")
        reseal(tmp_path / "run")


# -- `fedkin runs check`: what it finds in folders that are whole, harmed, unfinished or in use --------------------


SHORT = {**TABLE, "training": {**TABLE["training"], "rounds": 3}, "run": {**TABLE["run"], "checkpoint_every": 1}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut in round 3, a comparison and a tuning."""
    place = tmp_path_factory.mktemp("check")
    written(place / "small.toml", **SHORT)
    cut(Experiment.of(SHORT), place / "cut", 3)
    once = ("--rounds", "1", "--out")
    said("compare", place / "small.toml", "--methods", "local,fedavg", *once, place / "compare")
    tried = ("--try", "training.lr=0.05,1e30", "--methods", "fedavg")
    said("tune", place / "small.toml", *tried, *once, place / "tune")
    return place


def checked(folder: Path) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["runs", "check", str(folder)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout.splitlines()


@pytest.mark.slow
def test_whole_folders(folders: Path) -> None:
    code, lines = checked(folders)
    assert code == 0, lines
    told = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines[:-1]}
    cut, comparison, tuning = (folders / name for name in ("cut", "compare", "tune"))
    assert told[str(cut)] == f"not finished; continues from round 2: fedkin run --resume {cut}"
    over = "2 of 2 begun runs have ended; continue with fedkin"
    assert told[str(comparison)] == f"comparison: {over} compare --resume {comparison}"
    assert told[str(tuning)] == f"tuning: {over} tune --resume {tuning}"
    assert told[str(comparison / "local-seed0")] == "finished: there is nothing to continue"
    assert lines[-1] == "every file is as it was written"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cut/checkpoint/round-000002.safetensors", "put the file back as it was"),
        ("cut/checkpoint/round-000001.safetensors", "put the file back as it was"),
        ("cut/parts/rounds-000001.jsonl", "or remove {0}/cut and run this again"),
        ("cut/graphs/round-000001.npz", "or go on without it"),
        ("compare/compare.csv", "fedkin compare --resume {0}/compare writes it again"),
        ("compare/local-seed0/clients.parquet", "or remove {0}/compare/local-seed0 and run this again"),
        ("tune/fedavg-0-seed0/messages.parquet", "or remove {0}/tune/fedavg-0-seed0 and run this again"),
        ("tune/seal.json", "remove it"),
    ],
)
def test_harm_is_one_line_with_the_file_and_what_to_do(folders: Path, tmp_path: Path, name: str, advice: str) -> None:
    shutil.copytree(folders, tmp_path / "here")
    path = tmp_path / "here" / name
    data = bytearray(path.read_bytes())
    # In the middle of a file; of a seal, in a hash, as another byte may make it no JSON at all.
    data[data.rindex(b'"') - 1 if path.name == "seal.json" else len(data) // 2] ^= 1
    path.write_bytes(data)
    code, lines = checked(tmp_path / "here")
    assert code == 1
    wrong = [line for line in lines if line.startswith(f"{path}: ")]
    harm = re.compile("(not as it was written|not readable as JSON).*" + re.escape(advice.format(tmp_path / "here")))
    assert any(map(harm.search, wrong)), lines
    path.unlink()
    if path.name == "round-000001.safetensors":
        return  # an older checkpoint need not be there
    code, lines = checked(tmp_path / "here")
    # What is only drawn from the runs may not be written yet.
    assert code == (path.name not in ("compare.csv", "tuned.toml"))
    assert any(f"{path}: it is gone" in line for line in lines)


def test_a_damaged_newest_checkpoint_says_from_which_round_it_goes_on(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "cut", tmp_path / "cut")
    (folder / "checkpoint" / "round-000002.safetensors").unlink()
    code, lines = checked(folder)
    assert (code, len(lines)) == (1, 3)
    assert lines[1].startswith(f"{folder}: not finished; continues from round 1")
    result = CliRunner().invoke(app, ["runs", "check", str(folder), "--json"])
    (told,) = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told.keys() == {"folder", "problems", "notes", "standing"}
    assert [*told["problems"], f"{told['folder']}: {told['standing']}"] == lines[:2]


def test_rows_are_counted(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hashes agree, as with a seal that was written after the harm."""
    folder = shutil.copytree(folders / "compare" / "fedavg-seed0", tmp_path / "run")
    (folder / "rounds.jsonl").write_bytes((folder / "rounds.jsonl").read_bytes() * 2)
    monkeypatch.setattr("fedkin.records.files.faults", lambda *_: [])
    code, lines = checked(folder)
    assert code == 1
    assert lines[0].startswith(f"{folder / 'rounds.jsonl'}: 2 rows, written were 1")


def test_another_version_is_a_note_and_no_problem(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.records.files.versions", lambda: {"torch": "9.9"})
    code, lines = checked(folders / "cut")
    assert code == 0
    assert "written with torch " in lines[0]
    assert ", here is 9.9: " in lines[0]


def test_what_is_no_run_or_in_use_is_said(folders: Path, tmp_path: Path) -> None:
    assert "no such folder" in refused("runs", "check", tmp_path / "none")
    assert "no run, comparison or tuning is in it" in refused("runs", "check", tmp_path)
    with locked(folders / "cut"):
        assert "in use by process" in refused("runs", "check", folders)
        assert "in use by process" in refused("run", "--resume", folders / "cut")
    (tmp_path / "plan.json").write_text("{}")
    assert checked(tmp_path)[1][0].endswith("nothing was begun in it: give the command again with --out")


@pytest.mark.parametrize(
    ("role", "command"), [("server", "fedkin net serve --resume {}"), ("peer", "the same fedkin net join command")]
)
def test_a_participant_of_a_network_says_how_it_goes_on(
    folders: Path, tmp_path: Path, role: Literal["server", "peer"], command: str
) -> None:
    folder = shutil.copytree(folders / "cut", tmp_path / "run")
    with MemoryNetwork().link("ann") as link, StatusFile(link, folder, role, list):
        pass
    code, lines = checked(folder)
    assert code == 0
    assert lines[0] == f"{folder}: not finished; continues from round 2: {command.format(folder)}"


def test_an_experiment_file_of_the_user_is_no_run(folders: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    shutil.copy(folders / "cut" / "experiment.toml", here)
    assert "no run, comparison or tuning is in it" in refused("runs", "check", here)
    assert "no run was begun in it" in refused("run", "--resume", here)
    assert unfinished([tmp_path]) == []
    shutil.copytree(folders / "cut", here / "runs" / "cut")
    code, lines = checked(here)
    assert code == 0
    assert [line.partition(": ")[0] for line in lines[:-1]] == [str(here / "runs" / "cut")]
    assert [run.folder for run in listed([here])[0]] == [here / "runs" / "cut"]


def test_a_comparison_that_lost_its_experiment_file_says_so(folders: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folders / "compare", tmp_path / "compare")
    (copy / "experiment.toml").unlink()
    assert "experiment.toml" in refused("compare", "--resume", copy)


def test_a_clients_state_is_checked_as_such(tmp_path: Path) -> None:
    with MemoryNetwork().link("ann") as link, StatusFile(link, tmp_path, "client", list):
        pass
    write_seal(tmp_path / "seal.json", {"model": write_bytes(tmp_path / "model", b"weights")})
    assert checked(tmp_path) == (
        0, [f"{tmp_path}: the state of a client: fedkin net status {tmp_path}", "every file is as it was written"],
    )  # fmt: skip
    (tmp_path / "model").write_bytes(b"Weights")
    code, (line, *_) = checked(tmp_path)
    assert code == 1
    assert line.startswith(f"{tmp_path / 'model'}: not as it was written: its hash differs")


def test_a_run_from_python_says_how_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cut"):
        run_in_python(
            "fedavg", small_federation(), rounds=3, settings={"checkpoint_every": 1}, out=tmp_path / "run",
            watcher=CutAt(2),
        )  # fmt: skip
    assert checked(tmp_path / "run")[1][0].endswith(f"continues from round 1: fedkin.run(..., out='{tmp_path}/run')")


def test_a_comparison_runs_again_only_the_run_that_was_removed(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "compare", tmp_path / "all")
    rows = json.loads((folder / "compare.json").read_text())
    kept = folder / "fedavg-seed0" / "summary.json"
    before = kept.stat().st_mtime_ns
    (folder / "local-seed0" / "rounds.jsonl").write_text("{")
    refused("compare", "--resume", folder)
    shutil.rmtree(folder / "local-seed0")
    said("compare", "--resume", folder, "--json")
    assert kept.stat().st_mtime_ns == before
    assert len(json.loads((folder / "compare.json").read_text())) == len(rows)
    assert checked(folder)[0] == 0
