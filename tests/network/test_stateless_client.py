"""Clients that do not stay between two calls: what a simulation computes, also when answers and processes are lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, cast

import pytest

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.federation import Federation
from fedkin.folders import held
from fedkin.network.calls import AnsweringLink, Mailbox, addressee
from fedkin.network.client import NetworkClient
from fedkin.network.link import Missed
from fedkin.network.stateless_client import VisitingLink, visited
from fedkin.running.experiment import Experiment
from fedkin.running.networked import plan_of
from network.called import CalledNetwork
from network.federations import NOWHERE, Ending, experiment, same, served, simulated, state_in
from network.memory import MemoryNetwork

_ALONE = Lock()


class Visitor:
    """A client of which nothing but its folder is there between two calls."""

    def __init__(self, plan: Experiment, name: str, folder: Path) -> None:
        self.plan, self.name, self.folder = plan, name, folder / name
        self.federation = plan.federation(NOWHERE)
        self.said: list[str] = []
        self.errors: list[str] = []
        self.orders = 0
        self.work = self._work

    def answer(self, letter: bytes) -> bytes:
        assert addressee(letter) == self.name
        # A process has torch's settings for itself; threads share them.
        with _ALONE, held(self.folder):
            return visited(self.folder, self.name, letter, self.work)

    def _work(self, link: VisitingLink, memory: dict[str, Any]) -> None:
        client, task = self.federation[self.name], self.federation.task
        try:
            NetworkClient(link, client, task, plan_of, self.folder, say=self.said.append, memory=memory).run()
        finally:
            answers = [int(each.split("/")[-2]) for each in link.box("server").offers if each.endswith("/answer")]
            self.orders = max([self.orders, *(number + 1 for number in answers)])

    def once_with(self, federation: Federation) -> None:
        """Have other samples until that is an error."""
        mine, self.federation = self.federation, federation

        def work(link: VisitingLink, memory: dict[str, Any]) -> None:
            try:
                self._work(link, memory)
            except RunError as error:
                self.errors.append(str(error))
                self.federation = mine
                raise

        self.work = work


def visiting(plan: Experiment, folder: Path) -> tuple[CalledNetwork, dict[str, Visitor]]:
    # A beat that never comes: calls are those that have a reason.
    network, visitors = CalledNetwork(beat=600.0), {}
    for name in sorted(plan.federation(NOWHERE)):
        visitors[name] = Visitor(plan, name, folder)
        network.known.add(name)
        network.ends[name] = cast(AnsweringLink, visitors[name])
    return network, visitors


def equal(there: Path, here: Path) -> None:
    assert (there / "rounds.jsonl").read_bytes() == (here / "rounds.jsonl").read_bytes()
    assert same(state_in(there)["server"], state_in(here)["server"])


# Orders of three rounds: in each round the phases and an evaluation, and at last the end.
@pytest.mark.parametrize(("method", "orders"), [
    ("flt-same", 9), *(pytest.param(name, orders, marks=pytest.mark.slow) for name, orders in (
        ("fedavg", 7), ("sfmtl-graph", 10), ("tfl", 10), ("cfl", 7), ("pfedsim", 7),
    ))
])  # fmt: skip
def test_a_federation_is_the_simulation_bit_for_bit(method: str, orders: int, tmp_path: Path) -> None:
    plan = experiment(method, clients=3, rounds=3)
    simulated(plan, tmp_path / "here")
    network, visitors = visiting(plan, tmp_path / "nodes")
    assert served(plan, cast(MemoryNetwork, network), tmp_path / "there") is not None
    equal(tmp_path / "there", tmp_path / "here")
    assert all(each.said[-1] == "the run has ended" for each in visitors.values())
    assert {each.orders for each in visitors.values()} == {orders}
    for news in network.news.values():
        # One call for each order, and four to join: the first one, the terms, those with the task in them, the welcome.
        assert sum("order" in new for new in news) == orders, news
        # "now" goes with an order or with terms; where the machine is so busy that they part, it has a call of its own.
        assert len([new for new in news if new != {"now"}]) <= orders + 4, news
        assert all(news[1:]), news


@pytest.mark.slow
def test_lost_answers_killed_visits_and_a_server_that_begins_anew_change_nothing(tmp_path: Path) -> None:
    plan = experiment("sfmtl-graph", clients=3, rounds=3, network={"grace": 60.0})
    simulated(plan, tmp_path / "here")
    network, visitors = visiting(plan, tmp_path / "nodes")
    network.lost |= {"c01"}
    trained = visitors["c02"].work

    def kill(round: int) -> None:
        """After the first round an answer is lost, and a visit."""
        if round == 1:
            network.lost.add("c00")
            visitors["c02"].work = dying

    def dying(link: VisitingLink, memory: dict[str, Any]) -> None:
        visitors["c02"].work = trained
        try:
            trained(link, memory)
        finally:
            raise RunError("killed")

    assert served(plan, cast(MemoryNetwork, network), tmp_path / "there", watcher=Ending(2, kill)) is None
    again, _ = visiting(plan, tmp_path / "nodes")
    assert served(plan, cast(MemoryNetwork, again), tmp_path / "there") is not None
    assert "c00: the answer was lost" in network.said
    assert "c02: killed" in network.said
    equal(tmp_path / "there", tmp_path / "here")


@pytest.mark.slow
def test_a_client_whose_samples_changed_comes_back_with_the_right_ones(tmp_path: Path) -> None:
    plan = experiment(clients=2, rounds=3, network={"grace": 60.0})
    other = experiment(clients=2, data={"seed": 1}, run={"seed": 1}).federation(NOWHERE)
    simulated(plan, tmp_path / "here")
    network, visitors = visiting(plan, tmp_path / "nodes")

    def change(round: int) -> None:
        if round == 1:
            visitors["c00"].once_with(other)

    assert served(plan, cast(MemoryNetwork, network), tmp_path / "there", watcher=Ending(2, change)) is None
    assert visitors["c00"].errors == [
        "client 'c00' joined this run with other samples: put those back, or begin another run"
    ]
    # Without its file the server alone can see it.
    again, visitors = visiting(plan, tmp_path / "nodes")
    (tmp_path / "nodes" / "c00" / "visit.safetensors").unlink()
    visitors["c00"].once_with(other)
    assert served(plan, cast(MemoryNetwork, again), tmp_path / "there", watcher=Patience(visitors["c00"])) is not None
    assert visitors["c00"].errors == [
        "the server refuses this client: its samples are not those with which it was here before"
    ]
    equal(tmp_path / "there", tmp_path / "here")


class Patience(Ending):
    """Stops a run when a client was refused again and again."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__()
        self.visitor = visitor

    def stopping(self) -> bool:
        return len(self.visitor.errors) > 3


def test_a_visit_without_news_does_no_work(tmp_path: Path) -> None:
    server, times = Mailbox("server", "ann"), [0]

    def work(link: VisitingLink, memory: dict[str, Any]) -> None:
        times[0] += 1
        while True:
            with suppress(Missed):
                link.pull("server", "r/0/order", 3600.0)

    (tmp_path / "ann").mkdir()
    for _ in range(3):
        assert server.read(visited(tmp_path / "ann", "ann", server.letter(), work)).waits
    assert times == [1]
    server.put("now", b"1")
    server.read(visited(tmp_path / "ann", "ann", server.letter(), work))
    assert times == [2]


def test_a_mailbox_goes_on_from_its_tree() -> None:
    here, there = Mailbox("server", "ann"), Mailbox("ann", "server")
    here.put("a", b"1")
    there.put("b", b"")
    there.read(here.letter())
    again = Mailbox.of(there.tree())
    assert (again.theirs, again.offers, again.letter()) == (there.theirs, there.offers, there.letter())


def test_what_is_no_letter_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    def work(link: VisitingLink, memory: dict[str, Any]) -> None:
        raise AssertionError

    with pytest.raises(MethodError, match="not a letter"):
        visited(tmp_path, "ann", b"", work)
    with pytest.raises(MethodError, match="which is no name"):
        addressee(Mailbox("server", "../ann").letter())
    (tmp_path / "visit.safetensors").write_bytes(b"x")
    box = Mailbox("ann", "server").tree()
    for damaged in (
        None, {}, {"box": box, "memory": ["x"]}, {"box": box, "memory": 1},
        *({"box": {**box, field: value}, "memory": {}} for field, value in (
            ("offers", []), ("theirs", ["x"]), ("theirs", {"a": 1}), ("offers", {"a": 1}), ("life", 1), ("known", "x"),
            ("version", -1), ("me", 2),
        )),
    ):  # fmt: skip
        if damaged is not None:
            (tmp_path / "visit.safetensors").write_bytes(codec.encode(damaged))
        with pytest.raises(RunError, match=r"visit.safetensors: not readable .* and the client joins again"):
            visited(tmp_path, "ann", Mailbox("server", "ann").letter(), work)
