"""The site of clients in this process, with an executor for their work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.operations import Operations, Work
from fedkin.engines.accounting.scores import Scores
from fedkin.engines.adversaries import Attacks
from fedkin.engines.base import Score
from fedkin.engines.client_side import ClientSide, Outbox, Running
from fedkin.engines.driving import Driver
from fedkin.engines.executors.jobs import Executor, ScoreJob, TrainingPath
from fedkin.engines.failures import Failure
from fedkin.engines.faults import Crashed
from fedkin.engines.features import features_of
from fedkin.engines.privacy import Source, Spent
from fedkin.engines.releases import Store
from fedkin.engines.setup import Plan
from fedkin.engines.site import Site
from fedkin.engines.states import States
from fedkin.errors import FedkinError
from fedkin.federation import Client
from fedkin.flow import Message, Params
from fedkin.learning.devices import exact, one_thread, opened

__all__ = ["LocalSite"]


class LocalSite(Site):
    """The clients in this process, with their states; an executor does their work."""

    def __init__(
        self, plan: Plan, clients: Mapping[str, Client], executor: Executor, states: States, clock: Clock,
        adversaries: frozenset[str] = frozenset(), own_method: bool = False, noise: Source | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.executor, self.clock = plan, executor, clock
        self.device = opened(plan.engine.device)
        self.side = ClientSide(plan, clients, states, own_method, noise, store)
        self.driver = Driver(
            self.side, executor, Work(Operations(plan.net, clients)), clock, Attacks.parse(plan.engine.adversaries),
            adversaries,
        )  # fmt: skip
        self.scored = Scores()
        self.near: Mapping[str, frozenset[str]] = {}
        self.rounds: dict[str, Running] = {}

    def turn_to(self, number: int) -> None:
        self.side.turn_to(number)
        self.driver.work.reset()

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        return dict(self.replies(phase, messages))

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        # A client without training samples, as an unseen client may be, cannot answer.
        waiting = deque(id for id in messages if self.side.client(id).size)
        ready: dict[str, Message] = {}
        failures, failed = self.driver.failures, set[str]()
        noted = len(failures.found)  # those before are of another exchange
        for running, _ in self.driver.drive(list(waiting), self._starting(phase, messages), phase):
            try:
                ready[running.id] = self.side.reply(running)
            except Exception as error:
                failures.note(error, running.id, phase)
            del running
            failed |= {failure.id for failure in failures.found[noted:]}
            noted = len(failures.found)
            while waiting and (waiting[0] in ready or waiting[0] in failed):
                id = waiting.popleft()
                if id in ready:
                    yield id, ready.pop(id)
        yield from ((id, ready.pop(id)) for id in waiting if id in ready)

    def _starting(self, phase: str, messages: Mapping[str, Message]) -> Callable[[str], Running]:
        """Return what starts this phase at a client."""
        crash, start = self.plan.faults.crash > 0, self.side.phase

        def started(id: str) -> Running:
            if crash:
                self._crash(id, phase)
            return start(id, phase, messages[id])

        return started

    def _crash(self, id: str, phase: str) -> None:
        if self.plan.faults.crashes(self.plan.seed, id, self.side.number, phase):
            raise Crashed("crashed, as faults.crash has it")

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self.near, self.rounds = neighbours, {}

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        posts: dict[str, Outbox] = {}
        for running, share in self.driver.drive(list(inboxes), self._round_of, "round", inboxes):
            with self.driver.failures.of(running.id, "round"):
                if share is None:
                    del self.rounds[running.id]
                    self.side.keep(running)
                else:
                    try:
                        posts[running.id] = self.side.outbox(running, share)
                    except Spent:
                        posts[running.id] = Outbox(share.phase, {})  # it sends nothing, and still listens
                        raise
        return {id: posts[id] for id in inboxes if id in posts}

    def _round_of(self, id: str) -> Running:
        """Return the flow of a peer's round, which begins with the first call."""
        if id not in self.rounds:
            self._crash(id, "round")
            self.rounds[id] = self.side.peer_round(id, self.near[id])
        return self.rounds[id]

    def welcome(self, ids: Iterable[str]) -> None:
        for running, _ in self.driver.drive(list(ids), self.side.peer_welcome, "welcome"):
            self.side.keep(running)

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        told: dict[str, Message] = {}
        for id in ids:
            with self.driver.failures.of(id, "report"):
                told[id] = self.side.report(id)
        return told

    def failed(self) -> list[Failure]:
        return self.driver.failures.take()

    def undo(self) -> None:
        self.side.undo()

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        models = self.models(offers)
        clients = self.side.now
        tests = {id: clients[id].test for id in models}
        plan, parts = self.plan, self.executor.parts
        jobs = list(self.scored.jobs(models, tests, plan.task, plan.net_of, self.side.number, parts))
        while jobs:
            again: list[ScoreJob] = []
            for job, results in self.executor.run(jobs):
                assert isinstance(job, ScoreJob)
                if not isinstance(results, FedkinError):
                    self.scored.take(job, results, models, tests)
                elif len(job.ids) > 1:
                    # One of these clients fails. Alone, each of the others gets its score.
                    again += [replace(job, ids=(id,)) for id in job.ids]
                else:
                    self._unscored(job, results, models)
            jobs = again
        if self.plan.measures:
            self.scored.measure(models, self.plan)
        return {id: self.scored.known[id][2] for id in models}

    def _unscored(self, job: ScoreJob, error: FedkinError, models: dict[str, Params]) -> None:
        """Leave out the clients of a job that failed."""
        for id in self.scored.same[job.ids[0]]:
            with self.driver.failures.of(id, "evaluate"):
                raise error
            del models[id]

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        use, models, flows = self.side.use, dict[str, Params](), dict[str, Running]()
        self.driver.failures.round = self.side.number
        for id, offer in offers.items():
            with self.driver.failures.of(id, "use"):
                used = use(id, offer)
                if isinstance(used, Running):
                    flows[id], models[id] = used, {}  # the empty dict keeps the place of the client
                else:
                    models[id] = used
        if flows:
            with self.uncounted():
                for running, _ in self.driver.drive(list(flows), flows.__getitem__, "use"):
                    models[running.id] = running.result
        return models if all(models.values()) else {id: params for id, params in models.items() if params}

    def features(self, id: str, offer: Message) -> Message:
        models = self.models({id: offer})
        return features_of(self.side, id, models[id]) if id in models else Message()

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
        return self.executor.mode

    @property
    def training_paths(self) -> list[TrainingPath]:
        return self.executor.training_paths

    def close(self) -> None:
        self.executor.close()
