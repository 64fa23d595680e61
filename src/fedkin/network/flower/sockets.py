"""A call by a unix socket: from the app that Flower starts for each message to the process that stays on the node.

Flower imports this for every message, so that it imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Thread

__all__ = ["Listening", "ask"]

_HEAD = struct.Struct("<BQ")
_ANSWER, _WHY = 0, 1
_MOST = 1 << 31  # bytes of one call
_PIECE = 1 << 20
_LONGEST = 3700.0  # seconds of one call, of which a letter may ask for an hour


def ask(path: str, letter: bytes) -> bytes:
    """Return the answer of the process at this socket; raises ConnectionError that says why there is none."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_LONGEST)
        try:
            link.connect(path)
            _send(link, _ANSWER, letter)
            kind, answer = _received(link)
        except OSError as error:
            raise ConnectionError(f"fedkin flower node is not reached at {path} ({error.strerror or error})") from None
    if kind != _ANSWER:
        raise ConnectionError(answer.decode(errors="replace"))
    return answer


class Listening:
    """Answers the calls at a unix socket, each in a thread, while it is in `with`.

    answer: is given a letter and returns another. Who may call is what the permissions of the socket and its folder
    say: the socket is open to its owner and group. Raises OSError if it cannot be made there.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self.answer = path, answer
        self.threads: list[Thread] = []
        self.closed = False
        if path.is_socket():
            _remove_dead(path)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(str(path))
            os.chmod(path, 0o660)
            self.socket.listen(4)
        except OSError:
            self.socket.close()
            raise
        self.thread = Thread(target=self._accept, name="socket", daemon=True)
        self.thread.start()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        """End, after calls that are being answered."""
        self.closed = True
        # So that `accept` returns.
        with socket.socket(socket.AF_UNIX) as last, contextlib.suppress(OSError):
            last.connect(str(self.path))
        self.thread.join(10)
        self.socket.close()
        self.path.unlink(missing_ok=True)
        for thread in self.threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            link, _ = self.socket.accept()
            if self.closed:
                link.close()
                return
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            self.threads.append(Thread(target=self._one, args=(link,), name="call", daemon=True))
            self.threads[-1].start()

    def _one(self, link: socket.socket) -> None:
        with link:
            try:
                _, letter = _received(link)
                try:
                    _send(link, _ANSWER, self.answer(letter))
                except Exception as error:
                    _send(link, _WHY, str(error).encode())
            except OSError:  # whoever called has gone
                return


def _remove_dead(path: Path) -> None:
    """Remove the socket of a process that has ended; raises OSError if one still answers."""
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(f"another process answers at {path}")


def _send(link: socket.socket, kind: int, data: bytes) -> None:
    link.sendall(_HEAD.pack(kind, len(data)))
    link.sendall(data)


def _received(link: socket.socket) -> tuple[int, bytes]:
    kind, size = _HEAD.unpack(_exactly(link, _HEAD.size))
    if size > _MOST:
        raise ConnectionError(f"{size:,} bytes in one call")
    return kind, _exactly(link, size)


def _exactly(link: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        if not (part := link.recv(min(left, _PIECE))):
            raise ConnectionError("it ended before it had answered")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
