"""What a client accepts from a server, and what it refuses; the server here is the test itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkin
from fedkin import codec
from fedkin._version import __version__
from fedkin.errors import ConfigError, MethodError
from fedkin.learning.metrics import MEASURES
from fedkin.network import agreement
from fedkin.network.client import NetworkClient
from fedkin.network.hello import about_of
from fedkin.network.link import Link
from fedkin.network.messages import Pointer, encode, read, tree_of
from fedkin.network.status import FILE, read_status
from fedkin.running.experiment import Experiment
from fedkin.running.networked import settings_of, setup_of
from fedkin.tasks import Task
from network.federations import NOWHERE, Clients, Owner, experiment
from network.memory import MemoryNetwork
from support import present, stored

PLAN = experiment(clients=2, rounds=4)
FEDERATION = PLAN.federation(NOWHERE)
CLIENT = FEDERATION["c00"]


class Server:
    """A server by hand, for the client c00: it says what the test wants, and shows what came."""

    def __init__(self, link: Link, there: Clients) -> None:
        self.link, self.there, self.task = link, there, there.federation.task
        setup, mine = agreement.setup_and_agreement(settings_of(there.plan), self.task, setup_of)
        self.setup, self.number = present(setup), 0
        self.link.offer("c00", "terms", encode(agreement.Terms(agreement=mine, name="tiny")))

    def join(self, epoch: str = "e1") -> None:
        """Let the client in."""
        self.epoch, self.number = epoch, 0
        self.hello = self.welcome(run="r1", epoch=epoch, number=0)

    def welcome(self, **answer: Any) -> dict[str, Any]:
        """Answer the client's hello; returns it."""
        hello = codec.decode(self.link.pull("c00", "hello", 30))
        self.link.offer("c00", f"heard/{hello['nonce']}", codec.encode({}))
        self.link.offer("c00", f"welcome/{hello['nonce']}", codec.encode(answer))
        return hello

    def order(self, **fields: Any) -> None:
        """Send the next order, of round 1 if nothing else is said."""
        order = {"what": "ask", "phase": "train", "round": 1, "begun": 0, "undone": [], "last": 0, **fields}
        self.link.offer("c00", f"r1/{self.epoch}/{self.number}/order", codec.encode(order))

    def answer(self) -> dict[str, Any]:
        """The answer to the last order."""
        data = self.link.pull("c00", f"r1/{self.epoch}/{self.number}/answer", 30)
        self.number += 1
        return codec.decode(data)

    def params(self, moved: float = 0.0) -> dict[str, Any]:
        """The net as it is at first, or moved by a constant."""
        return {"params": {name: tensor + moved for name, tensor in self.setup.net.initial.items()}}

    def train(self, moved: float = 0.0, **fields: Any) -> dict[str, Any]:
        """The answer to an order to train it."""
        self.order(**{"message": self.params(moved), **fields})
        return self.answer()

    def restart(self) -> None:
        """Stop the client, and start it again."""
        self.there.stop("c00")
        self.there.start("c00")


@contextmanager
def by_hand(folder: Path, plan: Experiment = PLAN, joins: bool = True, **options: Any) -> Iterator[Server]:
    """A server by hand, and the client c00, which it has let in."""
    with Clients(plan, folder, options=options) as there, there.network.link("server") as link:
        server = Server(link, there)
        there.start("c00")
        if joins:
            server.join()
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with by_hand(tmp_path) as server:
        yield server


def test_a_phase_that_is_not_declared_and_a_round_too_many_are_refused(server: Server) -> None:
    told = server.train(phase="model_dump")
    assert told["error"] == "the server asked for phase 'model_dump', which method 'fedavg' does not have"
    assert server.train(round=40)["error"] == "the server asked for round 40 of 4"
    for what in ("checkpoint", "models"):
        server.order(what=what)
        assert "order is not readable (what: " in server.answer()["error"]
    assert "reply" in server.train()
    assert f"refused: {told['error']}" in server.there.said["c00"]


@pytest.mark.parametrize(
    "fields",
    [
        {"round": "3"}, {"round": None}, {"round": torch.tensor(1)}, {"round": -1}, {"round": 10**400}, {"undone": 3},
        {"undone": [[]]}, {"last": 1.5}, {"message": 3}, {"message": {"params": 3}}, {"message": {}}, {"more": 1},
        {"phase": ["train"]}, {"round": 5},
    ],
)  # fmt: skip
def test_an_odd_order_is_answered_in_one_line_and_the_client_goes_on(fields: dict[str, Any], server: Server) -> None:
    told = server.train(**fields)
    assert "error" in told or told["failed"]
    assert "reply" not in told
    server.link.offer("c00", f"r1/{server.epoch}/{server.number}/order", b"no tree")
    assert server.answer()["error"].startswith("order is not readable (")
    assert "reply" in server.train()


def test_a_state_in_which_a_bit_has_changed_is_refused(server: Server, tmp_path: Path) -> None:
    server.train()
    server.there.stop("c00")
    (file,) = tmp_path.glob("nodes/c00/r1/round-*.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    server.there.start("c00")
    server.join("e2")
    server.order(round=2, begun=1, last=1)
    server.there.join("c00")
    assert "its hash does not fit: it was changed or is damaged" in server.there.errors["c00"]


def test_a_client_that_reaches_nobody_says_why_and_leaves_after_a_stated_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.network.client._GIVE_UP", 0.3)
    with Clients(PLAN, tmp_path) as there:
        there.start("c00")
        there.join("c00")
        assert there.errors["c00"] == "the server was not reached for 0.3 s; the same command comes back"
        assert "waiting for at most" in there.said["c00"][0]


def test_an_offer_that_is_forged_on_its_way_is_refused_and_asked_for_again(server: Server) -> None:
    release = server.there.network.spoil("server", "r1/e1/0/")
    server.order(message=server.params())
    server.there.heard("c00", "refused: server: r1/e1/0/order")
    release()
    assert "reply" in server.answer()


def test_why_a_metric_failed_stays_with_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @fedkin.metric(higher=True)
    def each(outputs: Any, targets: Any) -> Any:
        raise ValueError(f"these are {targets.tolist()}")

    monkeypatch.setitem(MEASURES, "each", each)
    with by_hand(tmp_path, experiment(clients=2, run={"metrics": ["each"]})) as server:
        told, said = server.train(what="scores"), server.there.said["c00"]
    assert told["error"] == "metric 'each' failed (ValueError): the participant's own log says why"
    assert any(line.startswith("metric 'each', client 'c00': ValueError: these are [") for line in said)


def test_an_answer_that_the_server_did_not_hear_is_given_again(server: Server, tmp_path: Path) -> None:
    first = server.train()
    server.number -= 1
    server.restart()
    server.welcome(run="r1", epoch="e1", number=0)
    again = server.answer()
    # Trained once: the state has counted one phase, and the answer is that one.
    assert torch.equal(*(t["reply"]["params"]["head.bias"] for t in (first, again)))
    (file,) = tmp_path.glob("nodes/c00/r1/round-*.safetensors")
    assert codec.decode(file.read_bytes()[32:])["part"]["steps"] == {"train": 0}


def test_a_round_that_is_begun_again_by_another_process_of_the_server_is_said_once(server: Server) -> None:
    server.train()
    server.link.offer("c00", "now", encode(Pointer(epoch="e2", number=0)))
    server.join("e2")
    assert "reply" in server.train()
    assert server.there.said["c00"].count("round 1: train") == 1
    assert server.there.nodes["c00"].status.round == 1


def test_who_was_lost_joins_once_more_and_who_left_by_its_own_wish_ends(server: Server) -> None:
    """Not a process that was let in after its client had left, of which a server that was killed knows no more."""
    server.train()
    for number, earlier in enumerate(("", "a1")):
        server.link.offer("c00", "now", encode(Pointer(epoch="e1", number=1, left=True, withdrawn=earlier)))
        server.there.heard("c00", "joining again", number + 1)
        if not earlier:
            server.join("e1")
    life = server.there.nodes["c00"].life
    server.link.offer("c00", "now", encode(Pointer(epoch="e1", number=1, left=True, withdrawn=life)))
    server.join("e1")
    server.there.ended()
    assert server.there.said["c00"].count("this client leaves at its own request: fedkin net join brings it back") == 1


@pytest.mark.parametrize(("begun", "left"), [(3, [2, 3]), (0, []), (4, [2, 3, 4])])
def test_the_last_three_states_are_kept_and_those_that_the_server_has_given_up_are_not(
    server: Server, tmp_path: Path, begun: int, left: list[int]
) -> None:
    for round in (1, 2, 3, 4):
        assert "reply" in server.train(round=round, last=round - 1)
    server.restart()
    server.join("e2")
    assert "score" in server.train(what="scores", begun=begun, round=begun)
    assert sorted(int(path.stem[6:]) for path in tmp_path.glob("nodes/c00/r1/round-*")) == left


def test_a_client_whose_state_is_lost_does_not_go_on_without(server: Server) -> None:
    server.order(message={}, round=3, last=2)
    server.there.join("c00")
    assert "this client's state of round 2 is not in" in server.there.errors["c00"]


def test_what_leaves_is_shown_before_anything_is_sent(tmp_path: Path) -> None:
    columns = ["age", "dose", "(class) cat", "(class) dog"]
    named, owner = replace(CLIENT, about={"columns": columns}, group="ward 3"), Owner("no")
    with by_hand(tmp_path, client=named, joins=False, consent=owner) as server:
        server.there.join("c00")
        assert server.there.errors == {"c00": "Left"}
        assert server.link.bytes_in == {}
    assert owner.told[0].startswith("train: params (of the net: body.1.weight [8, 64], body.1.bias [8], head.weight")
    assert "about 2,448 bytes each time" in owner.told[0]
    assert {"names of its columns: age, dose", "names of its classes: cat, dog"} <= set(owner.told)
    assert any("its group 'ward 3'" in told for told in owner.told)


@pytest.mark.parametrize("answer", ["yes", "no", "nobody can be asked"])
def test_a_client_that_cannot_take_part_says_so_with_consent_only(answer: str, tmp_path: Path) -> None:
    named, owner = replace(CLIENT, about={"columns": ["age", "dose"]}), Owner(answer)
    other = settings_of(experiment(clients=2, training={"lr": 0.2}))
    with by_hand(tmp_path, client=named, joins=False, consent=owner, settings=other) as server:
        if answer == "yes":
            hello = server.welcome(refused="it is unlike")
            assert hello["agreement"]["columns"] == ["age", "dose"]
            # No run has begun, so that nobody needs to know these samples again.
            assert hello["about"]["digest"] != about_of(named, FEDERATION.task).digest
        server.there.join("c00")
        assert server.there.errors["c00"].startswith("this client cannot take part: training.lr is 0.2 here and 0.1")
        assert answer == "yes" or server.link.bytes_in == {}
    assert owner.told[0] == server.there.errors["c00"]
    assert "names of its columns: age, dose" in owner.told


# -- refused on both sides ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu0", "cuda:77"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_asked(device: str, tmp_path: Path) -> None:
    with MemoryNetwork().link("c00") as link, pytest.raises(ConfigError, match=f"device: .*{device}"):
        NetworkClient(link, (CLIENT, FEDERATION.task), setup_of, tmp_path, device=device)


def test_of_another_version_nothing_else_is_read() -> None:
    here = agreement.Agreement(settings="")
    for tree in ({"version": "0.0.9"}, {"version": "0.0.9", "settings": 3, "metrics": {"a": 1}, "of": "it"}):
        there = agreement.Agreement.model_validate(tree)
        words = f"fedkin is {__version__} here and 0.0.9 there: install the same version"
        assert agreement.difference(here, there) == words


@pytest.mark.parametrize("metrics", [5, "abc", {"ab1": 1}, ["abc"], [[1, True, "c"]], [["a", 1, "c"]], [["a", True]]])
def test_metrics_that_are_not_readable_are_refused(metrics: Any) -> None:
    with pytest.raises(MethodError, match=r"^terms is not readable \(agreement.metrics"):
        read(agreement.Terms, codec.encode({"agreement": {"settings": "", "metrics": metrics}}))


def without_metric(text: str, task: Task) -> Any:
    with pytest.MonkeyPatch.context() as once:
        once.delitem(MEASURES, "balanced-accuracy")
        return setup_of(text, task)


NARROW = [replace(samples, x=stored(samples)[..., :7]) for samples in (CLIENT.train, CLIENT.test)]
# What is other at the client: its options, or what it tells of itself; what it says, and what the server says.
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "task": (
        {"client": replace(CLIENT, train=NARROW[0], test=NARROW[1]), "task": Task(10, (1, 8, 7))}, {},
        "the server refuses this client: inputs have shape (1, 8, 8) here and (1, 8, 7) there",
        "shape (1, 8, 8) here and (1, 8, 7) there",
    ),
    "settings": (
        {"settings": settings_of(experiment(clients=2, training={"lr": 0.2}))}, {},
        "training.lr is 0.2 here and 0.1 there", "training.lr is 0.1 here and 0.2 there",
    ),
    "version": (
        {}, {"version": "0.0.9"},
        f"fedkin is 0.0.9 here and {__version__} there", f"fedkin is {__version__} here and 0.0.9 there",
    ),
    "seed": (
        {"setup_of": lambda text, task: setup_of(text.replace("seed = 0", "seed = 1"), task)}, {},
        "the first values of the net differ", "the first values of the net differ",
    ),
    "no such metric": (
        {"setup_of": without_metric}, {},
        "the experiment cannot be run here: run.metrics: no 'balanced-accuracy'",
        "c00 is refused: the experiment cannot be run there: run.metrics: no 'balanced-accuracy'",
    ),
    "code": (
        {}, {"metrics": (("balanced-accuracy", True, "0123456789abcdef"),)},
        "metric 'balanced-accuracy' is other code here than there: use the same file",
        "c00 is refused: metric 'balanced-accuracy' is other code here than there",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "told", "client_says", "server_says"), REFUSALS.values(), ids=REFUSALS)
def test_what_differs_is_refused_on_both_sides(
    options: dict[str, Any], told: dict[str, Any], client_says: str, server_says: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    agree = agreement.setup_and_agreement

    def otherwise(*given: Any) -> Any:
        setup, own = agree(*given)
        return setup, own.model_copy(update=told)

    def over() -> bool:
        if "c00" not in there.threads and "c01 is here" in there.said.get("server", ()):
            monkeypatch.setattr("fedkin.network.client.setup_and_agreement", otherwise)
            there.start("c00", **options)
        return "c00" in there.threads and not there.threads["c00"].is_alive()

    with Clients(experiment(clients=2, rounds=1, run={"metrics": ["balanced-accuracy"]}), tmp_path) as there:
        there.start("c01")
        with pytest.raises(Exception, match="stopped while clients were awaited"):
            there.serve(until=over)
        there.join("c00")
    assert client_says in there.errors["c00"]
    assert "\n" not in there.errors["c00"]
    (line,) = [line for line in there.said["server"] if "is refused" in line]
    assert server_says in line
    other = read_status(tmp_path / "there" / FILE).others["c00"]
    assert (other.refused, f"c00 is refused: {other.why}") == (1, line)


def test_columns_of_other_names_are_refused() -> None:
    one, other, unnamed = (
        agreement.Agreement(settings="", task=Task(2, (2,)), columns=names)
        for names in (("age", "dose"), ("age", "sex"), ())
    )
    assert agreement.difference(one, other) == "the column 'dose' is here and not there"
    assert agreement.difference(other, one) == "the column 'dose' is there and not here"
    assert agreement.difference(one, unnamed) == ""
    assert agreement.Agreement.model_validate(tree_of(one)) == one
