"""What every runner offers to the round loop, and the driving of flows that all of them share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fedkin.errors import ConfigError, MethodError, nearest
from fedkin.federation import Federation
from fedkin.flow import Ask, Message, Params, PeerMethod, ServerMethod
from fedkin.keys import key
from fedkin.learning.net import Net
from fedkin.learning.scoring import Figures, Marks
from fedkin.learning.training import Training
from fedkin.views import ServerView, no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset
    from fedkin.graph import Graph

__all__ = ["SERVER", "Engine", "Outcome", "Score", "Setup", "Traffic"]

SERVER = "server"


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
    """What a round did: who took part, the graph it learned, messages, training samples processed by id, how many
    samples went through a net without training (Infer), and the floating-point operations of both."""

    round: int
    sampled: tuple[str, ...]
    graph: Graph | None
    traffic: tuple[Traffic, ...]
    samples: Mapping[str, int]
    inferred: int = 0
    flops: float = 0.0


@dataclass(frozen=True, eq=False)
class Setup:
    """All that a runner needs to know.

    dropout: probability that a message to a client, or its answer, is lost.
    mode: how local work is done in one machine: "one-by-one", "stacked", "workers", or "auto", which measures.
    workers: processes of the mode "workers"; 0: as many as there are cores.
    nets: each client's own net, where they differ (`net` is then what the server knows).
    network: which peers are neighbours, a spec of `fedkin.graph.network`.
    adversaries: which clients hand on something else than they trained, a spec of `engines.adversaries.Attack`.
    public(name): a data set that the server owns.
    state_limit_mb: memory for clients' states in MB (2^20 bytes); what is above lies on disk (None: no limit).
    device: where local work is done: "cpu", or a card ("cuda", "cuda:1"); states and messages are in memory always.
    """

    method: ServerMethod | PeerMethod
    federation: Federation
    net: Net
    training: Training
    seed: int = 0
    dropout: float = 0.0
    mode: str = "one-by-one"
    workers: int = 0
    nets: Mapping[str, Net] | None = None
    network: str = "full"
    adversaries: str = "none"
    public: Callable[[str], Dataset] = no_public_data
    state_limit_mb: float | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.method.needs_classes:
            self.federation.task.need_labels("method.name", repr(self.method.name))

    def net_of(self, id: str) -> Net:
        """The net of this client."""
        return self.net if self.nets is None else self.nets[id]

    def equipped(self) -> Setup:
        """The same with the nets that the method trains; raises ConfigError when it cannot train these together."""
        task, seed = self.federation.task, key(self.seed, "equip")
        if self.nets is not None and not self.method.unlike_models:
            raise ConfigError(
                f"method {self.method.name!r} needs the same model at every client, and these have unlike ones "
                "(model.name = 'mixed'): choose one model, or a method of `fedkin methods` that allows unlike models"
            )
        known = {id(net): net for net in [self.net, *(self.nets or {}).values()]}
        made = {name: self.method.equip(net, task, seed) for name, net in known.items()}
        for net in known.values():
            net.check(task)
        nets = None if self.nets is None else {client: made[id(net)] for client, net in self.nets.items()}
        return replace(self, net=made[id(self.net)], nets=nets)


class Engine(ABC):
    """Runs rounds of one method on one federation and knows every participant's state."""

    name: ClassVar[str]

    def __init__(self, setup: Setup) -> None:
        self.setup = setup = setup.equipped()
        self.federation = setup.federation.at(1)
        self.seconds = {"local": 0.0, "graph": 0.0, "evaluate": 0.0}
        self.server: ServerView = ServerView(
            seed=setup.seed, round=0, net=setup.net, task=setup.federation.task, training=setup.training, state={},
            clients=self.federation.seen, planted=self.federation.planted, public=setup.public,
        )  # fmt: skip
        if isinstance(setup.method, ServerMethod):
            setup.method.start(self.server)

    @abstractmethod
    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""

    @abstractmethod
    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""

    @abstractmethod
    def models(self) -> dict[str, Params]:
        """The parameters that every client of this round would use now."""

    @abstractmethod
    def evaluate(self) -> dict[str, Score]:
        """Score of every client, for the model that it would use now."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that the next round depends on, as a tree of tensors and small values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state()` gave."""

    def close(self) -> None:  # noqa: B027  (most runners have nothing to give back)
        """Give back processes and memory."""

    @property
    def mode(self) -> str:
        """How local work is done, once that is known."""
        return self.setup.mode

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of one client's step by mode, where the mode was chosen by measuring."""
        return {}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[what]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start


def checked_ask(method: ServerMethod, request: Any, clients: Container[str]) -> Ask:
    """The request of a server's flow, if it is one that can be carried out."""
    where = f"method {method.name!r}"
    if not isinstance(request, Ask):
        raise MethodError(f"{where}: a server's round yields Ask, got {type(request).__name__}")
    if request.phase not in method.phases():
        raise MethodError(
            f"{where}: no phase {request.phase!r}: declare it with @phase; {nearest(request.phase, method.phases())}"
        )
    unknown = sorted(id for id in request.messages if id not in clients)
    if unknown:
        raise MethodError(f"{where}: phase {request.phase!r} asks unknown clients {unknown[:5]}")
    wrong = [id for id, message in request.messages.items() if not isinstance(message, Message)]
    if wrong:
        raise MethodError(f"{where}: phase {request.phase!r} sends no Message to {wrong[:5]}")
    return request
