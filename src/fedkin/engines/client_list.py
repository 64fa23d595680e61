"""The clients of a run without their samples: what a server knows of them, and facts for records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from fedkin.errors import DataError
from fedkin.federation import Client, Federation
from fedkin.federation.samples import Absence, is_here
from fedkin.tasks import Task


class Entry(NamedTuple):
    """One client: whether it takes part, when it joins, its training samples and its planted group.

    later: (first round, training samples, planted group) of each change, in the order of rounds. away: (first, last)
    round of each absence (see `Client`).
    """

    seen: bool
    joins: int
    size: int
    group: str | None
    later: tuple[tuple[int, int, str | None], ...] = ()
    away: tuple[Absence, ...] = ()

    @property
    def phases(self) -> tuple[()]:
        """Empty, since a roster has no samples; `Method.check` reads the samples of a federation here."""
        return ()

    def at(self, round: int) -> Entry:
        """Return the entry as it is in this round."""
        past = [change for change in self.later if change[0] <= round]
        return self._replace(size=past[-1][1], group=past[-1][2]) if past else self


class Roster(Mapping[str, Entry]):
    """The clients' entries by id, for one task; a roster has no samples and no labels."""

    def __init__(self, entries: Mapping[str, Entry], task: Task, name: str = "federation") -> None:
        # Most clients of a large federation have equal entries, which share one object.
        distinct: dict[Entry, Entry] = {}
        self._entries = {id: distinct.setdefault(entry, entry) for id, entry in entries.items()}
        self.task, self.name = task, name
        self._still = all(entry.joins <= 1 and not entry.later and not entry.away for entry in distinct)

    @classmethod
    def of(cls, federation: Federation) -> Roster:
        """Return the roster of a federation, for a simulation."""
        entries = {
            id: Entry(
                client.seen, client.joins, client.size, client.group,
                tuple((change.round, len(change.train), change.group) for change in client.changes), client.away,
            )
            for id, client in federation.items()
        }  # fmt: skip
        return cls(entries, federation.task, federation.name)

    def __getitem__(self, id: str) -> Entry:
        return self._entries[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def at(self, round: int) -> Roster:
        """Return the roster of this round: the clients that are present, as they are in this round.

        Returns this object if clients never change. Raises DataError if no client that takes part is present.
        """
        if self._still:
            return self
        present = {
            id: entry.at(round)
            for id, entry in self.items()
            if is_here(entry.joins, entry.away, round) or not entry.seen
        }
        if not any(entry.seen for entry in present.values()):
            raise DataError(f"round {round}: no client is there: none has joined yet, or all have left")
        return Roster(present, self.task, self.name)

    @cached_property
    def seen(self) -> tuple[str, ...]:
        """The sorted ids of the clients that take part."""
        return tuple(sorted(id for id, entry in self.items() if entry.seen))

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """The sorted ids of the clients that are only evaluated."""
        return tuple(sorted(id for id, entry in self.items() if not entry.seen))

    @cached_property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client, or None if one of them is unknown."""
        groups = {id: entry.group for id, entry in self.items() if entry.group is not None}
        return groups if len(groups) == len(self) else None


def facts_of(federation: Federation) -> dict[str, Any]:
    """Return the facts of the clients: sizes, counts of labels, planted groups and a hash, but no samples."""
    task = federation.task
    facts: dict[str, Any] = {"classes": task.classes, "shape": _shape(task)}
    if task.kind != "classification":
        facts |= {"kind": task.kind, "outputs": task.outputs, "metric": task.metric.name}
    return {
        "name": federation.name,
        "fingerprint": federation.fingerprint(),
        "task": facts,
        "clients": {id: _client(client, task) for id, client in sorted(federation.items())},
    }


def times_of(joins: int, away: Iterable[Absence]) -> dict[str, Any]:
    """Return when a client is present, for its facts; empty if it always is.

    >>> times_of(1, ()), times_of(4, [(6, None)])
    ({}, {'joins': 4, 'away': [[6, None]]})
    """
    times = [list(absence) for absence in away]
    return {**({"joins": joins} if joins > 1 else {}), **({"away": times} if times else {})}


def _shape(task: Task) -> list[int] | dict[str, list[int]]:
    if isinstance(task.shape, Mapping):
        return {name: list(shape) for name, shape in task.shape.items()}
    return list(task.shape)


def _client(client: Client, task: Task) -> dict[str, Any]:
    labels = Counter(client.train.labels().tolist()) if task.labels else {}
    return {
        "n_train": len(client.train),
        "n_test": len(client.test),
        "group": client.group,
        "labels": {str(y): n for y, n in sorted(labels.items())},
        "about": dict(client.about),
        **({} if client.seen else {"seen": False}),
        **times_of(client.joins, client.away),
    }
