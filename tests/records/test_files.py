"""A folder is begun by one process, only its owner may look in, and files are written aside and on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedkin.errors import RunError
from fedkin.folders import locked
from fedkin.records.checking import check
from fedkin.records.files import begun, claimed, is_unused, leftovers, stamp_of, write_bytes, write_with
from fedkin.records.listing import read_listed
from fedkin.records.run import find_runs
from fedkin.running.api import run
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from support import small_federation
from tiny import TABLE

TEXT = 'name = "a"\n[run]\nseed = 1\n'


def begin(folder: Path, text: str = TEXT) -> None:
    with claimed(folder, text, plan={"seeds": [1]}, data_root="data"):
        assert begun(folder)
        assert (folder / "lock").exists()


def test_what_a_new_folder_gets(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "data-root.json", "experiment.toml", "plan.json", "seal.json",
    ]  # fmt: skip
    begin(tmp_path / "run")


def test_a_folder_in_which_nothing_was_begun_is_begun_with_other_settings(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "experiment.toml").unlink()
    for name in ("lock", "lock.json", "experiment.toml.3-0123abcd.part"):
        (tmp_path / name).write_text("")
    assert is_unused(tmp_path)
    other = TEXT.replace("seed = 1", "seed = 2")
    for _ in range(2):
        begin(tmp_path, other)
        assert (tmp_path / "experiment.toml").read_text() == other
    assert not list(tmp_path.glob("*.part"))


def test_the_state_folder_of_a_client_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{}")
    (tmp_path / "0123").mkdir()
    (tmp_path / "0123" / "round-000001.safetensors").write_bytes(b"")
    for use in (begin, check, read_listed, lambda folder: find_runs([folder])):
        with pytest.raises(RunError, match=r"the state folder of a client \(fedkin net join\).*fedkin net status"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "film.part", "a/b.3-0123abcd.part"])
def test_the_files_of_others_are_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert not is_unused(tmp_path)
    with pytest.raises(RunError, match="is not a run of fedkin"):
        begin(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [Path(name).parts[0]]


@pytest.mark.parametrize("name", ["experiment.toml", "plan.json"])
def test_a_changed_number_is_found_before_anything_is_done(tmp_path: Path, name: str) -> None:
    begin(tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text().replace("1", "3"))
    kept = path.read_text()
    with pytest.raises(RunError, match=f"{name}: not as it was written: its hash differs"):
        begin(tmp_path, (tmp_path / "experiment.toml").read_text())
    assert path.read_text() == kept


def test_the_folder_of_the_data_may_change(tmp_path: Path) -> None:
    begin(tmp_path)
    with claimed(tmp_path, TEXT, data_root="elsewhere"):
        assert json.loads((tmp_path / "data-root.json").read_text()) == "elsewhere"


# -- who may look into the folder of a run -------------------------------------------------------------------------


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_owner_may_look_into_a_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        compare(Runs(Experiment.of(TABLE)), ["local"], [0], tmp_path / "many" / "all")
        run("local", small_federation(), rounds=1, out=tmp_path / "one")
    finally:
        os.umask(before)
    assert mode(tmp_path / "many") == 0o755
    assert mode(tmp_path / "many" / "all") == mode(tmp_path / "many" / "all" / "local-seed0") == 0o700
    assert mode(tmp_path / "one") == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o750)
    with locked(tmp_path / "mine"):
        assert mode(tmp_path / "mine") == 0o750


# -- files are written aside, and are on the disk before they take their places ------------------------------------


def test_a_file_is_on_the_disk_before_it_is_renamed_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    rename = os.replace

    def replace(source: Any, target: Any) -> None:
        done.append(("rename", Path(target).name))
        rename(source, target)

    def fsync(number: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{number}"))
        done.append(("fsync", "folder" if name == tmp_path else name.name.split(".")[0]))

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    stamp = write_with(tmp_path / "a", lambda file: file.write(b"abc"), before=lambda stamp: done.append(("seal", "a")))
    assert done == [("fsync", "a"), ("seal", "a"), ("rename", "a"), ("fsync", "folder")]
    assert stamp == stamp_of(tmp_path / "a") == stamp_of(b"abc")
    assert stamp.bytes == 3


def test_two_writers_of_one_file_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_with(path, lambda file: (file.write(b"first"), write_bytes(path, b"second")))
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_as_it_was_and_no_other(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "report.html"
    write_bytes(path, b"before")

    with pytest.raises((RunError, KeyboardInterrupt)):
        write_with(path, Mock(side_effect=error))
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_bytes() == b"before"


def test_only_files_of_killed_writers_are_left_over(tmp_path: Path) -> None:
    mine = [tmp_path / "report.html.12-0123abcd.part", tmp_path / "parts" / "rounds-000001.jsonl.7-00000000.part"]
    others = [tmp_path / "film.part", tmp_path / "a.12-0123abcd.partly", tmp_path / "run" / mine[0].name]
    for path in (*mine, *others, tmp_path / "run" / "experiment.toml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert leftovers(tmp_path) == sorted(mine)
