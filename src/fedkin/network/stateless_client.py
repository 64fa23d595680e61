"""A client that does not stay: each call of the server is a visit, and between two a file holds all that it needs.

For networks that start a program for each call. What is asked again after a kill is answered from the disk, as by a
client that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedkin import codec
from fedkin.errors import FedkinError, RunError
from fedkin.folders import write_private
from fedkin.network.calls import Boxed, Mailbox
from fedkin.network.link import LARGEST, Left
from fedkin.untrusted import said

__all__ = ["VisitingLink", "visited"]

_FILE = "visit.safetensors"


class VisitingLink(Boxed):
    """A client's end for one visit: who waits for what the server has not offered has nothing more to do, and leaves.

    box: what both have offered so far. Raises Left where another link would wait.
    """

    def __init__(self, box: Mailbox) -> None:
        super().__init__(box.me)
        self.server = box.name
        self.boxes[box.name] = box
        self.missed: set[str] = set()
        self.left = False

    def offer(self, to: str, subject: str, data: bytes) -> None:
        super().offer(to, subject, data)
        self.missed.clear()

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        # What a waiting client has offered stands until the next visit.
        if not self.left:
            super().withdraw(prefix, to)

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        if subject not in self.box(owner).theirs:
            if subject in self.missed:
                self.left = True
                raise Left
            self.missed.add(subject)
        return super().pull(owner, subject, 0, most)

    def present(self) -> frozenset[str]:
        return frozenset({self.server})

    def close(self) -> None:
        self.closed = True


def visited(
    folder: Path, name: str, letter: bytes, work: Callable[[VisitingLink, dict[str, Any]], None], server: str = "server"
) -> bytes:
    """Return the answer to the server's letter. folder: of this client alone, which the caller holds.

    work: is given the link, and what it remembered at the end of the last visit; it works until it has ended or raises
    Left. A letter without news is answered without it. Raises MethodError for what is no letter, RunError for a file
    that is damaged, and what `work` raises.
    """
    path = folder / _FILE
    box, memory = _read(path, name, server)
    before = box.other, box.known
    link = VisitingLink(box)
    with link.state:
        link.read(server, letter)
    if (box.other, box.known) != before:
        with suppress(Left):
            work(link, memory)
    tree = {"box": box.tree(), "memory": memory}
    try:
        write_private(path, lambda file: codec.write(tree, file))
    except OSError as error:
        raise RunError(f"{path}: the client's state cannot be written ({error})") from None
    return box.letter(waits=True)


def _read(path: Path, name: str, server: str) -> tuple[Mailbox, dict[str, Any]]:
    if not path.exists():
        return Mailbox(name, server), {}
    try:
        tree = codec.read(path)
        box, memory = Mailbox.of(tree["box"]), dict(tree["memory"])
        box.letter()  # its fields are those of a letter
    except (OSError, FedkinError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: not readable ({said(error)}); remove it, and the client joins again") from None
    return box, memory
