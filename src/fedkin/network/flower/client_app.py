"""The app that Flower starts on a node for each message: it passes the letter to the process that holds the samples.

That process, `fedkin flower node`, answers at a unix socket. A letter is sent as one array, which Flower splits into
chunks. Flower imports this module for every message, so the module must not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

# The key in a SuperNode's configuration for the socket of `fedkin flower node`.
SOCKET = "fedkin-socket"
_BODY, _WHY = "fedkin", "why"
_ANSWERED, _REFUSED = b"A", b"R"
_MOST = 1 << 31  # bytes of one call
_LONGEST = 3700.0  # seconds of one call; a letter may ask for up to an hour


def client_app() -> Any:
    """Return the ClientApp of a fedkin experiment; raises ImportError without Flower."""
    from flwr.clientapp import ClientApp

    app = ClientApp()

    app.query()(relayed)
    return app


def relayed(message: Any, context: Any) -> Any:
    """Return the reply to a Flower message: what `fedkin flower node` answers, or why there is no answer."""
    from flwr.app import ConfigRecord, Message, RecordDict

    path = context.node_config.get(SOCKET)
    try:
        if not path:
            raise ValueError(f"its SuperNode's --node-config has no {SOCKET}, where fedkin flower node answers")
        content = _record(ask(str(path), letter_of(message)))
    except (ConnectionError, ValueError) as error:
        content = RecordDict({_WHY: ConfigRecord({"why": str(error)})})
    return Message(content, reply_to=message)


# -- Flower's messages --------------------------------------------------------------------------------------------


def message_of(letter: bytes, node: int, seconds: float) -> Any:
    """Return a Flower message with this letter, to a node; it is dropped if it is not answered in time."""
    from flwr.app import Message

    return Message(_record(letter), dst_node_id=node, message_type="query", ttl=seconds)


def letter_of(message: Any) -> bytes:
    """Return the letter in a Flower message; raises ValueError for any other message."""
    try:
        array = message.content[_BODY]["letter"].numpy()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("not a message of fedkin") from None
    if array.dtype != np.uint8:
        raise ValueError("not a message of fedkin")
    return bytes(array.tobytes())


def answer_of(message: Any) -> bytes:
    """Return the letter in a reply; raises ValueError with the reason if there is none."""
    if message.has_error():
        raise ValueError(f"Flower's error {message.error.code}: {message.error.reason}")
    if _WHY in message.content:
        raise ValueError(str(message.content[_WHY]["why"]))
    return letter_of(message)


def _record(letter: bytes) -> Any:
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({_BODY: ArrayRecord({"letter": Array(np.frombuffer(letter, np.uint8).copy())})})


# -- the socket of the long-running process -------------------------------------------------------------------------


def ask(path: str, letter: bytes) -> bytes:
    """Return the answer of the process at this socket; raises ConnectionError with the reason if there is none."""
    try:
        with Client(path, family="AF_UNIX") as link:
            link.send_bytes(letter)
            if not link.poll(_LONGEST):
                raise OSError("no answer")
            answer = link.recv_bytes(_MOST)
    except EOFError:
        raise ConnectionError(f"fedkin flower node at {path} ended before it had answered") from None
    except OSError as error:
        raise ConnectionError(f"fedkin flower node is not reached at {path} ({error.strerror or error})") from None
    if answer[:1] != _ANSWERED:
        raise ConnectionError(answer[1:].decode(errors="replace"))
    return answer[1:]


class Listening:
    """Answers the calls at a unix socket, each in a thread, inside a `with` block.

    answer: takes a letter and returns the answering letter. The socket is open to its owner and group. Raises OSError
    if the socket cannot be created.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self.answer = path, answer
        self.threads: list[Thread] = []
        self.closed = False
        if path.is_socket():
            _remove_dead(path)
        self.listener = Listener(str(path), family="AF_UNIX", backlog=4)
        os.chmod(path, 0o660)
        self.thread = Thread(target=self._accept, name="socket", daemon=True)
        self.thread.start()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the running calls are answered."""
        self.closed = True
        with suppress(OSError):  # so that `accept` returns
            Client(str(self.path), family="AF_UNIX").close()
        self.thread.join(10)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self.closed:
            link = self.listener.accept()
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            self.threads.append(Thread(target=self._one, args=(link,), name="call", daemon=True))
            self.threads[-1].start()

    def _one(self, link: Connection) -> None:
        with suppress(OSError, EOFError), link:  # the caller may be gone
            letter = link.recv_bytes(_MOST)
            try:
                answer = _ANSWERED + self.answer(letter)
            except Exception as error:
                answer = _REFUSED + str(error).encode()
            link.send_bytes(answer)


def _remove_dead(path: Path) -> None:
    """Remove the socket of a process that has ended; raises OSError if a process still answers."""
    try:
        Client(str(path), family="AF_UNIX").close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    raise OSError(f"another process answers at {path}")
