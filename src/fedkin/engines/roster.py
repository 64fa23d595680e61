"""The roster: all that a server knows of its clients before they send anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fedkin.errors import DataError
from fedkin.federation import Change, Federation
from fedkin.tasks import Task

__all__ = ["Entry", "Roster"]


@dataclass(frozen=True)
class Entry:
    """One client: whether it takes part, when it joins, its training samples and planted group from round to round.

    phases: (first round, number of training samples, planted group) in the order of rounds.
    """

    seen: bool
    joins: int
    phases: tuple[tuple[int, int, str | None], ...]

    def at(self, round: int) -> Entry:
        """The entry with the one phase that holds in this round."""
        past = [phase for phase in self.phases if phase[0] <= round] or [self.phases[0]]
        return replace(self, phases=(past[-1],))

    @property
    def size(self) -> int:
        """Number of training samples."""
        return self.phases[-1][1]

    @property
    def group(self) -> str | None:
        """The planted group, if it is known."""
        return self.phases[-1][2]


class Roster(Mapping[str, Entry]):
    """Clients' entries by id, for one task; never a sample or a label."""

    def __init__(self, entries: Mapping[str, Entry], task: Task, name: str = "federation") -> None:
        self._entries, self.task, self.name = dict(entries), task, name
        self._still = all(entry.joins <= 1 and len(entry.phases) == 1 for entry in self._entries.values())

    @classmethod
    def of(cls, federation: Federation) -> Roster:
        """The roster of a federation that is known whole, as in a simulation."""
        entries = {}
        for id, client in federation.items():
            starts = (now.round if isinstance(now, Change) else 0 for now in client.phases)
            phases = ((start, len(now.train), now.group) for start, now in zip(starts, client.phases, strict=True))
            entries[id] = Entry(client.seen, client.joins, tuple(phases))
        return cls(entries, federation.task, federation.name)

    def __getitem__(self, id: str) -> Entry:
        return self._entries[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def at(self, round: int) -> Roster:
        """The roster of this round: clients that have joined, as they are now; itself when nothing ever changes.

        Raises DataError when no client that takes part has joined.
        """
        if self._still:
            return self
        here = {
            id: entry.at(round) for id, entry in self.items() if entry.joins <= max(round, 1) or not entry.seen
        }  # fmt: skip
        if not any(entry.seen for entry in here.values()):
            raise DataError(f"no client has joined by round {round}")
        return Roster(here, self.task, self.name)

    @property
    def seen(self) -> tuple[str, ...]:
        """Ids of the clients that take part, sorted."""
        return tuple(sorted(id for id, entry in self.items() if entry.seen))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Ids of the clients that are only evaluated, sorted."""
        return tuple(sorted(id for id, entry in self.items() if not entry.seen))

    @property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client, or None when any client's is unknown."""
        groups = {id: entry.group for id, entry in self.items() if entry.group is not None}
        return groups if len(groups) == len(self) else None
