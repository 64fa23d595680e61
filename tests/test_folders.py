"""A folder is held by one process, and what is written into it survives a crash."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.errors import RunError
from fedkin.folders import holder, locked, made_private, make_durable, write_private

HOLD = (
    "import sys; from pathlib import Path; from fedkin.folders import locked\n"
    "with locked(Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


def test_another_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        said = f"in use by process {other.pid} on {socket.gethostname()}: wait until it has ended, stop it"
        with pytest.raises(RunError, match=said), locked(folder):
            pass
        assert said in str(holder(folder))
        other.kill()
        other.wait()
    assert (folder / "lock").exists()  # which a kill leaves, and nobody holds
    assert holder(folder) is None
    with locked(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_second_hold_in_one_process_is_refused_too(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(RunError, match=f"process {os.getpid()} "), locked(tmp_path):
            pass
        (tmp_path / "lock.json").write_text("{")
        with pytest.raises(RunError, match="in use by another process"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file: cannot be used as a folder"), locked(tmp_path / "file"):
        pass


def test_new_folders_are_on_the_disk_in_the_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("os.fsync", lambda number: seen.append(os.readlink(f"/proc/self/fd/{number}")))
    make_durable(tmp_path / "a" / "b")
    assert sorted(seen) == [str(tmp_path), str(tmp_path / "a")]
    seen.clear()
    make_durable(tmp_path / "a" / "b")
    assert seen == []


def test_a_private_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.bin"
    write_private(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o600

    def full(number: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="the disk is full"):
        write_private(path, b"two")
    assert path.read_bytes() == b"one"
    made_private(tmp_path, "states")
    assert [left.name for left in tmp_path.iterdir()] == ["state.bin"]
