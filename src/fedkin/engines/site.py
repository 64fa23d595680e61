"""Sites: each has some of the clients and answers requests for them, in this process or elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, cast

import torch

from fedkin.engines.accounting import Clock, Operations, Work
from fedkin.engines.attacks import Attacks
from fedkin.engines.executors.jobs import Executor, FitJob, InferJob, Modules, ScoreJob, TrainingPath, job_of
from fedkin.engines.failures import Crashed, Failure, Failures, check_yields, place_in, place_of
from fedkin.engines.ledger import KEY, Page
from fedkin.engines.privacy import BudgetSpent, Source, noised_in
from fedkin.engines.releases import ReleaseContext, Releases
from fedkin.engines.results import Outbox
from fedkin.engines.scoring import Scorer
from fedkin.engines.secure_sums import MASKED, STEPS, MemoryKeys, Signatures, SumMember, check_plain, inner
from fedkin.engines.setup import Setup
from fedkin.engines.states import copy_for_flow
from fedkin.errors import ConfigError, FedkinError, MethodError, RunError
from fedkin.federation import Client, Samples
from fedkin.flow import Fit, Message, Params, PeerMethod, Share
from fedkin.keys import key, rng
from fedkin.learning.devices import exact, one_thread, opened
from fedkin.learning.losses import class_means
from fedkin.learning.metrics import Score
from fedkin.learning.net import head_of
from fedkin.learning.private import Private
from fedkin.learning.sgd import infer
from fedkin.views import ClientView, PeerView, Sealed

_SAMPLES = 32  # samples per class and client, which are enough for a mean feature


class Site:
    """A site answers requests for its clients by id; any client may be missing from an answer.

    Clients that fail are missing; `failed` returns their failures. work: the work of this round so far. mode: the mode
    of local training. A remote site does not hand out its clients' states, models and features, and has neither peers
    nor clients that never took part.
    """

    mode = "one-by-one"

    def __init__(self) -> None:
        self.clock, self.work = Clock("local", "graph", "evaluate", "messages"), Work()
        self.failures = Failures()
        self.states: MutableMapping[str, dict[str, Any]] = {}  # by client id; a client has none before its first view

    def failed(self) -> list[Failure]:
        """Return the failures of clients since the last call."""
        return self.failures.take()

    def undo(self) -> None:
        """Restore the clients' states from before this round."""

    def turn_to(self, number: int) -> None:
        """Set the current round, and reset the work of the last round."""

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterable[tuple[str, Message]]:
        """Run a phase at these clients; return (id, reply) in the order of the messages, each as soon as possible."""
        raise NotImplementedError

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        """Begin a round of these peers, given the neighbours of each."""

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        """Deliver the peers' inboxes (None at first); returns the messages of peers that have not ended their round."""
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
        """Return the class features of a client's model; empty without samples, or features [batch, d].

        means [C, d]: the mean feature of each class; known [C]: the classes with samples; head: the head's parameters;
        vectors [C, d] and vectors_known [C]: the class vectors that the method keeps, if any.
        """
        return Message()

    def forget(self, ids: Iterable[str]) -> None:
        """Drop the states of clients that never took part."""

    def leave(self, ids: Iterable[str]) -> None:
        """Drop the states of clients that have left, but keep the records of their releases."""

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore these states, from the end of this round."""

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Return a context in which work is not counted."""
        counted, self.work = self.work, Work()
        try:
            yield
        finally:
            self.work = counted

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Return a context in which this process computes on one thread, as the clients do."""
        with one_thread():
            yield

    @property
    def training_paths(self) -> list[TrainingPath]:
        """How nets were trained in this process, and why."""
        return []

    def close(self) -> None:
        """Release processes and memory."""


@dataclass(eq=False)
class Running:
    """A running flow of a client or a peer.

    request: what the server asks. share: what the flow waits to share, if anything. result: its return value once it
    has ended.
    """

    id: str
    phase: str
    view: ClientView
    flow: Any
    request: Message = field(default_factory=Message)
    share: Share | None = None
    result: Any = None

    def resume(self, answer: Any) -> Any:
        """Return the flow's next request for a job, or None if it shares or has ended."""
        self.share = None
        if not hasattr(self.flow, "send"):  # a phase without requests returns its Message at once
            self.result = self.flow
            return None
        try:
            request = self.flow.send(answer)
        except StopIteration as stop:
            self.result = stop.value
            return None
        if request is None:
            raise MethodError(f"{place_of(self.flow)}a flow yields Fit or Infer, got None: a bare yield")
        if isinstance(request, Share):
            self.share, request = request, None
        return request


class LocalSite(Site):
    """The clients, or peers, in this process, with their states and flows; an executor does their work.

    Clients share only the process: each view has the samples and the state of one client. adversaries: ids of the
    clients whose fits are changed by `run.adversaries`. own_method: each flow gets a copy of the method, so that data
    that a method passes outside its messages are lost. noise: the source of noise, which `[privacy]` needs. store: the
    stored releases of a deployment's only client. signatures: how members of secure sums sign.
    """

    def __init__(
        self, setup: Setup, clients: Mapping[str, Client], executor: Executor, *,
        states: MutableMapping[str, dict[str, Any]] | None = None, adversaries: frozenset[str] = frozenset(),
        own_method: bool = False, noise: Source | None = None, store: Page | None = None,
        signatures: Signatures | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.setup, self.clients, self.executor, self.mode = setup, clients, executor, executor.mode
        if states is not None:
            self.states = states
        self.adversaries, self.attacks = adversaries, Attacks.parse(setup.engine.adversaries)
        self.own_method, self.device = own_method, opened(setup.engine.device)
        self.signatures, self.members = signatures or MemoryKeys(), dict[str, SumMember]()
        self.releases = Releases(setup, self.next_request_number, noise, store)
        self.failures = Failures(setup.engine.errors == "stop")
        self.operations = Operations(setup.net, clients)
        self.scorer = Scorer(setup, executor, self.failures)
        self.neighbours: Mapping[str, frozenset[str]] = {}
        self.peer_flows: dict[str, Running] = {}
        self.drifting = any(client.changes for client in clients.values())
        for name in ("signature_epsilon", "sample_epsilon"):
            if self.drifting and getattr(setup.privacy, name) is not None:
                raise ConfigError(
                    f"privacy.{name}: it counts for samples that stay, and here clients' samples change over time; "
                    "leave it out, or choose a scenario without drift"
                )
        self.clients_now = clients  # with their current samples
        self.turn_to(0)

    def turn_to(self, number: int) -> None:
        self.number = self.failures.round = number
        self.work = Work()
        if self.drifting:
            self.clients_now = {id: client.at(max(number, 1)) for id, client in self.clients.items()}
        # Number of requests by (client, phase) in this round; it keys the randomness of the next request.
        self.steps: dict[tuple[str, str], int] = {}
        # States from before this round, of clients whose state has changed; None: the client had none.
        self.undo_states: dict[str, dict[str, Any] | None] = {}

    # -- views and states of clients ------------------------------------------------------------------------------

    def view(self, id: str, neighbours: Iterable[str] = ()) -> Any:
        """Return the current view of a client, or of a peer with these neighbours; the first call makes its state."""
        setup = self.setup
        facts: dict[str, Any] = {
            "seed": setup.seed, "round": self.number, "net": setup.net_of(id), "task": setup.task,
            "training": setup.training.at(self.number), "state": {}, "id": id, "train": self.clients_now[id].train,
            "signature_noise": setup.privacy.signature_noise,
        }  # fmt: skip
        is_peer = isinstance(setup.method, PeerMethod)
        view: ClientView = PeerView(**facts, neighbours=()) if is_peer else ClientView(**facts)
        if id in self.states:
            view.state = self.states[id]
        else:
            # The first state is made as in round 0, since it must not depend on the round of the first call.
            view.round = 0
            self._seal(view)
            setup.method.join(view)  # type: ignore[arg-type]
            view.round, view.train = self.number, self.clients_now[id].train
        if isinstance(view, PeerView):
            view.neighbours = tuple(sorted(set(neighbours) - {id}))
        return view

    def _seal(self, view: ClientView) -> None:
        """Hide the samples from a flow with private fits, so that it cannot send anything else about them."""
        if self.setup.privacy.sample_epsilon is not None:
            view.train = cast(Samples, Sealed(len(view.train), self.setup.method.name))

    def _release_record(self, id: str) -> dict[str, Any]:
        """Return a copy of the release record in a client's state."""
        return dict(self.states[id].get(KEY, {})) if self.setup.privacy.on and id in self.states else {}

    def _release_context(self, id: str, phase: str, request: Message) -> ReleaseContext:
        return ReleaseContext(id, self.number, phase, request, self._release_record(id))

    @contextmanager
    def _releasing(self, id: str, phase: str, request: Message) -> Iterator[ReleaseContext]:
        """Return a context for a release. It counts at once, also if the flow fails later or the round is undone."""
        release = self._release_context(id, phase, request)
        yield release
        self._store(id, release.record)

    def _store(self, id: str, record: Mapping[str, Any], state: dict[str, Any] | None = None) -> None:
        """Store a client's release record with its state (None: the current state)."""
        state = self.view(id).state if state is None else state
        self.states[id] = {**state, KEY: record} if record else state

    def keep_state(self, running: Running) -> None:
        """Store the state at the end of a flow; the release record stays."""
        if self.setup.engine.min_replies and running.id not in self.undo_states:
            self.undo_states[running.id] = self.states.get(running.id)
        self._set_state(running.id, running.view.state)

    def undo(self) -> None:
        """Restore the states from before this round; releases stay counted."""
        for id, state in self.undo_states.items():
            self._set_state(id, state)
        self.undo_states = {}

    def leave(self, ids: Iterable[str]) -> None:
        """Forget clients that have left, so that they come back as newcomers; their releases stay counted."""
        for id in ids:
            self._set_state(id, None)

    def _set_state(self, id: str, state: dict[str, Any] | None) -> None:
        """Set a client's state (None: it has none); its release record stays."""
        record = self._release_record(id)
        if state is None:
            self.states.pop(id, None)
        if state is not None or record:
            self._store(id, record, state)

    def next_request_number(self, id: str, phase: str) -> int:
        """Return the number, from 0, of this client's next request in this phase of this round."""
        number = self.steps[id, phase] = self.steps.get((id, phase), -1) + 1
        return number

    def forget(self, ids: Iterable[str]) -> None:
        gone = frozenset(ids)
        for id in gone:
            self.states.pop(id, None)
        if gone:
            self.steps = {at: number for at, number in self.steps.items() if at[0] not in gone}

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        self.turn_to(number)
        self.states.clear()
        self.states.update(states)
        self.scorer.scored = {}

    def checkpoint(self, id: str) -> dict[str, Any]:
        """Return one client's part of a consistent checkpoint: its round, its state, and its progress in the round."""
        steps = {phase: number for (client, phase), number in self.steps.items() if client == id}
        kept = {"state": self.states[id]} if id in self.states else {}
        return {"round": self.number, "steps": steps, **kept}

    def restore_client(self, id: str, part: Mapping[str, Any]) -> None:
        """Restore what `checkpoint` returned, at a site with only this client."""
        self.restore(part["round"], {id: part["state"]} if "state" in part else {})
        self.steps = {(id, phase): number for phase, number in part["steps"].items()}

    # -- flows of clients, together -------------------------------------------------------------------------------

    def method(self) -> Any:
        """Return the method for one flow."""
        method = self.setup.method
        return type(method).model_validate(method.model_dump()) if self.own_method else method

    def flow(self, id: str, name: str, message: Message) -> Running:
        """Return the flow of a client's phase before its first step; raises MethodError for unknown phases."""
        method = self.method()
        self._raise_if_crashed(id, name)
        if name not in method.phases():
            raise MethodError(f"method {method.name!r} declares no phase {name!r}")
        if self.setup.privacy.on:
            self.releases.admit(self._release_context(id, name, message))
        view = self._view_for_flow(id)
        if not any(map(noised_in, method.declared(name) or ())):
            self._seal(view)
        flow = getattr(method, name)(view, message)
        check_yields(method, name, flow)
        return Running(id, name, view, flow, message)

    def _raise_if_crashed(self, id: str, name: str) -> None:
        """Raise Crashed if `faults.crash` lets this client crash in this phase."""
        if self.setup.faults.crashes(self.setup.seed, id, self.number, name):
            raise Crashed("crashed, by faults.crash")

    def _view_for_flow(self, id: str, neighbours: Iterable[str] = ()) -> Any:
        """Return a view with a copy of the state, so that a flow that fails changes nothing."""
        view = self.view(id, neighbours)
        view.state = copy_for_flow(view.state)
        return view

    def run_flows(
        self, ids: Sequence[str], start: Callable[[str], Running], phase: str, answers: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, Running | None]]:
        """Run the flows of many clients together; yield each, by id, when it ends or waits in Share; None: it failed.

        `start` is called for a client only when the executor has room, so that few flows run at once. answers: answers
        for flows that began earlier and wait for them. The errors of flows that fail are in `failures`.
        """
        waiting, running = list(reversed(ids)), dict[str, Running]()
        while waiting or running:
            stopped: list[tuple[str, Running | None]] = []
            with self.clock.of("local"), self.clock.of(f"local.{phase}"):
                for id, done in self._ready(waiting, running):
                    try:
                        if done is None:
                            flow, answer = start(id), (answers or {}).get(id)
                        else:
                            flow, answer = running.pop(id), self._answer_of(*done, phase)
                        if self._advance(flow, answer):
                            running[id] = flow
                        else:
                            stopped.append((id, flow))
                    except Exception as error:  # not `failures.of`: a context is slower, and this runs for each client
                        self.failures.note(error, id, phase)
                        stopped.append((id, None))
            yield from stopped

    def _ready(
        self, waiting: list[str], running: Mapping[str, Running]
    ) -> Iterator[tuple[str, tuple[FitJob | InferJob, Any] | None]]:  # fmt: skip
        """Yield the ids of waiting flows while the executor has room, then those of running ones with (job, result)."""
        while waiting and self.executor.room > 0:
            yield waiting.pop(), None
        for job, result in self.executor.collect() if running else ():
            assert not isinstance(job, ScoreJob)
            yield job.id, (job, result)

    def _answer_of(self, job: FitJob | InferJob, result: Any, phase: str) -> Any:
        """Return what a flow gets for its job; raises the job's error. An adversary's fit of its model is changed."""
        if isinstance(result, FedkinError):
            raise result
        self.work.add(job, result, self.operations.per_sample(job))
        setup, id = self.setup, job.id
        if id not in self.adversaries or not isinstance(job, FitJob) or job.net is not setup.net_of(id):
            return result
        draw = rng(setup.seed, id, self.number, f"{phase}.attack{self.steps[id, phase]}")
        return self.attacks(result, job.params, draw)

    def _advance(self, running: Running, answer: Any) -> bool:
        """Resume a flow; returns True if it requests another job, and False if it shares or has ended."""
        request = running.resume(answer)
        if request is None:
            return False
        id, view, phase = running.id, running.view, running.phase
        draw = key(view.seed, id, view.round, f"{phase}.fit{self.next_request_number(id, phase)}")
        try:
            job = job_of(request, view, draw)
        except MethodError as error:
            raise MethodError(f"{place_of(running.flow)}{error}") from None
        # What a client computes only for its own use never leaves it, and needs no protection.
        if self.setup.privacy.sample_epsilon is not None and phase not in ("use", "welcome"):
            private = self._register_private_fit(running, request)
            assert isinstance(job, FitJob)
            job = replace(job, private=private)
        self.executor.submit(job)
        return True

    def _register_private_fit(self, running: Running, fit: Any) -> Private:
        """Return the privacy of a requested fit."""
        id, phase = running.id, running.phase
        if not isinstance(fit, Fit):
            raise RunError(
                f"phase {phase!r} of method {self.setup.method.name!r} needs outputs of the samples, which "
                "privacy.sample_epsilon does not protect; choose another method"
            )
        with self._releasing(id, phase, running.request) as release:
            return self.releases.train(release, fit, self.clients_now[id].train)

    def finish_reply(self, running: Running) -> Message:
        """Return the reply of an ended phase as it leaves the client, and store the client's state."""
        if not isinstance(running.result, Message):
            at, got = place_in(self.setup.method, running.phase), type(running.result).__name__
            raise MethodError(f"{at}phase {running.phase!r} at client {running.id!r} must return a Message, got {got}")
        sent = running.result
        if self.setup.privacy.on:
            with self._releasing(running.id, running.phase, running.request) as release:
                sent = self.releases.reply(release, sent)
        self.keep_state(running)
        return sent

    def outbox(self, running: Running, share: Share) -> Outbox:
        """Return a peer's outgoing messages by receiver; raises MethodError for a receiver that is no neighbour."""
        assert isinstance(running.view, PeerView)
        neighbours = running.view.neighbours
        if isinstance(share.message, Message):
            messages: Mapping[str, Message] = dict.fromkeys(neighbours if share.to is None else share.to, share.message)
        else:
            messages = share.message
        strangers = sorted(set(messages) - set(neighbours))
        if strangers:
            raise MethodError(f"peer {running.id!r} shares with {strangers[:5]}, which are not its neighbours")
        if self.setup.privacy.on:
            with self._releasing(running.id, share.phase, Message()) as release:
                messages = self.releases.shared(release, messages)
        return Outbox(share.phase, messages)

    # -- requests to a site ---------------------------------------------------------------------------------------

    def replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        if phase in STEPS:
            yield from self._secure_replies(phase, messages)
            return
        for id, reply in self._method_replies(phase, messages):
            with self.failures.of(id, phase):
                if self.setup.sums_securely:
                    check_plain(self.setup.method, phase, reply)
                yield id, reply

    def _secure_replies(self, step: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """Answer a step of secure sums; the step with masked numbers runs a phase of the method."""
        replies = dict[str, Message]()
        if step == MASKED and messages:
            phase, _ = inner(next(iter(messages.values())))
            replies = dict(self._method_replies(phase, {id: inner(message)[1] for id, message in messages.items()}))
            messages = {id: messages[id] for id in replies}
        for id, message in messages.items():
            with self.failures.of(id, step):
                if id not in self.members:
                    least = self.setup.privacy.min_members
                    self.members[id] = SumMember(id, self.clients_now[id].size, self.signatures, least)
                masked = self.members[id].answer(step, message, replies.pop(id, None))
                if step == MASKED:
                    check_plain(self.setup.method, phase, masked)
                yield id, masked

    def _method_replies(self, phase: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        # A client without training samples, as an unseen client may be, cannot answer.
        waiting = deque(id for id in messages if self.clients_now[id].size)
        ready: dict[str, Message | None] = {}  # None: the client has failed
        for id, running in self.run_flows(list(waiting), lambda id: self.flow(id, phase, messages[id]), phase):
            ready[id] = None
            if running is not None:
                with self.failures.of(id, phase):
                    ready[id] = self.finish_reply(running)
            del running
            while waiting and waiting[0] in ready:
                first = waiting.popleft()
                if (reply := ready.pop(first)) is not None:
                    yield first, reply

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self.neighbours, self.peer_flows = neighbours, {}

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        posts: dict[str, Outbox] = {}
        for id, running in self.run_flows(list(inboxes), self._round_of, "round", inboxes):
            if running is None:
                continue
            with self.failures.of(id, "round"):
                if (share := running.share) is None:
                    del self.peer_flows[id]
                    self.keep_state(running)
                else:
                    try:
                        posts[id] = self.outbox(running, share)
                    except BudgetSpent:
                        posts[id] = Outbox(share.phase, {})  # it sends nothing, but still receives
                        raise
        return {id: posts[id] for id in inboxes if id in posts}

    def _round_of(self, id: str) -> Running:
        """Return the flow of a peer's round; the first call starts it."""
        if id not in self.peer_flows:
            method = self.method()
            self._raise_if_crashed(id, "round")
            view = self._view_for_flow(id, self.neighbours.get(id, ()))
            self._seal(view)
            flow = method.round(view)
            check_yields(method, "round", flow)
            self.peer_flows[id] = Running(id, "round", view, flow)
        return self.peer_flows[id]

    def welcome(self, ids: Iterable[str]) -> None:
        def start(id: str) -> Running:
            view = self._view_for_flow(id)
            return Running(id, "welcome", view, self.method().welcome(view))

        for _, running in self.run_flows(list(ids), start, "welcome"):
            if running is not None:
                self.keep_state(running)

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        reports: dict[str, Message] = {}
        for id in ids:
            with self.failures.of(id, "report"):
                reports[id] = cast(PeerMethod, self.setup.method).report(self.view(id))
        return reports

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        models = self.models(offers)
        return self.scorer.scores(models, {id: self.clients_now[id].test for id in models}, self.number)

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        models, flows = dict[str, Params](), dict[str, Running]()
        for id, offer in offers.items():
            with self.failures.of(id, "use"):
                used = self.model_or_flow(id, offer)
                if isinstance(used, Running):
                    flows[id] = used
                else:
                    models[id] = used
        with self.uncounted():
            for id, running in self.run_flows(list(flows), flows.__getitem__, "use"):
                if running is not None:
                    models[id] = running.result
        return {id: models[id] for id in offers if models.get(id)}

    def model_or_flow(self, id: str, offer: Message) -> Params | Running:
        """Return the client's current parameters, or a flow that computes them without changing the client's state."""
        method, view = self.setup.method, self.view(id)
        if isinstance(method, PeerMethod):
            return method.use(view)
        used = method.use(view, offer)
        # The check of GeneratorType is faster than that of the abstract Generator, and runs for every client.
        if not isinstance(used, GeneratorType):
            return cast(Params, used)
        self.steps.pop((id, "use"), None)
        return Running(id, "use", view, used)

    def features(self, id: str, offer: Message) -> Message:
        task, samples = self.setup.task, self.clients_now[id].train
        params = self.models({id: offer}).get(id)
        if params is None or not task.labels or not len(samples):
            return Message()
        y = samples.labels()
        rows = [(y == label).nonzero()[:_SAMPLES, 0] for label in range(task.classes)]
        few, net, modules = samples.take(torch.cat(rows).sort().values), self.setup.net_of(id), Modules()
        z = infer(net, modules(net), params, "features", few)
        if z.ndim != 2:
            return Message()
        means, count = class_means(z, few.labels(), None, task.classes)
        kept = self.setup.method.class_vectors(self.view(id))
        more = {} if kept is None else {"vectors": kept.table, "vectors_known": kept.known}
        return Message(means=means, known=count > 0, head=head_of(params), **more)

    @contextmanager
    def exact(self) -> Iterator[None]:
        with one_thread(), exact(self.device):
            yield

    @property
    def training_paths(self) -> list[TrainingPath]:
        return self.executor.training_paths

    def close(self) -> None:
        self.executor.close()
