"""Clients that join a federation after it has begun, leave it, or come back: as in a simulation of the same events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
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
from fedkin.network.messages import Pointer, read
from fedkin.network.registration import Registered, Registration
from fedkin.records.events import replayed
from fedkin.records.run import Result
from fedkin.running.loop import execute
from fedkin.running.model_loader import load
from fedkin.settings import parse
from network.called import CalledNetwork
from network.federations import Clients, equal, experiment
from network.memory import MemoryNetwork
from support import by_pattern, changed, same

*OTHERS, NEW = [f"c0{number}" for number in range(8)]


def left(link: Any, said: list[str]) -> None:
    """Leave by `fedkin net leave`."""
    connection = ServerConnection(link, say=said.append, patience=0.05)
    connection.await_farewell(connection.say_leaving())


class Life(Clients):
    """A federation of eight, of whom `NEW` may come later."""

    def __init__(
        self, method: str, folder: Path, rounds: int = 6, kind: Callable[[], Any] = MemoryNetwork, **network: Any
    ) -> None:
        settings = {"clients": OTHERS, "newcomers": True, **network}
        super().__init__(experiment(method, rounds=rounds, network=settings), folder, kind())
        self.leaving: list[threading.Thread] = []

    def arrive(self, name: str, **options: Any) -> None:
        """Start a client and wait until the server lets it in."""
        words = "takes part from the next"
        before = sum(words in line for line in self.said.get("server", ()))
        self.start(name, **options)
        self.heard("server", words, before + 1)

    def depart(self, name: str) -> None:
        """Stop a client, and say that it leaves; `said` by "NAME leaves" ends when the round has."""
        self.stop(name)

        def call() -> None:
            with self.network.link(name) as link:
                left(link, self.said.setdefault(f"{name} leaves", []))

        self.leaving.append(threading.Thread(target=call, daemon=True))
        self.leaving[-1].start()
        self.heard("server", f"{name} leaves")

    def departed(self) -> None:
        for thread in self.leaving:
            thread.join(60)
            assert not thread.is_alive()

    def replayed(self, result: Result, federation: Federation | None = None) -> Result:
        """The simulation of the events that a run's record names."""
        again = replayed(federation or self.federation, result.federation)
        return execute(self.plan.setup(again), self.plan.run, name=self.plan.name, folder=self.folder / "here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "after"), [("fedavg", 3), ("fedavg", 4), ("fedavg", 5), ("kin", 3), ("flt-same", 3), ("fedamp", 3)]
)
def test_one_joins_one_leaves_and_comes_back_with_other_samples_as_in_the_simulation(
    method: str, after: int, tmp_path: Path
) -> None:
    """Also when the server stops in between, or while it waits for the next round, and goes on."""

    def back() -> None:
        there.departed()
        there.arrive("c02", client=other)

    def again() -> None:
        if after == 4:
            there.heard("server", "c02 takes part", 2)

    with Life(method, tmp_path) as there:
        other = replace(there.federation["c03"], id="c02")
        there.start(*OTHERS)
        then = {1: lambda: there.arrive(NEW), 2: lambda: there.depart("c02"), 4: back, 5: again}
        there.stopped(after, then=then)
        result = there.serve(then=then)
        there.ended()
    assert there.said["c02 leaves"][-1] == "left: data of c02 no longer count from round 3 on"
    ((first, last),) = result.federation["clients"]["c02"]["away"]
    assert (first, last) == (3, 4) or (after, last) == (4, 5)
    events = {row["round"]: row["events"] for row in result.rounds if "events" in row}
    assert events == {2: {"joined": [NEW]}, 3: {"left": ["c02"]}, last + 1: {"joined": ["c02"]}}
    assert "c02" not in {row[1] for row in result.clients if first <= row[0] <= last}
    change = Change(last + 1, other.train, other.test, other.group)
    equal(result, there.replayed(result, changed(there.federation, "c02", changes=(change,))))


def test_the_state_of_a_run_has_every_member() -> None:
    """Also one that came before the first round, when others had begun."""
    about = About(n_train=3, n_test=1, digest="0" * 32)
    members = {
        "north": Registered(told={1: about}),
        "south": Registered(told={2: about, 4: about}, away=((3, None),), withdrawn="b1"),
    }
    moved = json.loads(json.dumps(Registration.moved(cast(Registration, SimpleNamespace(members=members)))))
    assert {id: parse(Registered, tree, id) for id, tree in moved.items()} == members


@pytest.mark.slow
@pytest.mark.parametrize("network", [MemoryNetwork, CalledNetwork])  # as over Zenoh, and as on Flower
def test_one_that_is_told_to_leave_answers_until_it_may_go(network: type[Any], tmp_path: Path) -> None:
    """No answer is missing, so that the run is the simulation, at whatever moment it is told."""

    def leave() -> None:
        (there.root / "c02" / LEAVES).touch()
        there.heard("c02", "telling the server")

    with Life("fedavg", tmp_path, 12, network) as there:
        there.start(*OTHERS)
        result = there.serve(then={2: leave})
        there.ended()
    first = result.federation["clients"]["c02"]["away"][0][0]
    assert f"left: data of c02 no longer count from round {first} on" in there.said["c02"]
    assert f"its model after round {first - 1} of 12 is kept" in there.said["c02"][-1]
    assert list(load(there.root / "c02")) == ["c02"]
    equal(result, there.replayed(result))


def test_a_process_ends_once_its_client_has_left_by_another_one(tmp_path: Path) -> None:
    """Nothing that it still says undoes this, nor a new process of the server; started again, it takes part again."""

    def leave() -> None:
        node, release = there.nodes["c02"], there.network.hold("server")
        ServerConnection(node.link).say_leaving()
        there.heard("server", "c02 leaves")
        node.say_hello(node.agreement, about=node.about)
        there.heard("server", "c02 is refused: it leaves at its own request")
        release()
        there.join("c02")

    def back() -> None:
        with there.network.link("c02") as link:
            now = read(Pointer, link.pull("server", "now", 30))
            assert (now.left, now.withdrawn) == (True, there.nodes["c02"].life)
        there.arrive("c02")

    with Life("fedavg", tmp_path) as there:
        there.start(*OTHERS)
        there.stopped(3, then={1: leave})
        assert "c02" not in there.errors
        assert "this client leaves at its own request" in there.said["c02"][-2]
        result = there.serve(then={4: back})
        there.ended()
    assert [row["events"] for row in result.rounds if "events" in row] == [{"left": ["c02"]}, {"joined": ["c02"]}]


def test_who_waits_to_come_back_is_not_told_that_it_has_left() -> None:
    waiting = SimpleNamespace(members={"c02": None}, next_round={"c02": None}, _is_active=lambda name: False)
    refusal = Registration._refusal(cast(Registration, waiting), "c02", cast(Any, SimpleNamespace(leaves=True)))
    assert refusal == "it takes no part yet: end its fedkin net join"


@pytest.mark.slow
def test_who_is_gone_for_long_has_left(tmp_path: Path) -> None:
    with Life("fedavg", tmp_path, rounds=8, newcomers=False, gone_after=0.01) as there:
        there.start(*OTHERS)
        result = there.serve(then={2: lambda: there.stop("c02")})
        there.join()
    assert there.errors == {"c02": "Left"}
    assert "c02 was not connected for 0.01 s: it has left" in there.said["server"]
    assert [row["events"] for row in result.rounds if "events" in row] == [{"left": ["c02"]}]
    assert result.federation["clients"]["c02"]["away"][0][1] is None


@pytest.mark.slow
def test_who_may_not_join_or_leave_is_told_why(tmp_path: Path) -> None:

    def come() -> None:
        for unseen in (True, False):
            there.start(NEW, unseen=unseen)
            there.join(NEW)
            assert "the federation is complete without it (c00, c01" in there.errors[NEW]
            assert "network.newcomers = true in the server's experiment would let it in" in there.errors[NEW]
        with there.network.link(NEW) as link, pytest.raises(RunError, match="takes no part, so that there is"):
            left(link, [])

    def back() -> None:
        there.departed()
        there.start("c02")
        there.join("c02")

    with Life("fedavg", tmp_path, newcomers=False) as there:
        there.start(*OTHERS)
        there.serve(then={1: come, 2: lambda: there.depart("c02"), 4: back})
        there.join()
    assert "it has left the federation in round 3" in there.errors["c02"]


def test_who_does_not_fit_the_method_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(method: FedAvg, federation: Mapping[str, Any]) -> None:
        if NEW in federation:
            raise ConfigError("method.clients: seven")

    def come() -> None:
        there.start(NEW)
        there.join(NEW)

    monkeypatch.setattr(FedAvg, "check", check)
    with Life("fedavg", tmp_path, rounds=2) as there:
        there.start(*OTHERS)
        there.serve(then={1: come})
        there.join()
    assert "method 'fedavg' cannot take it in: method.clients: seven" in there.errors[NEW]


@pytest.mark.slow
@pytest.mark.parametrize("method", by_pattern(["fedavg", "kin", "flt-same", "ifca", "fedu", "feddrift"]))
def test_one_that_takes_no_part_gets_the_model_of_the_simulation(method: str, tmp_path: Path) -> None:
    """Also when it is gone for a while, and when the server stops and goes on."""

    def others() -> None:
        there.heard(NEW, "waiting for the next round")
        there.start(*OTHERS)

    def back() -> None:
        there.start(NEW, unseen=True)
        there.heard("server", f"{NEW} is here again")

    with Life(method, tmp_path, rounds=4) as there:
        there.start(NEW, unseen=True)
        threading.Thread(target=others, daemon=True).start()
        there.stopped(1)
        result = there.serve(then={2: lambda: there.stop(NEW), 3: back})
        there.ended()
    here = there.replayed(result, changed(there.federation, NEW, seen=False))
    assert [row for row in result.rounds if row["round"] != 3] == [row for row in here.rounds if row["round"] != 3]
    assert result.unseen == (NEW,)
    assert same(load(there.root / NEW).stored[NEW], here.models[NEW])
    assert not list((there.root / NEW).glob("*/round-*"))
