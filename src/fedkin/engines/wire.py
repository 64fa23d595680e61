"""Requests to a site at the other end of a connection, and its answers: trees of tensors and small values as bytes."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from socket import socket
from typing import Any

from fedkin import codec
from fedkin.engines.base import Score
from fedkin.engines.client_side import Outbox
from fedkin.engines.failures import Failure
from fedkin.errors import MethodError, RunError
from fedkin.flow import Message
from fedkin.untrusted import said

__all__ = ["failures_of", "list_of_failures", "messages_of", "outboxes_of", "receive", "scores_of", "send",
           "tree_of_messages", "tree_of_outboxes", "tree_of_scores"]  # fmt: skip

_LENGTH = struct.Struct("<Q")
# Bytes of one tree: more than any process can hold twice.
_MOST = 1 << 35
_GONE = "the other end of the connection has ended"


def send(line: socket, tree: Mapping[str, Any]) -> None:
    """Send one tree after its length; raises RunError if the other end has closed the connection."""
    data = codec.encode(tree)
    try:
        line.sendall(_LENGTH.pack(len(data)) + data)
    except OSError:
        raise RunError(_GONE) from None


def receive(line: socket) -> dict[str, Any]:
    """Receive the next tree; raises RunError if the other end has closed the connection."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > _MOST:
        raise RunError(f"a message of {length} bytes was announced, more than {_MOST}: the connection is of no use")
    return codec.decode(_exactly(line, length))


def _exactly(line: socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = line.recv(min(count - len(parts), 1 << 20))
        except OSError:
            part = b""
        if not part:
            raise RunError(_GONE)
        parts += part
    return bytes(parts)


def tree_of_messages(messages: Mapping[str, Message]) -> dict[str, Any]:
    """Return {id: fields of the message}."""
    return {id: dict(message) for id, message in messages.items()}


@contextmanager
def _as_sent() -> Iterator[None]:
    """Raise MethodError for a tree of another form."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise MethodError(f"a tree of another form was sent ({said(error)})") from None


@_as_sent()
def messages_of(tree: Mapping[str, Any]) -> dict[str, Message]:
    """Return the messages of a tree from `tree_of_messages`; raises MethodError for any other."""
    return {id: Message(**fields) for id, fields in tree.items()}


def tree_of_outboxes(posts: Mapping[str, Outbox]) -> dict[str, Any]:
    """Return {id: phase and messages}; a message to several receivers is written once."""
    tree: dict[str, Any] = {}
    for id, post in posts.items():
        distinct = list({builtins.id(message): message for message in post.messages.values()}.values())
        number = {builtins.id(message): place for place, message in enumerate(distinct)}
        tree[id] = {
            "phase": post.phase,
            "to": {receiver: number[builtins.id(message)] for receiver, message in post.messages.items()},
            "each": {str(place): dict(message) for place, message in enumerate(distinct)},
        }
    return tree


@_as_sent()
def outboxes_of(tree: Mapping[str, Any]) -> dict[str, Outbox]:
    """Return the outboxes of a tree from `tree_of_outboxes`; raises MethodError for any other."""
    posts = {}
    for id, post in tree.items():
        each = {number: Message(**fields) for number, fields in post["each"].items()}
        posts[id] = Outbox(post["phase"], {receiver: each[str(number)] for receiver, number in post["to"].items()})
    return posts


def tree_of_scores(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return {id: fields of the score}."""
    return {
        id: {
            **score._asdict(), "figures": list(score.figures), "digest": [list(part) for part in score.digest],
            "outcomes": score.outcomes.hex(), "further": list(score.further),
        }
        for id, score in scores.items()
    }  # fmt: skip


@_as_sent()
def scores_of(tree: Mapping[str, Any]) -> dict[str, Score]:
    """Return the scores of a tree from `tree_of_scores`; raises MethodError for any other."""
    return {
        id: Score(
            fields["n"], fields["loss"], fields["right"], tuple(fields["figures"]),
            tuple(tuple(part) for part in fields["digest"]), bytes.fromhex(fields.get("outcomes", "")),
            tuple(fields.get("further", ())),
        )
        for id, fields in tree.items()
    }  # fmt: skip


def list_of_failures(failures: Iterable[Failure]) -> list[Any]:
    """Return the fields of these failures, with the texts of their errors."""
    return [[one.id, one.phase, one.words, str(one.error), one.injected, one.kind] for one in failures]


def failures_of(rows: Iterable[Any]) -> list[Failure]:
    """Return the failures of a list from `list_of_failures`."""
    return [Failure(id, phase, words, MethodError(error), *rest) for id, phase, words, error, *rest in rows]
