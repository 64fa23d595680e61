"""Sites of clients: in this process with an executor for their work, or elsewhere with the same interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.operations import Operations, Work
from fedkin.engines.accounting.scores import Scores
from fedkin.engines.adversaries import Attack
from fedkin.engines.base import Score
from fedkin.engines.client_side import ClientSide, Outbox, Running
from fedkin.engines.driving import Driver
from fedkin.engines.executors.jobs import Executor, ScoreJob, one_thread
from fedkin.engines.features import features_of
from fedkin.engines.setup import Plan
from fedkin.engines.states import States
from fedkin.federation import Client
from fedkin.flow import Message, Params
from fedkin.learning.devices import exact, opened

__all__ = ["LocalSite", "Site"]


class Site(ABC):
    """A site answers requests for its clients by id; any client may be missing from an answer."""

    @abstractmethod
    def turn_to(self, number: int) -> None:
        """Set the current round, and reset the work of the last round."""

    @abstractmethod
    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Run a phase at these clients; returns the replies in the order of the messages."""

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
        """The mode of local training, once it is known."""
        return "one-by-one"

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of one client's step by mode, if the mode was chosen by measurement."""
        return {}

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


class LocalSite(Site):
    """The clients in this process, with their states; an executor does their work."""

    def __init__(
        self, plan: Plan, clients: Mapping[str, Client], executor: Executor, states: States, clock: Clock,
        adversaries: frozenset[str] = frozenset(), own_method: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.executor, self.clock = plan, executor, clock
        self.device = opened(plan.engine.device)
        self.side = ClientSide(plan, clients, states, own_method)
        self.driver = Driver(
            self.side, executor, Work(Operations(plan.net, clients)), clock, Attack.parse(plan.engine.adversaries),
            adversaries,
        )  # fmt: skip
        self.scored = Scores()
        self.rounds: dict[str, Running] = {}

    def turn_to(self, number: int) -> None:
        self.side.turn_to(number)
        self.driver.work.reset()
        self.side.states.rest()  # a checkpoint has read all of them into memory

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        # A client without training samples, as an unseen client may be, cannot answer.
        ids = [id for id in messages if self.side.client(id).size]
        replies: dict[str, Message] = {}
        for running, _ in self.driver.drive(ids, lambda id: self.side.phase(id, phase, messages[id]), phase):
            replies[running.id] = self.side.reply(running)
        return {id: replies[id] for id in ids}

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self.rounds = {id: self.side.peer_round(id, near) for id, near in neighbours.items()}

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        posts: dict[str, Outbox] = {}
        for running, share in self.driver.drive(list(inboxes), self.rounds.__getitem__, "round", inboxes):
            if share is None:
                del self.rounds[running.id]
                self.side.keep(running)
            else:
                posts[running.id] = self.side.outbox(running, share)
        return {id: posts[id] for id in inboxes if id in posts}

    def welcome(self, ids: Iterable[str]) -> None:
        for running, _ in self.driver.drive(list(ids), self.side.peer_welcome, "welcome"):
            self.side.keep(running)

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        return {id: self.side.report(id) for id in ids}

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        models = self.models(offers)
        clients = self.side.now
        tests = {id: clients[id].test for id in models}
        jobs = list(self.scored.jobs(models, tests, self.plan.task, self.plan.net_of, self.side.number))
        for job, results in self.executor.run(jobs):
            assert isinstance(job, ScoreJob)
            self.scored.take(job, results, models, tests)
            self.side.states.rest(job.params.values())
        return {id: self.scored.known[id][2] for id in models}

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        use, models, flows = self.side.use, dict[str, Params](), dict[str, Running]()
        for id, offer in offers.items():
            used = use(id, offer)
            if isinstance(used, Running):
                flows[id], models[id] = used, {}  # the empty dict keeps the place of the client
            else:
                models[id] = used
        if flows:
            with self.uncounted():
                for running, _ in self.driver.drive(list(flows), flows.__getitem__, "use"):
                    models[running.id] = running.result
        return models

    def features(self, id: str, offer: Message) -> Message:
        return features_of(self.side, id, self.models({id: offer})[id])

    def forget(self, ids: Iterable[str]) -> None:
        self.side.forget(ids)

    @property
    def states(self) -> States:
        return self.side.states

    @property
    def work(self) -> Work:
        return self.driver.work

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        self.side.turn_to(number)
        for id in list(self.side.states):
            self.side.states.drop(id)
        for id, state in states.items():
            self.side.states.keep(id, state)
        self.scored = Scores()

    @contextmanager
    def exact(self) -> Iterator[None]:
        with one_thread(), exact(self.device):
            yield

    @property
    def mode(self) -> str:
        return self.executor.chosen

    @property
    def measured(self) -> dict[str, float]:
        return self.executor.measured

    def close(self) -> None:
        self.executor.close()
        self.side.states.close()
