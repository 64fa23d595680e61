"""Calls over Flower's grid: which node is called, and why there is no answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from fedkin.cli.flower_app import answered  # noqa: E402
from fedkin.errors import DataError  # noqa: E402
from fedkin.network.calls import Mailbox, NotReached  # noqa: E402
from fedkin.network.flower.client_app import SOCKET, Listening, letter_of, message_of, relayed  # noqa: E402
from fedkin.network.flower.server_calls import GridCalls, NumberedCalls  # noqa: E402
from fedkin.network.link import LinkError  # noqa: E402

pytestmark = pytest.mark.slow  # Flower is in an environment of its own

UNABLE = "this client cannot take part: its SuperNode's log says why"


@pytest.fixture(autouse=True)
def _as_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make messages as in an app's process, which knows its run and node."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@dataclass
class Node:
    name: str
    node_id: int
    status: str = "online"


@dataclass
class Context:
    node_config: dict[str, Any]
    run_config: dict[str, Any] = field(default_factory=dict)


def alone(letter: bytes, context: Any) -> bytes:
    """What the app of `fedkin flower new` does on a node without a socket."""
    return answered(Path("experiment.toml"), letter, context)


class Grid:
    """As Flower's: its replies are those of the program at a node, or nothing."""

    def __init__(self, nodes: list[Node], configuration: dict[int, dict[str, Any]]) -> None:
        self.nodes, self.configuration = nodes, configuration
        self.replies: dict[str, Any] = {}
        self.alone = alone
        self.gone = False

    def get_nodes(self) -> list[Node]:
        if self.gone:
            raise OSError("connection refused")
        return self.nodes

    def push_messages(self, messages: list[Any]) -> list[str]:
        names = []
        for message in messages:
            name = str(len(self.replies))
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            if node in self.configuration:
                self.replies[name] = relayed(message, Context(self.configuration[node]), self.alone)
            names.append(name)
        return names

    def pull_messages(self, names: set[str]) -> list[Any]:
        return [self.replies[name] for name in names if name in self.replies]


def test_a_node_is_called_by_its_registered_name(tmp_path: Path) -> None:
    said: list[str] = []
    nodes = [Node("ann", 1), Node("bob", 2), Node("bob", 3), Node("", 4), Node("eve", 5, "offline")]
    grid = Grid(nodes, {1: {SOCKET: str(tmp_path / "s")}})
    calls = GridCalls(grid, said.append)
    try:
        assert calls.names() == {"ann"}
        assert said == [
            "2 nodes are registered as 'bob': none of them is called",
            "node 4 was registered without a name, which is its client's id: it is not called",
        ]
        with Listening(tmp_path / "s", bytes.upper):
            assert calls.call("ann", b"letter", 30) == b"LETTER"
        with pytest.raises(NotReached, match="fedkin flower node is not reached"):
            calls.call("ann", b"letter", 30)
        with pytest.raises(NotReached, match="SuperNode is not connected"):
            calls.call("eve", b"letter", 30)
        grid.gone = True
        with pytest.raises(LinkError, match=r"SuperLink does not answer \(connection refused\)"):
            calls.names()
    finally:
        calls.close()


def test_a_node_without_a_socket_or_an_answer_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid([Node("ann", 1), Node("bob", 2)], {1: {}})
    calls = GridCalls(grid)
    try:
        calls.names()
        with pytest.raises(NotReached, match=UNABLE):
            calls.call("ann", b"letter", 30)
        assert "has no fedkin-socket of fedkin flower node, and no fedkin-data" in capsys.readouterr().out
        with pytest.raises(NotReached, match=r"no reply within 0.01 s"):
            calls.call("bob", b"letter", 0.01)
    finally:
        calls.close()


def test_no_value_of_a_sample_is_in_a_reply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors may quote a cell, and before consent nothing may leave; Flower itself would send any exception's text."""
    table = {
        "name": "tables", "data": {"source": "csv", "path": str(tmp_path), "target": "y", "split": "split"},
        "scenario": {"name": "natural"}, "model": {"name": "mlp"}, "method": {"name": "fedavg"},
        "training": {"rounds": 1}, "network": {"clients": ["ann"]},
    }  # fmt: skip
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(table))
    (tmp_path / "ann.csv").write_text("a,y,split\n1,0,train\n2,1,train\n3,0,HIV+ Mary Smith\n")
    context = Context({"fedkin-data": str(tmp_path / "ann.csv"), "fedkin-state": str(tmp_path / "state")})

    def work(letter: bytes, context: Any) -> bytes:
        return answered(tmp_path / "experiment.toml", letter, context)

    def surprised(letter: bytes, context: Any) -> bytes:
        raise KeyError("HIV+ Mary Smith")

    for each in (work, surprised):
        reply = relayed(message_of(Mailbox("server", "ann").letter(), 1, 30), context, each)
        assert reply.content["why"]["why"] == UNABLE
        said = capsys.readouterr()
        assert "HIV+ Mary Smith" in said.out + said.err


def test_the_nodes_of_a_simulation_say_who_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """They have numbers, and no registered names."""
    said: list[str] = []
    numbers = {node: {"partition-id": place} for place, node in enumerate((41, 7, 300))}
    grid = Grid([Node("", node) for node in numbers], numbers)

    def named(letter: bytes, context: Any) -> bytes:
        number = context.node_config["partition-id"]
        if number == 2:
            raise DataError("partition 2: expected a whole number from 0 to 1")
        return letter.upper() or f"c0{number}".encode()

    grid.alone = named
    calls = NumberedCalls(grid, said.append)
    try:
        assert calls.names() == {"c00", "c01"}
        assert calls.names() == {"c00", "c01"}
        assert calls.call("c01", b"letter", 30) == b"LETTER"
        assert calls.nodes == {"c00": 41, "c01": 7}
        assert said == [f"a node of the simulation takes no part: {UNABLE}"]
        assert "fedkin: partition 2: expected a whole number from 0 to 1" in capsys.readouterr().out
    finally:
        calls.close()


@pytest.mark.parametrize("kind", [GridCalls, NumberedCalls])
def test_each_answer_of_the_superlink_is_noted(kind: type[GridCalls], tmp_path: Path) -> None:
    """A server's app ends when the last one is too long ago."""
    grid = Grid([Node("ann", 1)], {1: {}})
    grid.alone = lambda letter, context: letter.upper() or b"ann"
    calls = kind(grid)
    try:
        for _ in range(2):
            calls.answered = before = -1.0
            assert calls.names() == {"ann"}
            assert calls.answered > before
        calls.answered = before
        assert calls.call("ann", b"letter", 30) == b"LETTER"
        assert calls.answered > before
    finally:
        calls.close()


def test_a_message_of_another_app_is_refused() -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    assert letter_of(message_of(b"\0letter", 1, 30)) == b"\0letter"
    other = Message(RecordDict({"fedkin": ConfigRecord({"letter": 1})}), dst_node_id=1, message_type="query")
    with pytest.raises(ValueError, match="not a message of fedkin"):
        letter_of(other)
