"""Where a federation was read from, so that another process reads it for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedkin.federation.samples import Client, hash_of

__all__ = ["Origin", "hashes"]


@dataclass(frozen=True, eq=False)
class Origin:
    """read: reads the clients anew, here or in another process (it can be pickled). clients: as they were read here.

    where: the files, in words.
    """

    read: Callable[[], Mapping[str, Client]]
    clients: Mapping[str, Client]
    where: str

    def has(self, client: Client) -> bool:
        """Whether reading gives this client: it is as it was read, and was neither changed nor renamed since."""
        return self.clients.get(client.id) is client


def hashes(clients: Iterable[Client]) -> dict[str, tuple[bytes, ...]]:
    """A hash of each client's training and test samples, at the start and after each change."""
    known: dict[int, bytes] = {}
    made = {}
    for client in clients:
        every = [samples for now in client.phases for samples in (now.train, now.test)]
        for samples in every:
            if id(samples) not in known:
                known[id(samples)] = hash_of(samples)
        made[client.id] = tuple(known[id(samples)] for samples in every)
    return made
