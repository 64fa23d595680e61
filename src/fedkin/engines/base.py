"""The interface of engines for the round loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fedkin.engines.releases import counted
from fedkin.engines.setup import Plan, Setup
from fedkin.engines.transport import SERVER
from fedkin.flow import Message, Params
from fedkin.learning.metrics import Figures, Marks
from fedkin.views import ServerView

if TYPE_CHECKING:
    from fedkin.engines.executors.jobs import TrainingPath
    from fedkin.engines.roster import Roster
    from fedkin.graph import Graph

__all__ = ["SERVER", "Engine", "Outcome", "Score", "Traffic"]


class Traffic(NamedTuple):
    """A message that was sent: sender, receiver, phase, bytes and floats.

    missing: why it does not count: "lost", "late", "gone", or "stale", "refused", "failed" or "spent" with the reason.
    One that could not be sent at all has no bytes.
    """

    round: int
    sender: str
    receiver: str
    phase: str
    bytes: int
    floats: int
    missing: str = ""


class Score(NamedTuple):
    """The score of a client's model on the client's test samples: their number, and the fields of `Marks`.

    further: the values of `Plan.measures`, in their order.
    """

    n: int
    loss: float
    right: int
    figures: Figures = ()
    digest: tuple[tuple[float, ...], ...] = ()
    outcomes: bytes = b""
    further: tuple[float | None, ...] = ()

    @property
    def marks(self) -> Marks:
        """The fields of `Marks`."""
        return Marks(*self[1:-1])


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a round.

    sampled: ids of the clients that took part. graph: the learned graph. traffic: the messages. samples: training
    samples processed, by id. inferred: samples in inference (Infer). flops: floating-point operations of both.
    skipped: why the round was skipped; empty if it was not.
    """

    round: int
    sampled: tuple[str, ...]
    graph: Graph | None
    traffic: tuple[Traffic, ...]
    samples: Mapping[str, int]
    inferred: int = 0
    flops: float = 0.0
    skipped: str = ""


class Engine(ABC):
    """An engine runs the rounds of one method.

    setup: the setup, or the plan if the clients are elsewhere, with the nets that the method trains. missed: the lines
    of clients that failed in the last evaluation.
    """

    name: ClassVar[str]
    setup: Setup | Plan
    missed: Sequence[Traffic] = ()

    @property
    @abstractmethod
    def seconds(self) -> dict[str, float]:
        """The time spent on each kind of work."""

    @property
    @abstractmethod
    def server(self) -> ServerView:
        """The view of the server; without a server, the view of the engine, which knows all peers."""

    @property
    @abstractmethod
    def roster(self) -> Roster:
        """The clients of the current round."""

    @property
    @abstractmethod
    def everyone(self) -> Roster:
        """All clients of the run, in whatever round they join."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports (see `engines.facts`)."""

    @abstractmethod
    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""

    @abstractmethod
    def evaluate(self) -> dict[str, Score]:
        """Return the score of every evaluated client, for the model that it would use now."""

    @abstractmethod
    def models(self) -> dict[str, Params]:
        """Return the parameters that every evaluated client would use now."""

    @abstractmethod
    def model(self, id: str) -> Params:
        """Return the parameters that this client would use now."""

    @abstractmethod
    def features(self, id: str) -> Message:
        """Return the class features of a client's model (see `engines.features`); empty if there are none."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on, as a tree of tensors and small values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state that `state()` returned."""

    def close(self) -> None:  # noqa: B027  (most engines have nothing to release)
        """Release processes and memory."""

    def releases(self) -> dict[str, dict[str, Any]]:
        """Return {client id: {"releases", "open"}} under `[privacy]` (see `engines.releases`); without it nothing."""
        return counted(self.states, self.everyone.seen) if self.setup.privacy.on else {}

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id, of those that the engine knows."""
        return {}

    @property
    def mode(self) -> str:
        """The mode of local training."""
        return self.setup.engine.mode

    @property
    def training_paths(self) -> list[TrainingPath]:
        """How nets were trained in this process, and why."""
        return []
