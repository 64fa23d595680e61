"""The sizes of messages; most messages of a round have the same layout, so one message per layout is measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
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

    def weigh(self, sent: Sequence[Envelope]) -> list[Traffic | None]:
        """Return the Traffic of each message; None for an empty one."""
        # A message to all clients, or a set of parameters in several messages, is inspected once.
        distinct = {id(envelope.message): envelope.message for envelope in sent}
        sizes = dict(zip(distinct, self._sizes(list(distinct.values())), strict=True))
        return [
            None if (size := sizes[id(message)]) is None else Traffic(round, sender, receiver, phase, *size)
            for round, phase, _, sender, receiver, message, *_ in sent
        ]

    def _sizes(self, messages: Sequence[Message]) -> list[tuple[int, int] | None]:
        """Return (bytes, floats) of each of these distinct messages; None for an empty one."""
        kinds = _kinds(messages) if len(messages) > 1 else None
        if kinds is None:
            seen: dict[int, Hashable] = {}
            return [self._size(message, seen) for message in messages]
        found: dict[Hashable, tuple[int, int] | None] = {}
        for kind, message in zip(kinds, messages, strict=True):
            if kind not in found:
                found[kind] = self._size(message, {})
        return [found[kind] for kind in kinds]

    def _size(self, message: Message, seen: dict[int, Hashable]) -> tuple[int, int] | None:
        if not len(message):
            return None
        try:
            like = _layout(message, seen)
            known = self.known.get(like)
        except TypeError:  # lists and tuples
            return codec.size(message)
        if known is None:
            if len(self.known) >= _LAYOUTS:  # each different float in a message makes another layout
                self.known.clear()
            known = self.known[like] = codec.size(message)
        return known


def _kinds(messages: Sequence[Message]) -> list[Hashable] | None:
    """Return keys that are equal only for messages of equal size, by one look at each field of all of them.

    None: their fields differ, or have no hash, and they need a look at each. This runs for all messages of a round, and
    is written for speed.
    """
    fields = [dict(message.items()) for message in messages]
    names = list(fields[0])
    if [*map(list, fields)] != [names] * len(fields):
        return None
    try:
        columns = [_column(list(column)) for column in zip(*[each.values() for each in fields], strict=True)]
    except TypeError:  # lists and tuples
        return None
    unlike = [column for column in columns if column is not None]
    return list(zip(*unlike, strict=True)) if unlike else list(repeat((), len(messages)))


def _column(values: list[Any]) -> list[Hashable] | None:
    """Return the key of each value of a field; None: all have the same."""
    kinds = set(map(type, values))
    if kinds == {int}:
        lengths: list[Hashable] = [len(str(value)) for value in values]
        return None if len(set(lengths)) == 1 else lengths
    if kinds == {dict}:
        if len(set(map(id, values))) == 1:
            return None
        names = list(values[0])
        tensors = [item for value in values for item in value.values()]
        if [*map(list, values)] == [names] * len(values) and _alike(tensors, len(names)):
            return None
    elif _alike(values, 1):
        return None
    seen: dict[int, Hashable] = {}
    return [(item.dtype, item.shape) if isinstance(item, Tensor) else _other(item, seen) for item in values]


def _alike(tensors: list[Any], count: int) -> bool:
    """Whether these are tensors of which each has the type and shape of the one `count` places before it."""
    if set(map(type, tensors)) != {Tensor}:
        return False
    times = len(tensors) // count
    return (
        [tensor.shape for tensor in tensors] == [tensor.shape for tensor in tensors[:count]] * times
        and [tensor.dtype for tensor in tensors] == [tensor.dtype for tensor in tensors[:count]] * times
    )  # fmt: skip


def _layout(fields: Mapping[str, Any], seen: dict[int, Hashable]) -> Hashable:
    """Return a key of everything that determines the size of a message; raises TypeError for lists and tuples."""
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
    if isinstance(value, float):
        return kind, repr(value)  # 0.0 equals -0.0, which is longer
    if isinstance(value, tuple):
        raise TypeError("equal tuples may have items of other kinds")
    hash(value)
    return kind, value
