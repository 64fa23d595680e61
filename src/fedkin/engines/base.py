"""What every engine offers to the round loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fedkin.engines.setup import Setup
from fedkin.engines.transport import SERVER
from fedkin.flow import Message, Params
from fedkin.learning.scoring import Figures, Marks
from fedkin.views import ServerView

if TYPE_CHECKING:
    from fedkin.engines.roster import Roster
    from fedkin.graph import Graph

__all__ = ["SERVER", "Engine", "Outcome", "Score", "Traffic"]


class Traffic(NamedTuple):
    """One message that travelled: who to whom, in which phase, its bytes and its floats."""

    round: int
    sender: str
    receiver: str
    phase: str
    bytes: int
    floats: int


class Score(NamedTuple):
    """A client's model on the client's test samples: how many, and its `Marks` there."""

    n: int
    loss: float
    right: int
    figures: Figures = ()
    digest: tuple[tuple[float, ...], ...] = ()

    @property
    def marks(self) -> Marks:
        """All but how many samples there were."""
        return Marks(*self[1:])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round did.

    sampled: who took part; graph: what it learned; traffic: messages; samples: training samples processed, by id;
    inferred: samples that went through a net without training (Infer); flops: floating-point operations of both.
    """

    round: int
    sampled: tuple[str, ...]
    graph: Graph | None
    traffic: tuple[Traffic, ...]
    samples: Mapping[str, int]
    inferred: int = 0
    flops: float = 0.0


class Engine(ABC):
    """Runs rounds of one method.

    setup: with the nets that the method trains.
    """

    name: ClassVar[str]
    setup: Setup

    @property
    @abstractmethod
    def seconds(self) -> dict[str, float]:
        """Time spent, by what it was spent on."""

    @property
    @abstractmethod
    def server(self) -> ServerView:
        """The server's view; between peers, of whoever counts them."""

    @property
    @abstractmethod
    def roster(self) -> Roster:
        """The clients of the current round."""

    @property
    @abstractmethod
    def everyone(self) -> Roster:
        """All clients of the run, whenever they are there."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What records and reports say of the clients (`engines.facts`)."""

    @abstractmethod
    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""

    @abstractmethod
    def evaluate(self) -> dict[str, Score]:
        """Score of every client that is evaluated, for the model that it would use now."""

    @abstractmethod
    def models(self) -> dict[str, Params]:
        """The parameters that every client that is evaluated would use now."""

    @abstractmethod
    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""

    @abstractmethod
    def features(self, id: str) -> Message:
        """What a client's model makes of its classes (`engines.features`); empty where it cannot say."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that the next round depends on, as a tree of tensors and small values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state()` gave."""

    def close(self) -> None:  # noqa: B027  (most engines have nothing to give back)
        """Give back processes and memory."""

    @property
    def mode(self) -> str:
        """How local work is done, once that is known."""
        return self.setup.engine.mode

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of one client's step by mode, where the mode was chosen by measuring."""
        return {}
