"""Calls over Flower's grid: which node is called, and why there is no answer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from fedkin.network.flower.client_app import SOCKET, Listening, letter_of, message_of, relayed  # noqa: E402
from fedkin.network.flower.server_calls import GridCalls  # noqa: E402
from fedkin.network.link import LinkError  # noqa: E402

pytestmark = pytest.mark.slow  # Flower is in an environment of its own


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


class Grid:
    """As Flower's: its replies are those of the program at a node, or nothing."""

    def __init__(self, nodes: list[Node], configuration: dict[int, dict[str, Any]]) -> None:
        self.nodes, self.configuration = nodes, configuration
        self.replies: dict[str, Any] = {}
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
                self.replies[name] = relayed(message, Context(self.configuration[node]))
            names.append(name)
        return names

    def pull_messages(self, names: set[str]) -> list[Any]:
        return [self.replies[name] for name in names if name in self.replies]


def test_a_node_is_called_by_its_registered_name(tmp_path: Path) -> None:
    said: list[str] = []
    nodes = [Node("ann", 1), Node("bob", 2), Node("bob", 3), Node("", 4), Node("eve", 5, "offline")]
    grid = Grid(nodes, {1: {SOCKET: str(tmp_path / "s")}})
    with closing(GridCalls(grid, said.append)) as calls:
        assert calls.names() == {"ann"}
        assert said == [
            "2 nodes are registered as 'bob': none of them is called",
            "node 4 was registered without a name, which is its client's id: it is not called",
        ]
        with Listening(tmp_path / "s", bytes.upper):
            assert calls.call("ann", b"letter", 30) == b"LETTER"
        with pytest.raises(LinkError, match="fedkin flower node is not reached"):
            calls.call("ann", b"letter", 30)
        with pytest.raises(LinkError, match="SuperNode is not connected"):
            calls.call("eve", b"letter", 30)
        grid.gone = True
        with pytest.raises(LinkError, match=r"SuperLink does not answer \(connection refused\)"):
            calls.names()


def test_a_node_without_a_socket_or_an_answer_says_why() -> None:
    grid = Grid([Node("ann", 1), Node("bob", 2)], {1: {}})
    with closing(GridCalls(grid)) as calls:
        calls.names()
        with pytest.raises(LinkError, match="--node-config has no fedkin-socket"):
            calls.call("ann", b"letter", 30)
        with pytest.raises(LinkError, match=r"no reply within 0.01 s"):
            calls.call("bob", b"letter", 0.01)


def test_each_answer_of_the_superlink_is_noted(tmp_path: Path) -> None:
    """A server's app ends when the last one is too long ago."""
    grid = Grid([Node("ann", 1)], {1: {SOCKET: str(tmp_path / "s")}})
    with closing(GridCalls(grid)) as calls:
        for _ in range(2):
            calls.answered = before = -1.0
            assert calls.names() == {"ann"}
            assert calls.answered > before
        calls.answered = before
        with Listening(tmp_path / "s", bytes.upper):
            assert calls.call("ann", b"letter", 30) == b"LETTER"
        assert calls.answered > before


def test_a_message_of_another_app_is_refused() -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    assert letter_of(message_of(b"\0letter", 1, 30)) == b"\0letter"
    other = Message(RecordDict({"fedkin": ConfigRecord({"letter": 1})}), dst_node_id=1, message_type="query")
    with pytest.raises(ValueError, match="not a message of fedkin"):
        letter_of(other)
