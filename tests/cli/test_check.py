"""`fedkin runs check`: what it finds in folders that are whole, harmed, unfinished or in use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import pytest
import tomli_w
from typer.testing import CliRunner

from cli.invoked import refused, said
from fedkin.cli import app
from fedkin.folders import locked
from fedkin.network.status import StatusFile
from fedkin.records.files import write_bytes, write_seal
from fedkin.records.listing import listed
from fedkin.records.run import unfinished
from fedkin.running.api import run as run_in_python
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from network.memory import MemoryNetwork
from support import small_federation
from tiny import TABLE, CutAt

SHORT = {**TABLE, "training": {**TABLE["training"], "rounds": 3}, "run": {**TABLE["run"], "checkpoint_every": 1}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut in round 3, a comparison and a tuning."""
    place = tmp_path_factory.mktemp("check")
    (place / "small.toml").write_text(tomli_w.dumps(SHORT))
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(Experiment.of(SHORT), Path(), place / "cut", watcher=CutAt(3))
    for words in (
        ["compare", "--methods", "local,fedavg"],
        ["tune", "--try", "training.lr=0.05,1e30", "--methods", "fedavg", "--set", "run.mode='one-by-one'"],
    ):
        said(words[0], place / "small.toml", *words[1:], "--rounds", "1", "--out", place / words[0])
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
    assert told[str(cut)] == f"not finished; goes on from round 2: fedkin run --resume {cut}"
    assert told[str(comparison)] == (
        f"comparison: of 2 runs begun, 2 are over; goes on with fedkin compare --resume {comparison}"
    )
    assert told[str(tuning)] == f"tuning: of 2 runs begun, 2 are over; goes on with fedkin tune --resume {tuning}"
    assert told[str(comparison / "local-seed0")] == "finished: there is nothing to go on with"
    assert lines[-1] == "every file is as it was written"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cut/checkpoint/round-000002.safetensors", "put the file back as it was"),
        ("cut/checkpoint/round-000001.safetensors", "put the file back as it was"),
        ("cut/parts/rounds-000001.jsonl", "or remove {0}/cut and run this anew"),
        ("cut/graphs/round-000001.npz", "or go on without it"),
        ("compare/compare.csv", "fedkin compare --resume {0}/compare writes it again"),
        ("compare/local-seed0/clients.parquet", "or remove {0}/compare/local-seed0 and run this anew"),
        ("tune/fedavg-0-seed0/messages.parquet", "or remove {0}/tune/fedavg-0-seed0 and run this anew"),
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
    harm = ("not as it was written", "not readable as JSON")
    assert any(
        any(words in line for words in harm) and advice.format(tmp_path / "here") in line for line in wrong
    ), lines  # fmt: skip
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
    assert lines[1].startswith(f"{folder}: not finished; goes on from round 1")
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


def test_another_version_is_a_note_and_no_problem(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    folder = tmp_path / "run"
    shutil.copytree(folders / "cut", folder)
    with MemoryNetwork().link("ann") as link, StatusFile(link, folder, role, list):
        pass
    code, lines = checked(folder)
    assert code == 0
    assert lines[0] == f"{folder}: not finished; goes on from round 2: {command.format(folder)}"


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
    assert [run.folder for run in listed([here])] == [here / "runs" / "cut"]


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
    assert checked(tmp_path / "run")[1][0].endswith(f"goes on from round 1: fedkin.run(..., out='{tmp_path}/run')")


def test_a_comparison_runs_again_only_the_run_that_was_removed(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "compare", tmp_path / "all")
    whole = (folder / "compare.json").read_bytes()
    kept = folder / "fedavg-seed0" / "summary.json"
    before = kept.stat().st_mtime_ns
    (folder / "local-seed0" / "rounds.jsonl").write_text("{")
    refused("compare", "--resume", folder)
    shutil.rmtree(folder / "local-seed0")
    said("compare", "--resume", folder, "--json")
    assert kept.stat().st_mtime_ns == before
    assert len((folder / "compare.json").read_bytes()) > len(whole) // 2
    assert checked(folder)[0] == 0
