"""`fedkin net status`: a table from a participant's file, without a network."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from cli.invoked import Terminal
from fedkin.network.status import FILE, Other, Status

Said = Callable[..., str]


def write(
    folder: Path, state: Literal["running", "ended", "left"] = "running", age: float = 0.0, name: str = "server"
) -> None:
    folder.mkdir()
    now = time.time() - age
    north = Other(here=True, round=4, seen=now, bytes_in=24616, bytes_out=1000, group=0)
    west = Other(here=False, round=2, seen=now - 300, refused=3, why="its signature \x1b[31m")
    status = Status(
        name=name, role="server", federation="three-hospitals", state=state, written=now, round=4, rounds=20,
        others={"north": north, "west": west, "south": Other(here=False)}, nameless=2,
    )  # fmt: skip
    (folder / FILE).write_text(status.model_dump_json())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> Said:
    """What the command prints, and what it says of an error."""

    monkeypatch.setenv("COLUMNS", "160")
    return lambda *words: "".join(terminal("net", "status", *words)[1:])


def test_a_table_of_who_is_there(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run")
    text = said(str(tmp_path / "run"))
    assert "three-hospitals: server (server), round 4 of 20, running" in text
    rows = {line.split()[0]: re.split("  +", line.strip()) for line in text.splitlines()}
    assert rows["north"] == ["north", "yes", "4", "now", "24.6 kB", "1.0 kB", "0"]
    assert "5 minutes ago" in rows["west"]
    assert "never" in rows["south"]
    assert "refused of west, the last: its signature \\x1b[31m" in text
    assert "nobody knows whose: 2" in text
    assert "\x1b" not in text


def test_a_folder_of_folders_a_join_file_and_json(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "a-state", name="a")
    write(tmp_path / "b-state", "ended", name="b")
    text = said(str(tmp_path / "join.toml"))
    assert "a (server), round 4 of 20, running" in text
    assert "b (server), round 4 of 20, ended" in text
    assert [each["name"] for each in json.loads(said(str(tmp_path), "--json")).values()] == ["a", "b"]


def test_one_that_was_killed_is_said_to_be_silent(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run", age=600)
    text = said(str(tmp_path / "run"))
    assert "silent" in text
    assert "has written nothing for 10 minutes" in text


@pytest.mark.parametrize("state", ["ended", "left", "running"])
def test_of_one_that_has_ended_nobody_is_said_to_be_here(
    state: Literal["running", "ended", "left"], tmp_path: Path, said: Said
) -> None:
    write(tmp_path / "run", state, age=600)
    rows = {line.split()[0]: re.split("  +", line.strip()) for line in said(str(tmp_path / "run")).splitlines()}
    assert rows["north"][:4] == ["north", "no", "4", "10 minutes ago"]


def test_watching_ends_with_the_run(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run", "left")
    assert "left; the same command comes back" in said(str(tmp_path / "run"), "--watch")


def test_a_folder_without_one_is_refused(tmp_path: Path, said: Said) -> None:
    assert "no status.json here" in said(str(tmp_path))
