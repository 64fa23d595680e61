"""The status file of a participant: who is there, rounds, bytes, what was refused, what was learned."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from fedkin.errors import ConfigError, RunError
from fedkin.network.status import FILE, Status, StatusFile, read_status
from network.memory import MemoryNetwork


def test_a_look_sees_who_is_there_what_came_and_what_was_refused(tmp_path: Path, network: MemoryNetwork) -> None:
    with network.link("server") as server, network.link("ann") as ann:
        told = StatusFile(server, tmp_path, "server", lambda: ["ann", "bob"])
        told.round, told.rounds = 2, 5
        told.tell(round={"ann": 2}, group={"ann": 1}, epsilon={"": math.inf})
        ann.offer("server", "r", b"12345")
        server.pull("ann", "r", 5)
        network.spoil("ann", "s")
        ann.offer("server", "s", b"x")
        with pytest.raises(RunError):
            server.pull("ann", "s", 5)
        server.refused.add("", "nobody knows whose")
        told.look()
        status = read_status(tmp_path / FILE)
        assert (status.name, status.role, status.state) == ("server", "server", "running")
        assert (status.round, status.rounds, status.nameless, status.epsilon) == (2, 5, 1, None)
        one = status.others["ann"]
        assert (one.here, one.round, one.bytes_in, one.refused, one.group) == (True, 2, 5, 1, 1)
        assert one.why == "its signature is not that of the owner"
        assert (status.others["bob"].here, status.others["bob"].seen) == (False, None)
        network.cut("ann")
        told.look()
        gone = read_status(tmp_path / FILE).others["ann"]
        assert not gone.here
        assert gone.seen == one.seen


def test_who_came_and_went_between_two_looks_was_seen(tmp_path: Path, network: MemoryNetwork) -> None:
    with network.link("server") as server:
        told = StatusFile(server, tmp_path, "server", lambda: ["ann"])
        with network.link("ann") as ann:
            ann.offer("server", "r", b"12345")
            server.pull("ann", "r", 5)
        told.look()
        one = read_status(tmp_path / FILE).others["ann"]
        assert (one.here, one.seen is None) == (False, False)
        told.seen["ann"] = 1.0
        told.look()
        assert read_status(tmp_path / FILE).others["ann"].seen == 1.0


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with pytest.raises(RunError, match="No such file"):
        read_status(path)
    for text, words in (("{", "not a status file"), ("[]", "expected a table")):
        path.write_text(text)
        with pytest.raises(RunError, match=words):
            read_status(path)
    path.write_text('{"name": "a"}')
    with pytest.raises(ConfigError, match=r"status\.json\.role"):
        read_status(path)


def test_one_that_writes_nothing_is_silent() -> None:
    now = time.time()
    status = Status(name="a", role="peer", federation="f", state="running", written=now - 60)
    assert status.late(now) == pytest.approx(60)
    assert status.late(now - 55) == 0
    assert status.model_copy(update={"state": "ended"}).late(now) == 0
