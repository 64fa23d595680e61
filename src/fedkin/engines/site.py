"""A site has some of the clients: it answers requests for them, in this process or elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fedkin.engines.accounting import Clock, Operations, Scores, Work
from fedkin.engines.attacks import Attacks
from fedkin.engines.client_side import ClientSide, Running, States
from fedkin.engines.executors.jobs import Executor, FitJob, Modules, ScoreJob, TrainingPath, job_of
from fedkin.engines.failures import Crashed, Failure, Failures, place_of
from fedkin.engines.ledger import Page
from fedkin.engines.privacy import Source, Spent
from fedkin.engines.results import Outbox, Score
from fedkin.engines.secure_sums import MASKED, STEPS, Member, MemoryKeys, Signatures, check_plain, inner
from fedkin.engines.setup import Setup
from fedkin.errors import FedkinError, MethodError
from fedkin.federation import Client, Samples
from fedkin.flow import Fitted, Message, Params, PeerMethod, Share
from fedkin.keys import key, rng
from fedkin.learning.devices import exact, one_thread, opened
from fedkin.learning.losses import class_means
from fedkin.learning.net import head_of
from fedkin.learning.sgd import infer

_SAMPLES = 32  # number of samples per class and client, which are enough for a mean feature


def features_of(side: ClientSide, id: str, params: Params) -> Message:
    """Return the class features of a client with these parameters.

    means [C, d]: the mean feature of each class; known [C]: the classes with samples; head: the head's parameters;
    vectors [C, d] and vectors_known [C]: the class vectors that the method keeps, if any.

    The message is empty for a client without samples, and for a net without features [batch, d].
    """
    task, samples = side.setup.task, side.client(id).train
    if not task.labels or not len(samples):
        return Message()
    net, modules = side.setup.net_of(id), Modules()
    few = _few(samples, task.classes)
    z = infer(net, modules(net), params, "features", few)
    if z.ndim != 2:
        return Message()
    y = few.labels()
    means, count = class_means(z, y, torch.ones(len(y), dtype=z.dtype), task.classes)
    method = side.setup.method
    kept = method.class_vectors(side.peer(id) if isinstance(method, PeerMethod) else side.view(id))
    more = {} if kept is None else {"vectors": kept.table, "vectors_known": kept.known}
    return Message(means=means, known=count > 0, head=head_of(params), **more)


def _few(samples: Samples, classes: int) -> Samples:
    """Return the first samples of each class."""
    y = samples.labels()
    rows = [(y == label).nonzero()[:_SAMPLES, 0] for label in range(classes)]
    return samples.take(torch.cat(rows).sort().values)


class Site:
    """A site answers requests for its clients by id; any client may be missing from an answer.

    Clients that fail are missing, and `failed` tells of them. work: that of this round so far. A site that is elsewhere
    keeps its clients' states, models and features, and has neither peers nor clients that never took part.
    """

    work: Work

    def failed(self) -> list[Failure]:
        """Return the failures of clients since the last call."""
        raise NotImplementedError

    def undo(self) -> None:
        """Go back to the states of clients before this round."""

    def turn_to(self, number: int) -> None:
        """Set the current round, and reset the work of the last round."""

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Run a phase at these clients; returns the replies in the order of the messages."""
        raise NotImplementedError

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """Run a phase as `ask`, and yield (id, reply) in the order of the messages, as soon as it is known."""
        yield from self.ask(phase, messages).items()

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        """Make the flows of these peers for a round."""

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        """Give peers their inboxes (None at first); returns the messages of peers that have not ended their round."""
        return {}

    def welcome(self, ids: Iterable[str]) -> None:
        """Let peers that never took part set their state."""

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        """Return the reports of peers for the records."""
        return {}

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        """Return the score of each client's model on its test samples, given the server's offer."""
        raise NotImplementedError

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        """Return the parameters that each client would use now."""
        return {}

    def features(self, id: str, offer: Message) -> Message:
        """Return the class features of a client's model (see `features_of`)."""
        return Message()

    def forget(self, ids: Iterable[str]) -> None:
        """Drop the states of clients that never took part."""

    def leave(self, ids: Iterable[str]) -> None:
        """Drop the states of clients that have left, but what they have released."""

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id; a client has none before its first view."""
        return {}

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        """Go back to these states after this round."""

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Return a context in which work is not counted."""
        held = self.work.totals()
        self.work.reset()
        try:
            yield
        finally:
            self.work.reset(*held)

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

    def close(self) -> None:
        """Release processes and memory."""


class LocalSite(Site):
    """The clients in this process, with their states; an executor does their work.

    adversaries: ids of the clients whose fits are changed by `run.adversaries`.
    """

    def __init__(
        self, setup: Setup, clients: Mapping[str, Client], executor: Executor, states: States, clock: Clock,
        adversaries: frozenset[str] = frozenset(), own_method: bool = False, noise: Source | None = None,
        store: Page | None = None, signatures: Signatures | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.executor, self.clock, self.adversaries = setup, executor, clock, adversaries
        self.signatures, self.members = signatures or MemoryKeys(), dict[str, Member]()
        self.device = opened(setup.engine.device)
        self.side = ClientSide(setup, clients, states, own_method, noise, store)
        self.attacks = Attacks.parse(setup.engine.adversaries)
        self.failures = Failures(setup.engine.errors == "stop")
        self.work = Work(Operations(setup.net, clients))
        self.scored = Scores()
        self.near: Mapping[str, frozenset[str]] = {}
        self.rounds: dict[str, Running] = {}

    # -- flows of clients, side by side ---------------------------------------------------------------------------

    def drive(
        self, ids: Sequence[str], start: Callable[[str], Running], phase: str, answers: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Running, Share | None]]:
        """Yield each flow with its Share, or None if it has ended, in the order in which flows reach that point.

        `start` makes the flow of a client only when the executor has room for it, so that few flows run at once.
        answers: the answers for which flows that have begun before are waiting. A flow that fails is not yielded; it is
        in `failures`.
        """
        self.failures.round = self.side.number
        answers = answers or {}
        waiting = list(reversed(ids))
        running: dict[str, Running] = {}
        busy = 0
        while waiting or busy:
            stopped: list[tuple[Running, Share | None]] = []
            with self.clock.of("local"), self.clock.of(f"local.{phase}"):
                while waiting and self.executor.room > 0:
                    id = waiting.pop()
                    try:
                        running[id] = start(id)
                        busy += self._advance(running, id, answers.get(id), stopped)
                    except Exception as error:  # a context costs more, and this is done for each client
                        self.failures.note(error, id, phase)
                for job, result in self.executor.collect() if busy else ():
                    assert not isinstance(job, ScoreJob)
                    busy -= 1
                    try:
                        if isinstance(result, FedkinError):
                            raise result
                        self.work.add(job, result)
                        if isinstance(job, FitJob):
                            result = self._handed_on(job, result, phase)
                        busy += self._advance(running, job.id, result, stopped)
                    except Exception as error:
                        self.failures.note(error, job.id, phase)
            yield from stopped

    def _advance(
        self, running: dict[str, Running], id: str, answer: Any, stopped: list[tuple[Running, Share | None]]
    ) -> int:
        """Resume a client's flow; returns 1 if it requests another job, and 0 if it shares or has ended."""
        flow = running[id]
        request = flow.resume(answer)
        if request is None and not flow.ended:
            raise MethodError(f"{place_of(flow.flow)}a flow yields {'Fit or Infer'}, got None: a bare yield")
        if flow.ended or isinstance(request, Share):
            stopped.append((running.pop(id), None if flow.ended else request))
            return 0
        view, step = flow.view, self.side.step(id, flow.phase)
        draw = key(view.seed, id, view.round, f"{flow.phase}.fit{step}")
        try:
            job = job_of(request, view, draw)
        except MethodError as error:
            raise MethodError(f"{place_of(flow.flow)}{error}") from None
        # What a client computes of its model for its own use never leaves.
        if self.setup.privacy.sample_epsilon is not None and flow.phase not in ("use", "welcome"):
            private = self.side.trained(flow, request)
            assert isinstance(job, FitJob)
            job = replace(job, private=private)
        self.executor.submit(job)
        return 1

    def _handed_on(self, job: FitJob, fitted: Fitted, phase: str) -> Fitted:
        """Return the fit that the client's flow gets; the fit of an adversary's own model is changed."""
        setup = self.setup
        if job.id not in self.adversaries or job.net is not setup.net_of(job.id):
            return fitted
        step = self.side.steps[job.id, phase]
        draw = rng(setup.seed, job.id, self.side.number, f"{phase}.attack{step}")
        return self.attacks(fitted, job.params, draw)

    # -- what a site is asked -------------------------------------------------------------------------------------

    def turn_to(self, number: int) -> None:
        self.side.turn_to(number)
        self.work.reset()

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        return dict(self.replies(phase, messages))

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        if phase in STEPS:
            yield from self._secure_replies(phase, messages)
            return
        for id, reply in self._replies(phase, messages):
            if self.setup.sums_securely:
                try:
                    check_plain(self.setup.method, phase, reply)
                except MethodError as error:
                    self.failures.note(error, id, phase)
                    continue
            yield id, reply

    def _secure_replies(self, step: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """Answer a step of secure sums; the step with masked numbers runs a phase of the method."""
        replies: Mapping[str, Message] = {}
        if step == MASKED and messages:
            phase, _ = inner(next(iter(messages.values())))
            replies = dict(self._replies(phase, {id: inner(message)[1] for id, message in messages.items()}))
        for id, message in messages.items():
            if step == MASKED and id not in replies:
                continue
            try:
                if id not in self.members:
                    least = self.setup.privacy.min_members
                    self.members[id] = Member(id, self.side.client(id).size, self.signatures, least)
                answer = self.members[id].answer(step, message, replies.get(id))
                if step == MASKED:
                    check_plain(self.setup.method, phase, answer)
            except Exception as error:
                self.failures.note(error, id, step)
                continue
            yield id, answer

    def _replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        # A client without training samples, as an unseen client may be, cannot answer.
        waiting = deque(id for id in messages if self.side.client(id).size)
        ready: dict[str, Message] = {}
        failures, failed = self.failures, set[str]()
        noted = len(failures.list)  # those before are of another exchange

        def start(id: str) -> Running:
            self._crash(id, phase)
            return self.side.phase(id, phase, messages[id])

        for running, _ in self.drive(list(waiting), start, phase):
            try:
                ready[running.id] = self.side.reply(running)
            except Exception as error:
                failures.note(error, running.id, phase)
            del running
            failed |= {failure.id for failure in failures.list[noted:]}
            noted = len(failures.list)
            while waiting and (waiting[0] in ready or waiting[0] in failed):
                id = waiting.popleft()
                if id in ready:
                    yield id, ready.pop(id)
        yield from ((id, ready.pop(id)) for id in waiting if id in ready)

    def _crash(self, id: str, phase: str) -> None:
        if self.setup.faults.crashes(self.setup.seed, id, self.side.number, phase):
            raise Crashed("crashed, as faults.crash has it")

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self.near, self.rounds = neighbours, {}

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        posts: dict[str, Outbox] = {}
        for running, share in self.drive(list(inboxes), self._round_of, "round", inboxes):
            with self.failures.of(running.id, "round"):
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
        for running, _ in self.drive(list(ids), self.side.peer_welcome, "welcome"):
            self.side.keep(running)

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        told: dict[str, Message] = {}
        for id in ids:
            with self.failures.of(id, "report"):
                told[id] = self.side.report(id)
        return told

    def failed(self) -> list[Failure]:
        return self.failures.take()

    def undo(self) -> None:
        self.side.undo()

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        models = self.models(offers)
        clients = self.side.now
        tests = {id: clients[id].test for id in models}
        setup, parts = self.setup, self.executor.parts
        jobs = list(self.scored.jobs(models, tests, setup.task, setup.net_of, self.side.number, parts))
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
        if self.setup.measures:
            self.scored.measure(self.setup)
        return {id: self.scored.of(id).score for id in models}

    def _unscored(self, job: ScoreJob, error: FedkinError, models: dict[str, Params]) -> None:
        """Leave out the clients of a job that failed."""
        for id in self.scored.alike(job.ids[0]):
            with self.failures.of(id, "evaluate"):
                raise error
            del models[id]

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        use, models, flows = self.side.use, dict[str, Params](), dict[str, Running]()
        self.failures.round = self.side.number
        for id, offer in offers.items():
            with self.failures.of(id, "use"):
                used = use(id, offer)
                if isinstance(used, Running):
                    flows[id], models[id] = used, {}  # the empty dict keeps the place of the client
                else:
                    models[id] = used
        if flows:
            with self.uncounted():
                for running, _ in self.drive(list(flows), flows.__getitem__, "use"):
                    models[running.id] = running.result
        return models if all(models.values()) else {id: params for id, params in models.items() if params}

    def features(self, id: str, offer: Message) -> Message:
        models = self.models({id: offer})
        return features_of(self.side, id, models[id]) if id in models else Message()

    def forget(self, ids: Iterable[str]) -> None:
        self.side.forget(ids)

    def leave(self, ids: Iterable[str]) -> None:
        self.side.leave(ids)

    @property
    def states(self) -> States:
        return self.side.states

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        self.side.turn_to(number)
        self.side.states.clear()
        self.side.states.update(states)
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
