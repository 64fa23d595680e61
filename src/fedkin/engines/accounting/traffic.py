"""The sizes of messages; most messages of a round have the same layout, so one message per layout is measured."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.base import Traffic
from fedkin.engines.transport import Envelope
from fedkin.flow import Message

__all__ = ["Scales"]

_LAYOUTS = 4096  # largest number of layouts with cached sizes


class Scales:
    """The sizes of messages, cached by layout."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[int, int]] = {}

    def weigh(self, sent: Iterable[Envelope]) -> Iterator[Traffic | None]:
        """Yield the Traffic of each message; None for an empty one. The messages must stay alive meanwhile."""
        # A message to all clients, or a set of parameters in several messages, is inspected once.
        seen: dict[int, Hashable] = {}
        for round, phase, _, sender, receiver, message, *_ in sent:
            yield Traffic(round, sender, receiver, phase, *self._size(message, seen)) if len(message) else None

    def _size(self, message: Message, seen: dict[int, Hashable]) -> tuple[int, int]:
        """Return (bytes, floats)."""
        try:
            like = _layout(message, seen)
            known = self.known.get(like)
        except TypeError:  # lists have no hash
            return codec.size(message)
        if known is None:
            if len(self.known) >= _LAYOUTS:  # each different float in a message makes another layout
                self.known.clear()
            known = self.known[like] = codec.size(message)
        return known


def _layout(fields: Mapping[str, Any], seen: dict[int, Hashable]) -> Hashable:
    """Return a key of everything that determines the size of a message; raises TypeError for lists.

    This runs for every message, and is written for speed.
    """
    return tuple(
        [
            (name, item.dtype, item.shape) if isinstance(item, Tensor) else (name, _other(item, seen))
            for name, item in fields.items()
        ]
    )


def _other(value: Any, seen: dict[int, Hashable]) -> Hashable:
    """Return the key of a value that is no tensor."""
    kind = type(value)
    if kind is int:
        return int, len(str(value))
    # A dict is the common case, and is faster to recognise than a Mapping.
    if kind is dict or isinstance(value, Mapping):
        known = seen.get(id(value))
        if known is None:
            known = seen[id(value)] = _layout(value, seen)
        return known
    if kind is float:
        return float, repr(value)  # 0.0 equals -0.0, which is longer
    hash(value)
    return kind, value
