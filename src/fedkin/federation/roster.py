"""Clients by id: with their samples (`Federation`), or without them, as over a network (`Entry`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import NamedTuple, Self, TypeAlias, TypeVar

from fedkin.errors import DataError
from fedkin.federation.samples import Absence, Client, is_here
from fedkin.tasks import Task


class Entry(NamedTuple):
    """A client without its samples: whether it takes part, when it joins, its number of training samples, its group.

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
        """Empty, since an entry has no samples; `Method.check` reads the samples of a client here."""
        return ()

    @property
    def still(self) -> bool:
        """Whether the client is present in all rounds, with the same samples."""
        return self.joins <= 1 and not self.later and not self.away

    def here(self, round: int) -> bool:
        """Whether the client is present in this round."""
        return is_here(self.joins, self.away, round)

    def at(self, round: int) -> Entry:
        """The entry as it is in this round."""
        past = [change for change in self.later if change[0] <= round]
        return self._replace(size=past[-1][1], group=past[-1][2]) if past else self


C = TypeVar("C", Client, Entry)


class Roster(Mapping[str, C]):
    """Clients by id, for one task.

    seen: ids of the clients that take part, sorted. unseen: ids of the clients that are only evaluated, sorted.
    planted: the planted group of every client, or None if any client's group is unknown.
    """

    def __init__(self, clients: Mapping[str, C], task: Task, name: str = "federation") -> None:
        self._clients: Mapping[str, C] = clients
        self.task, self.name = task, name
        self.seen = tuple(sorted(id for id, client in clients.items() if client.seen))
        self.unseen = tuple(sorted(id for id, client in clients.items() if not client.seen))
        groups = {id: client.group for id, client in clients.items() if client.group is not None}
        self.planted = groups if len(groups) == len(clients) else None
        self._still = all(client.still for client in clients.values())

    def __getitem__(self, id: str) -> C:
        return self._clients[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def at(self, round: int) -> Self:
        """The clients that are present in this round, as they are then; self if nothing ever changes.

        Raises DataError if no client that takes part is present.
        """
        if self._still:
            return self
        present = {id: client.at(round) for id, client in self.items() if client.here(round) or not client.seen}
        if not any(client.seen for client in present.values()):
            raise DataError(f"round {round}: no client is there: none has joined yet, or all have left")
        now = copy(self)
        # Not the subclass's own: a federation would check all samples again.
        Roster.__init__(now, present, self.task, self.name)
        return now


AnyRoster: TypeAlias = Roster[Client] | Roster[Entry]
