"""What messages weigh. Messages of a round are mostly alike, so that one of each layout is measured."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.base import Traffic
from fedkin.engines.transport import Envelope
from fedkin.flow import Message

__all__ = ["Scales"]

_LAYOUTS = 4096  # message layouts whose sizes are remembered


class Scales:
    """Weighs messages and remembers what each layout weighs."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[int, int]] = {}

    def weigh(self, sent: Iterable[Envelope]) -> Iterator[Traffic]:
        """A line for each message that is not empty. The messages must stay alive meanwhile."""
        # One message to all, or one set of parameters inside each of them, is looked at once.
        seen: dict[int, Hashable] = {}
        for round, phase, _, sender, receiver, message, _ in sent:
            if len(message):
                yield Traffic(round, sender, receiver, phase, *self._size(message, seen))

    def _size(self, message: Message, seen: dict[int, Hashable]) -> tuple[int, int]:
        """(bytes, floats)."""
        try:
            like = _layout(message, seen)
            known = self.known.get(like)
        except TypeError:  # lists have no hash
            return codec.size(message)
        if known is None:
            if len(self.known) >= _LAYOUTS:  # every other float in a message is another layout
                self.known.clear()
            known = self.known[like] = codec.size(message)
        return known


def _layout(value: Any, seen: dict[int, Hashable]) -> Hashable:
    """What a message's size depends on; raises TypeError for lists."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    kind = type(value)
    if kind is int:
        return int, len(str(value))
    # A dict is the common case, and quicker to tell than a Mapping.
    if kind is dict or isinstance(value, Mapping):
        known = seen.get(id(value))
        if known is None:
            known = seen[id(value)] = tuple([(name, _layout(item, seen)) for name, item in value.items()])
        return known
    hash(value)
    return kind, value
