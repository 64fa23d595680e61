"""Letters inside Flower messages: the bytes as one array, which Flower sends in chunks, or why there is no answer.

Flower imports this for every message, so that it imports no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["answer_of", "letter_of", "message_of", "refusal_of", "reply_of"]

_BODY, _WHY = "fedkin", "why"


def message_of(letter: bytes, node: int, seconds: float) -> Any:
    """Return a Flower message with this letter, to a node, which is dropped if it is not answered in time."""
    from flwr.app import Message

    return Message(_record(letter), dst_node_id=node, message_type="query", ttl=seconds)


def letter_of(message: Any) -> bytes:
    """Return the letter in a Flower message; raises ValueError for a message of something else."""
    try:
        array = message.content[_BODY]["letter"].numpy()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("not a message of fedkin") from None
    if array.dtype != np.uint8:
        raise ValueError("not a message of fedkin")
    return bytes(array.tobytes())


def reply_of(message: Any, letter: bytes) -> Any:
    """Return the Flower message that answers another one with this letter."""
    from flwr.app import Message

    return Message(_record(letter), reply_to=message)


def refusal_of(message: Any, why: str) -> Any:
    """Return the Flower message that says why there is no letter."""
    from flwr.app import ConfigRecord, Message, RecordDict

    return Message(RecordDict({_WHY: ConfigRecord({"why": why})}), reply_to=message)


def answer_of(message: Any) -> bytes:
    """Return the letter in a reply; raises ValueError that says why there is none."""
    if message.has_error():
        raise ValueError(f"Flower's error {message.error.code}: {message.error.reason}")
    if _WHY in message.content:
        raise ValueError(str(message.content[_WHY]["why"]))
    return letter_of(message)


def _record(letter: bytes) -> Any:
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({_BODY: ArrayRecord({"letter": Array(np.frombuffer(letter, np.uint8).copy())})})
