"""Clients that join a federation after it has begun, leave it, or come back: as in a simulation of the same events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedkin.errors import ConfigError, RunError
from fedkin.federation import Change, Federation
from fedkin.methods.fedavg import FedAvg
from fedkin.network.client import LEAVES, ServerConnection
from fedkin.network.hello import About
from fedkin.network.registration import Member, Registration
from fedkin.records.events import replayed
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from fedkin.running.model_loader import load
from fedkin.settings import parse
from network.called import CalledNetwork
from network.federations import Clients, Ending, clients, experiment
from network.memory import MemoryNetwork
from support import by_pattern, same

NEW = "c07"


def left(link: Any, said: list[str]) -> None:
    """Leave by `fedkin net leave`."""
    connection = ServerConnection(link, say=said.append, patience=0.05)
    connection.await_farewell(connection.say_leaving())


class Life:
    """A federation of eight, of whom `NEW` may come later."""

    def __init__(self, method: str, folder: Path, rounds: int = 6, **network: Any) -> None:
        names = experiment(method).federation(Path())
        first = sorted(set(names) - {NEW})
        settings = {"clients": first, "newcomers": True, **network}
        self.plan = experiment(method, rounds=rounds, network=settings)
        self.folder, self.federation = folder, self.plan.federation(Path())
        self.threads: list[threading.Thread] = []

    def serve(self, there: Clients, then: Callable[[int], None], after: int = -1) -> Result | None:
        return there.serve(self.plan, self.folder / "there", Ending(after, then))

    def arrive(self, there: Clients, name: str, **options: Any) -> None:
        """Start a client and wait until the server lets it in."""
        words = "takes part from the next"
        before = sum(words in line for line in there.said.get("server", ()))
        there.start(name, **options)
        there.heard("server", words, before + 1)

    def depart(self, there: Clients, name: str) -> list[str]:
        """Stop a client, and say that it leaves; returns what that says, which ends when the round has."""
        there.stop(name)
        said: list[str] = []

        def call() -> None:
            with there.network.link(name) as link:
                left(link, said)

        self.threads.append(threading.Thread(target=call, daemon=True))
        self.threads[-1].start()
        there.heard("server", f"{name} leaves")
        return said

    def departed(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def replayed(self, result: Result) -> Result:
        """The simulation of the events that a run's record names."""
        federation = replayed(self.federation, result.federation)
        plan: Experiment = replace(self.plan, run=self.plan.run.model_copy(update={"mode": "one-by-one"}))
        return execute(plan.setup(federation), plan.run, name=plan.name, folder=self.folder / "here")


def equal(result: Result, here: Result) -> None:
    assert result.rounds == here.rounds
    assert sorted(result.clients) == sorted(here.clients)
    assert result.messages == here.messages


@contextmanager
def begun(life: Life, root: Path, network: MemoryNetwork | None = None) -> Iterator[Clients]:
    """All clients but the newcomer, which are gone at the end."""
    with clients(life.federation, root / "nodes") as there:
        there.network = network or there.network
        there.start(*sorted(set(life.federation) - {NEW}))
        yield there


@pytest.mark.slow
@pytest.mark.parametrize("method", by_pattern(["fedavg", "kin", "flt-same", "fedamp"]))
def test_one_joins_one_leaves_and_comes_back_as_in_the_simulation(method: str, tmp_path: Path) -> None:
    """Also when the server stops in between, and goes on."""
    life = Life(method, tmp_path)
    said: list[list[str]] = []
    with begun(life, tmp_path) as there:

        def then(round: int) -> None:
            if round == 1:
                life.arrive(there, NEW)
            if round == 2:
                said.append(life.depart(there, "c02"))
            if round == 4:
                life.departed()
                life.arrive(there, "c02")

        assert life.serve(there, then, after=3) is None
        result = life.serve(there, then)
        there.join()
        assert there.errors == {}
    assert result is not None
    assert said[0][-1] == "left: data of c02 count no more from round 3 on"
    events = {row["round"]: row["events"] for row in result.rounds if "events" in row}
    assert events == {2: {"joined": [NEW]}, 3: {"left": ["c02"]}, 5: {"joined": ["c02"]}}
    assert "c02" not in {row[1] for row in result.clients if row[0] in (3, 4)}
    equal(result, life.replayed(result))


def test_the_state_of_a_run_has_every_member() -> None:
    """Also one that came before the first round, when others had begun."""
    about = About(n_train=3, n_test=1, digest="0" * 32)
    members = {"north": Member(told={1: about}), "south": Member(told={2: about, 4: about}, away=((3, None),))}
    moved = json.loads(json.dumps(Registration.moved(cast(Registration, SimpleNamespace(members=members)))))
    assert {id: parse(Member, tree, id) for id, tree in moved.items()} == members


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 4])
def test_one_comes_back_with_other_samples_and_the_server_goes_on(after: int, tmp_path: Path) -> None:
    """Also when the server stops while it waits for the next round."""
    life = Life("fedavg", tmp_path)
    other = replace(life.federation[NEW], id="c02")
    with begun(life, tmp_path) as there:

        def then(round: int) -> None:
            if round == 1:
                life.depart(there, "c02")
            if round == 3:
                life.departed()
                life.arrive(there, "c02", client=other)
            if round == 4 and after == 3:
                there.heard("server", "c02 takes part", 2)

        assert life.serve(there, then, after=after) is None
        result = life.serve(there, then)
        there.join()
        assert there.errors == {}
    assert result is not None
    first, last = result.federation["clients"]["c02"]["away"][0]
    assert (first, last) == (2, 3) if after == 4 else last in (3, 4)
    change = Change(last + 1, other.train, other.test)
    life.federation = Federation(
        [replace(c, changes=(change,)) if id == "c02" else c for id, c in life.federation.items()],
        life.federation.task, life.federation.name,
    )  # fmt: skip
    equal(result, life.replayed(result))


@pytest.mark.slow
@pytest.mark.parametrize("network", [MemoryNetwork, CalledNetwork])  # as over Zenoh, and as on Flower
def test_one_that_is_told_to_leave_answers_until_it_may_go(network: type[Any], tmp_path: Path) -> None:
    """No answer is missing, so that the run is the simulation, at whatever moment it is told."""
    life = Life("fedavg", tmp_path, rounds=12)
    with begun(life, tmp_path, network()) as there:

        def then(round: int) -> None:
            if round == 2:
                (tmp_path / "nodes" / "c02" / LEAVES).touch()
                there.heard("c02", "the server is told")

        result = life.serve(there, then)
        there.join()
        assert there.errors == {}
        assert result is not None
        first = result.federation["clients"]["c02"]["away"][0][0]
        assert f"left: data of c02 count no more from round {first} on" in there.said["c02"]
        assert f"its model after round {first - 1} of 12 is kept" in there.said["c02"][-1]
        assert list(load(tmp_path / "nodes" / "c02")) == ["c02"]
    equal(result, life.replayed(result))


@pytest.mark.slow
def test_who_is_gone_for_long_has_left(tmp_path: Path) -> None:
    life = Life("fedavg", tmp_path, rounds=8, newcomers=False, gone_after=0.01)
    with begun(life, tmp_path) as there:
        result = life.serve(there, lambda round: there.stop("c02") if round == 2 else None)
        there.join()
        assert there.errors == {"c02": "left"}
        assert "c02 was not connected for 0.01 s: it has left" in there.said["server"]
    assert result is not None
    assert [row["events"] for row in result.rounds if "events" in row] == [{"left": ["c02"]}]
    assert result.federation["clients"]["c02"]["away"][0][1] is None


@pytest.mark.slow
def test_who_may_not_join_or_leave_is_told_why(tmp_path: Path) -> None:
    life = Life("fedavg", tmp_path, newcomers=False)
    said, refused = list[str](), list[str]()
    with begun(life, tmp_path) as there:

        def then(round: int) -> None:
            if round == 1:
                for unseen in (True, False):
                    there.start(NEW, unseen=unseen)
                    there.join(NEW)
                    refused.append(there.errors[NEW])
                with there.network.link(NEW) as link, pytest.raises(RunError, match="takes no part, so that there is"):
                    left(link, said)
            if round == 2:
                life.depart(there, "c02")
            if round == 4:
                life.departed()
                there.start("c02")
                there.join("c02")

        assert life.serve(there, then) is not None
        there.join()
    for words in refused:
        assert "the federation is complete without it (c00, c01" in words
        assert "network.newcomers = true in the server's experiment would let it in" in words
    assert "it has left the federation in round 3" in there.errors["c02"]


def test_who_does_not_fit_the_method_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(method: FedAvg, federation: Mapping[str, Any]) -> None:
        if NEW in federation:
            raise ConfigError("method.clients: seven")

    monkeypatch.setattr(FedAvg, "check", check)
    life = Life("fedavg", tmp_path, rounds=2)
    with begun(life, tmp_path) as there:

        def then(round: int) -> None:
            if round == 1:
                there.start(NEW)
                there.join(NEW)

        assert life.serve(there, then) is not None
        there.join()
    assert "method 'fedavg' cannot take it in: method.clients: seven" in there.errors[NEW]


@pytest.mark.slow
@pytest.mark.parametrize("method", by_pattern(["fedavg", "kin", "flt-same", "ifca", "fedu", "feddrift"]))
def test_one_that_takes_no_part_gets_the_model_of_the_simulation(method: str, tmp_path: Path) -> None:
    """Also when it is gone for a while, and when the server stops and goes on."""
    life = Life(method, tmp_path, rounds=4)
    unseen = replace(life.federation[NEW], seen=False)
    with clients(life.federation, tmp_path / "nodes") as there:
        there.start(NEW, unseen=True)

        def others() -> None:
            there.heard(NEW, "waiting for the next round")
            there.start(*sorted(set(life.federation) - {NEW}))

        threading.Thread(target=others, daemon=True).start()

        def then(round: int) -> None:
            if round == 2:
                there.stop(NEW)
            if round == 3:
                there.start(NEW, unseen=True)
                there.heard("server", f"{NEW} is here again")

        assert life.serve(there, then, after=1) is None
        result = life.serve(there, then)
        there.join()
        assert there.errors == {}
    assert result is not None
    kept = [client for id, client in life.federation.items() if id != NEW]
    life.federation = Federation([*kept, unseen], life.federation.task, life.federation.name)
    here = life.replayed(result)
    for row, there_row in zip(here.rounds, result.rounds, strict=True):
        if row["round"] != 3:
            assert there_row == row
    assert result.unseen == (NEW,)
    assert same(load(tmp_path / "nodes" / NEW).stored[NEW], here.models[NEW])
    assert not list((tmp_path / "nodes" / NEW).glob("*/round-*"))
