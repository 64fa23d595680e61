"""The status file of a participant: who is there, rounds, bytes, what was refused, what was learned."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from fedkin.errors import ConfigError, RunError
from fedkin.network.status import FILE, Status, StatusFile, read_status
from fedkin.running.networked import settings_of
from network.federations import clients, experiment, served
from network.memory import MemoryNetwork


def test_a_look_sees_who_is_there_what_came_and_what_was_refused(tmp_path: Path) -> None:
    network = MemoryNetwork()
    with network.link("server") as server, network.link("ann") as ann:
        told = StatusFile(server, tmp_path, "server", lambda: ["ann", "bob"])
        told.round, told.rounds = 2, 5
        told.tell(round={"ann": 2}, group={"ann": 1}, weights={"ann": {"bob": 0.5}}, epsilon={"": math.inf})
        ann.offer("server", "r", b"12345")
        server.pull("ann", "r", 5)
        network.spoil("ann", "s")
        ann.offer("server", "s", b"x")
        with pytest.raises(RunError):
            server.pull("ann", "s", 5)
        server.refused.add("", "?", "nobody knows whose")
        told.look()
        status = read_status(tmp_path / FILE)
        assert (status.name, status.role, status.state) == ("server", "server", "running")
        assert (status.round, status.rounds, status.nameless, status.epsilon) == (2, 5, 1, None)
        one = status.others["ann"]
        assert (one.here, one.round, one.bytes_in, one.refused) == (True, 2, 5, 1)
        assert (one.group, one.weights) == (1, {"bob": 0.5})
        assert one.why == "its signature is not that of the owner"
        assert (status.others["bob"].here, status.others["bob"].seen) == (False, None)
        network.drop("ann")
        told.look()
        gone = read_status(tmp_path / FILE).others["ann"]
        assert not gone.here
        assert gone.seen == one.seen


def test_a_server_and_its_clients_tell_how_the_run_went(tmp_path: Path) -> None:
    plan = experiment("sfmtl-graph", clients=3)
    with clients(plan.federation(Path()), tmp_path / "nodes") as there:
        there.start()
        assert served(plan, there.network, tmp_path / "there") is not None
        there.join()
    server = read_status(tmp_path / "there" / FILE)
    assert (server.state, server.round, server.rounds, server.federation) == ("ended", 3, 3, "tiny")
    assert {name: other.round for name, other in server.others.items()} == {"c00": 3, "c01": 3, "c02": 3}
    assert all(other.bytes_in and other.bytes_out and other.weights for other in server.others.values())
    client = read_status(tmp_path / "nodes" / "c00" / FILE)
    assert (client.role, client.state, client.round, client.federation) == ("client", "ended", 3, "tiny")
    assert client.others["server"].round == 3
    assert client.others["server"].bytes_out > 0


def test_a_client_that_is_refused_when_it_comes_is_counted(tmp_path: Path) -> None:
    plan = experiment(clients=2, rounds=1)
    with clients(plan.federation(Path()), tmp_path / "nodes") as there:
        there.start("c01", settings=settings_of(experiment(clients=2, rounds=1, training={"lr": 0.3})))

        def say(line: str) -> None:
            if line.startswith("c01 is refused"):
                there.start("c00")
            if line == "1 of 2 clients are here: c00":
                there.join("c01")
                there.start("c01")

        assert served(plan, there.network, tmp_path / "there", say=say) is not None
        there.join()
    other = read_status(tmp_path / "there" / FILE).others["c01"]
    assert other.refused == 1
    assert other.why == "training.lr is 0.1 here and 0.3 there"


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
