"""Calls over the grid of a Flower server app: each call is one Flower message, and its reply."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from threading import Event, Lock, Thread
from typing import Any

from fedkin.network.flower.client_app import answer_of, message_of
from fedkin.network.link import LinkError
from fedkin.untrusted import error_text, escaped

_LOOK = 0.3  # seconds between two looks for replies


class GridCalls:
    """Calls to the nodes of a Flower deployment, by the names with which they were registered there.

    grid: the Grid of `flwr.serverapp`. Nodes without a name, or with the same name, are not called. answered: when the
    SuperLink answered last, or was first asked, by `time.monotonic`; infinite before that.
    """

    def __init__(self, grid: Any, say: Callable[[str], None] = lambda line: None) -> None:
        self.grid, self.say = grid, say
        self.nodes: dict[str, int] = {}
        self.answered = math.inf
        self.logged: set[str] = set()
        self.open: dict[str, Future[Any]] = {}
        self.changing, self.using, self.over = Lock(), Lock(), Event()
        self.thread = Thread(target=self._collect, name="flower replies", daemon=True)
        self.thread.start()

    def names(self) -> set[str]:
        """The names of the nodes that Flower says are online."""
        online = [(str(node.name), int(node.node_id)) for node in self._nodes() if node.status == "online"]
        count = Counter(name for name, _ in online)
        for name, node in online:
            if not name:
                self._once(f"node {node} was registered without a name, which is its client's id: it is not called")
            elif count[name] > 1:
                self._once(f"{count[name]} nodes are registered as {escaped(name, 64)!r}: none of them is called")
        self.nodes = {name: node for name, node in online if name and count[name] == 1}
        return set(self.nodes)

    def _nodes(self) -> list[Any]:
        """Return Flower's nodes; raises LinkError."""
        self.answered = min(self.answered, time.monotonic())
        try:
            with self.using:
                nodes = list(self.grid.get_nodes())
        except Exception as error:
            raise LinkError(f"Flower's SuperLink does not answer ({error_text(error)})") from None
        self.answered = time.monotonic()
        return nodes

    def call(self, name: str, data: bytes, within: float) -> bytes:
        """Return the answer of this node's client; raises LinkError if none comes within `within` seconds."""
        node = self.nodes.get(name)
        if node is None:
            raise LinkError("its SuperNode is not connected")
        reply: Future[Any] = Future()
        try:
            message = message_of(data, node, within)
            with self.using:
                (sent,) = self.grid.push_messages([message])
        except Exception as error:
            raise LinkError(f"Flower did not take a message ({error_text(error)})") from None
        if sent is None:
            raise LinkError("Flower did not take a message")
        with self.changing:
            self.open[sent] = reply
        try:
            return answer_of(reply.result(within))
        except TookTooLong:
            raise LinkError(f"no reply within {within:g} s") from None
        except ValueError as error:
            raise LinkError(error_text(error)) from None
        finally:
            with self.changing:
                self.open.pop(sent, None)

    def close(self) -> None:
        """Stop; waiting calls raise LinkError."""
        self.over.set()
        self.thread.join(10)
        with self.changing:
            for reply in self.open.values():
                if not reply.done():
                    reply.set_exception(ValueError("the server has ended"))

    def _collect(self) -> None:
        """Pass replies to waiting calls by the message that they answer, since an error does not name its node."""
        while not self.over.wait(_LOOK):
            with self.changing:
                waiting = set(self.open)
            if not waiting:
                continue
            try:
                with self.using:
                    replies = list(self.grid.pull_messages(waiting))
            except Exception as error:
                self._once(f"Flower's SuperLink does not answer ({error_text(error)})")
                continue
            self.answered = time.monotonic()
            for reply in replies:
                with self.changing:
                    awaited = self.open.pop(reply.metadata.reply_to_message_id, None)
                if awaited is not None:
                    awaited.set_result(reply)

    def _once(self, line: str) -> None:
        if line not in self.logged:
            self.logged.add(line)
            self.say(line)
