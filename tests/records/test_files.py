"""Files are written aside, under names of their own, and are on the disk before they take their places."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedkin.errors import RunError
from fedkin.records.files import leftovers, stamp_of, write_bytes, write_with


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

    def fail(file: object) -> None:
        raise error

    with pytest.raises((RunError, KeyboardInterrupt)):
        write_with(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_bytes() == b"before"


def test_only_files_of_killed_writers_are_left_over(tmp_path: Path) -> None:
    mine = [tmp_path / "report.html.12-0123abcd.part", tmp_path / "parts" / "rounds-000001.jsonl.7-00000000.part"]
    others = [tmp_path / "film.part", tmp_path / "a.12-0123abcd.partly", tmp_path / "run" / mine[0].name]
    for path in (*mine, *others, tmp_path / "run" / "experiment.toml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert leftovers(tmp_path) == sorted(mine)
