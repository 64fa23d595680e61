"""The interface of a site: what can be asked of some clients, in this process or elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedkin.engines.accounting.operations import Work
from fedkin.engines.base import Score
from fedkin.engines.client_side import Outbox
from fedkin.engines.executors.jobs import TrainingPath
from fedkin.engines.failures import Failure
from fedkin.flow import Message, Params
from fedkin.learning.devices import one_thread

__all__ = ["Site"]


class Site(ABC):
    """A site answers requests for its clients by id; any client may be missing from an answer.

    Clients that fail are missing, and `failed` tells of them.
    """

    @abstractmethod
    def failed(self) -> list[Failure]:
        """Return the failures of clients since the last call."""

    @abstractmethod
    def undo(self) -> None:
        """Go back to the states of clients before this round."""

    @abstractmethod
    def turn_to(self, number: int) -> None:
        """Set the current round, and reset the work of the last round."""

    @abstractmethod
    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Run a phase at these clients; returns the replies in the order of the messages."""

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """Run a phase as `ask`, and yield (id, reply) in the order of the messages, as soon as it is known."""
        yield from self.ask(phase, messages).items()

    @abstractmethod
    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        """Make the flows of these peers for a round."""

    @abstractmethod
    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        """Give peers their inboxes (None at first); returns the messages of peers that have not ended their round."""

    @abstractmethod
    def welcome(self, ids: Iterable[str]) -> None:
        """Let peers that never took part set their state."""

    @abstractmethod
    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        """Return the reports of peers for the records."""

    @abstractmethod
    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        """Return the score of each client's model on its test samples, given the server's offer."""

    @abstractmethod
    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        """Return the parameters that each client would use now."""

    @abstractmethod
    def features(self, id: str, offer: Message) -> Message:
        """Return the class features of a client's model (see `engines.features`)."""

    @abstractmethod
    def forget(self, ids: Iterable[str]) -> None:
        """Drop the states of clients that never took part."""

    @property
    @abstractmethod
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id; a client has none before its first view."""

    @abstractmethod
    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        """Go back to these states after this round."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The work of this round so far."""

    def uncounted(self) -> Any:
        """Return a context in which work is not counted."""
        return _uncounted(self)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Return a context in which this process computes like the clients, on one thread."""
        with one_thread():
            yield

    @property
    def mode(self) -> str:
        """The mode of local training."""
        return "one-by-one"

    @property
    def training_paths(self) -> list[TrainingPath]:
        """How nets were trained in this process, and why."""
        return []

    def close(self) -> None:  # noqa: B027  (most sites have nothing to release)
        """Release processes and memory."""


@contextmanager
def _uncounted(site: Site) -> Iterator[None]:
    held = site.work.totals()
    site.work.reset()
    try:
        yield
    finally:
        site.work.reset(*held)
