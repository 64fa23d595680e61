"""What two participants offer each other, as letters: each holds what is new since the other's last one."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import MethodError
from fedkin.network.link import is_name

__all__ = ["Head", "Mailbox", "addressee"]

_LENGTH = struct.Struct("<I")
_MOST_SUBJECTS = 1000
_MOST_HEAD = 1 << 20  # bytes
_COUNTS = ("life", "version", "told", "known", "other")


class Head(BaseModel):
    """The first part of a letter.

    me, to: names of who writes and who reads. life: of the writer's process. version: of its newest offer. other,
    known: the reader's life and version as the writer has them. since: the version after which everything is in the
    letter. subjects: of all that is offered. new: subject and size of what follows. hold: seconds for which an answer
    may be kept back until there is something in it. beat: seconds after which the caller calls again at the latest.
    waits: the writer waits for an offer, and has no other work.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    me: str
    to: str
    life: str
    version: int = Field(ge=0)
    other: str
    known: int = Field(ge=0)
    since: int = Field(ge=0)
    subjects: list[str] = Field(max_length=_MOST_SUBJECTS)
    new: list[tuple[str, int]] = Field(max_length=_MOST_SUBJECTS)
    hold: float = Field(0.0, ge=0, le=3600)
    beat: float = Field(0.0, ge=0, le=86400)
    waits: bool = False


class Mailbox:
    """One participant's side of what it and one other offer each other. Not safe between threads.

    Letters may be lost: what the other does not say that it has is in the next one again. A process that began anew has
    another life, and is told everything.

    >>> here, there = Mailbox("server", "ann"), Mailbox("ann", "server")
    >>> here.put("r/0/order", b"train")
    True
    >>> _ = there.read(here.letter())
    >>> there.theirs
    {'r/0/order': b'train'}
    """

    def __init__(self, me: str, other: str) -> None:
        self.me, self.name, self.life = me, other, secrets.token_hex(8)
        self.version = self.told = self.known = 0
        self.other = ""
        self.offers: dict[str, tuple[int, bytes]] = {}
        self.theirs: dict[str, bytes] = {}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Mailbox:
        """Return the mailbox of a tree from `tree`; raises KeyError, TypeError or AttributeError for others."""
        box = cls(tree["me"], tree["name"])
        box.life, box.version, box.told, box.known, box.other = (tree[field] for field in _COUNTS)
        box.offers = {subject: (each["version"], _bytes(each["data"])) for subject, each in tree["offers"].items()}
        box.theirs = {subject: _bytes(each) for subject, each in tree["theirs"].items()}
        return box

    def tree(self) -> dict[str, Any]:
        """Return all of it as a tree, to go on with in another process."""
        counts = {field: getattr(self, field) for field in ("me", "name", *_COUNTS)}
        offers = {subject: {"version": v, "data": _tensor(data)} for subject, (v, data) in self.offers.items()}
        return {**counts, "offers": offers, "theirs": {subject: _tensor(data) for subject, data in self.theirs.items()}}

    def put(self, subject: str, data: bytes) -> bool:
        """Offer data; returns whether that is new."""
        if (before := self.offers.get(subject)) is not None and before[1] == data:
            return False
        self.version += 1
        self.offers[subject] = self.version, data
        return True

    def withdraw(self, prefix: str) -> None:
        """Forget the offers whose subject begins with prefix."""
        self.offers = {subject: each for subject, each in self.offers.items() if not subject.startswith(prefix)}

    @property
    def news(self) -> bool:
        """Whether there is an offer of which the other has not said that it has it."""
        return any(version > self.told for version, _ in self.offers.values())

    def letter(self, **more: Any) -> bytes:
        """Return the bytes of a letter. more: other fields of its head."""
        new = {subject: data for subject, (version, data) in self.offers.items() if version > self.told}
        sizes = [(subject, len(data)) for subject, data in new.items()]
        head = Head(
            me=self.me, to=self.name, life=self.life, version=self.version, other=self.other, known=self.known,
            since=self.told, subjects=list(self.offers), new=sizes, **more,
        )  # fmt: skip
        written = head.model_dump_json().encode()
        return b"".join([_LENGTH.pack(len(written)), written, *new.values()])

    def read(self, data: bytes) -> Head:
        """Take in the other's letter, and return its head; raises MethodError for what is none."""
        head, parts = _opened(data)
        if head.me != self.name or head.to != self.me:
            raise MethodError(f"a letter from {head.me!r} to {head.to!r}, where {self.name!r} writes to {self.me!r}")
        if head.life != self.other:
            self.other, self.theirs, self.known = head.life, {}, 0
        self.told = head.known if head.other == self.life else 0
        # One that was overtaken; and one for a process of this name that has ended, which lacks what that one had.
        if head.since <= self.known <= head.version:
            kept = {**self.theirs, **dict(parts)}
            self.theirs = {subject: kept[subject] for subject in head.subjects if subject in kept}
            self.known = head.version
        return head


def addressee(letter: bytes) -> str:
    """Return to whom a letter is written; raises MethodError for what is none."""
    head, _ = _opened(letter)
    if not is_name(head.to):
        raise MethodError(f"a letter to {head.to!r}, which is no name")
    return head.to


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _bytes(data: torch.Tensor) -> bytes:
    return data.numpy().tobytes()


def _opened(data: bytes) -> tuple[Head, Iterator[tuple[str, bytes]]]:
    """Return a letter's head, and the offers in it."""
    if len(data) < _LENGTH.size:
        raise MethodError("not a letter: too short")
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    if length > _MOST_HEAD or begin > len(data):
        raise MethodError("not a letter: it does not hold its head")
    try:
        head = Head.model_validate_json(data[_LENGTH.size : begin])
    except ValidationError:
        raise MethodError("not a letter: its head is not readable; install the same version of fedkin") from None
    sizes = [size for _, size in head.new]
    if min(sizes, default=0) < 0 or begin + sum(sizes) != len(data):
        raise MethodError("not a letter: its parts are not as long as it says")
    return head, _parts(head, data, begin)


def _parts(head: Head, data: bytes, begin: int) -> Iterator[tuple[str, bytes]]:
    for subject, size in head.new:
        yield subject, data[begin : begin + size]
        begin += size
