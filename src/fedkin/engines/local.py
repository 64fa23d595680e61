"""The local engine: a whole federation in one process, one client after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from fedkin.engines.accounting.operations import Operations, Work
from fedkin.engines.accounting.scores import Scores
from fedkin.engines.accounting.traffic import Scales
from fedkin.engines.adversaries import Attack
from fedkin.engines.base import SERVER, Engine, Outcome, Score, Setup, Traffic, checked_ask
from fedkin.engines.executors.choose import make_executor
from fedkin.engines.executors.jobs import Executor, FitJob, ScoreJob, job_of, one_thread
from fedkin.engines.offload import Offload
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.flow import Ask, Fitted, Message, Params, PeerMethod, ServerMethod, Share
from fedkin.graph import network
from fedkin.keys import key, rng
from fedkin.learning.devices import exact, opened
from fedkin.views import ClientView, PeerView

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Clients run in this process, in the order of their ids, each with its own samples and state only."""

    name: ClassVar[str] = "local"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.device = opened(self.setup.device)
        self.executor: Executor = make_executor(self.setup, self.device)
        self.seconds["messages"] = 0.0
        self.attack = Attack.parse(setup.adversaries)
        seen = setup.federation.seen
        self.adversaries = frozenset() if self.attack is None else self.attack.clients(seen, setup.seed)
        self.number = 0
        self.steps: dict[tuple[str, str], int] = {}
        self.states: dict[str, Any] = {}
        self.offload = _offload(self.setup)
        self.traffic: list[Traffic] = []
        self.scales = Scales()
        self.work = Work(Operations(self.setup.net, setup.federation))
        self.scores = Scores()

    # -- rounds ---------------------------------------------------------------------------------------------

    def round(self, number: int) -> Outcome:
        self.turn_to(number)
        self.traffic, self.steps, self.work = [], {}, Work(self.work.operations)
        if self.offload is not None:
            self.offload.rest()  # a checkpoint has read them all
        with one_thread(), exact(self.device):
            if isinstance(self.setup.method, PeerMethod):
                sampled = self._peers_round(self.setup.method)
            else:
                sampled = self._server_round(self.setup.method)
        work = self.work
        return Outcome(
            number, tuple(sampled), self.server.graph, tuple(self.traffic), work.samples, work.inferred, work.flops
        )

    def turn_to(self, number: int) -> None:
        """Let it be this round: who is there, and with which samples."""
        self.number = number
        self.server.round, self.server.graph, self.server.info = number, None, {}
        now = self.setup.federation.at(number)
        if now is not self.federation:
            self.federation = now
            self.server.clients, self.server.planted = now.seen, now.planted

    def _server_round(self, method: ServerMethod) -> list[str]:
        sampled = method.sample(self.server)
        flow = method.round(self.server, sampled)
        clients = frozenset(self.server.clients)
        answer: Any = None
        while True:
            with self.timed("graph"):
                try:
                    request = flow.send(answer)
                except StopIteration:
                    return sampled
            answer = self._ask(checked_ask(method, request, clients))

    def _ask(self, ask: Ask) -> dict[str, Message]:
        views: dict[str, ClientView] = {}
        lost = {id: self._lost(id, ask.phase) for id in ask.messages}
        self._count(ask.phase, [(SERVER, id, ask.messages[id]) for id in self.order(ask.messages)])
        # Who has no samples to train on, as an unseen client may, has nothing to answer with.
        reached = [id for id in self.order(ask.messages) if lost[id] != "there" and self.federation[id].size]
        answers: dict[str, Message] = {}

        def start(id: str) -> tuple[ClientView, Any]:
            views[id] = self.view(id)
            return views[id], getattr(self.method(), ask.phase)(views[id], self.carried(ask.messages[id]))

        for id, reply in self._drive(reached, start, ask.phase):
            if not isinstance(reply, Message):
                raise MethodError(
                    f"phase {ask.phase!r} at client {id!r} must return a Message, got {type(reply).__name__}"
                )
            self.keep(id, views.pop(id).state)
            answers[id] = reply
        # Workers end in any order; what is recorded must not show it.
        self._count(ask.phase, [(id, SERVER, answers[id]) for id in reached])
        return {id: self.carried(answers[id]) for id in reached if lost[id] != "back"}

    def _drive(
        self, ids: Sequence[str], start: Callable[[str], tuple[ClientView, Any]], phase: str,
        answers: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """Run the flows of these clients side by side; (id, what it returned, or its Share) as they end.

        `start` makes a client's view and flow when its turn comes, so that no more of them are under way than
        the executor can use.
        """
        waiting = list(reversed(ids))
        flows: dict[str, tuple[ClientView, Any]] = {}
        busy = 0
        while waiting or busy:
            ended: list[tuple[str, Any]] = []
            with self.timed("local"), self.timed(f"local.{phase}"):
                while waiting and self.executor.room > 0:
                    id = waiting.pop()
                    with self._named(id, phase):
                        flows[id] = start(id)
                        busy += self._advance(flows, id, (answers or {}).get(id), phase, ended)
                for job, result in self.executor.collect() if busy else ():
                    assert not isinstance(job, ScoreJob)
                    busy -= 1
                    with self._named(job.id, phase):
                        if isinstance(result, FedkinError):
                            raise result
                        self.work.add(job, result)
                        if isinstance(job, FitJob):
                            result = self._handed_on(job, result, phase)
                        if self.offload is not None:
                            self.offload.rest(job.params.values())
                        busy += self._advance(flows, job.id, result, phase, ended)
            yield from ended

    def _handed_on(self, job: FitJob, fitted: Fitted, phase: str) -> Fitted:
        """The fit of the client's own model as its flow gets it: an adversary's is not what it trained."""
        if self.attack is None or job.net is not self.setup.net_of(job.id) or job.id not in self.adversaries:
            return fitted
        draw = rng(self.setup.seed, job.id, self.number, f"{phase}.attack{self.steps[job.id, phase]}")
        return self.attack(fitted, job.params, draw)

    def _advance(
        self, flows: dict[str, tuple[ClientView, Any]], id: str, answer: Any, phase: str, ended: list[tuple[str, Any]]
    ) -> int:
        """Resume a client's flow: 1 when it asked for another job, 0 when it ended."""
        view, flow = flows[id]
        try:
            request = flow.send(answer) if hasattr(flow, "send") else None
        except StopIteration as stop:
            request, flow = None, stop.value
        if request is None or isinstance(request, Share):
            del flows[id]
            ended.append((id, flow if request is None else request))
            return 0
        step = self.steps[id, phase] = self.steps.get((id, phase), -1) + 1
        self.executor.submit(
            job_of(
                request, id, view.training, key(self.setup.seed, id, self.number, f"{phase}.fit{step}"), view.net,
                self.number, view.task,
            )
        )  # fmt: skip
        return 1

    # -- peers ----------------------------------------------------------------------------------------------

    def _peers_round(self, method: PeerMethod) -> list[str]:
        """Move all peers in step: each Share waits for everyone's, then every inbox is delivered."""
        active = method.sample(self.server)
        server, taking = self.server, frozenset(active)
        near = network(self.setup.network, server.clients, self.setup.seed, self.number, server.planted)
        views = {id: self._peer(id, taking.intersection(near[id])) for id in self.order(active)}
        flows: dict[str, Any] = {}
        for id, view in views.items():
            held = self.method()
            assert isinstance(held, PeerMethod)
            flows[id] = held.round(view)
        inbox: dict[str, Any] = dict.fromkeys(flows)
        for turn in itertools.count():
            if not flows:
                break
            posts: dict[str, Share] = {}
            ends = self._drive(list(flows), lambda id: (views[id], flows[id]), "round", inbox)
            for id, end in list(ends):
                if isinstance(end, Share):
                    posts[id] = end
                else:
                    del flows[id]
                    self.keep(id, views[id].state)
            inbox = {id: {} for id in flows}
            for sender in self.order(posts):
                self._deliver(views[sender], posts[sender], inbox, turn)
        self.server.graph = method.graph_of({id: method.report(self._peer(id)) for id in self.server.clients})
        return active

    def _deliver(self, sender: PeerView, share: Share, inbox: dict[str, Any], turn: int) -> None:
        if isinstance(share.message, Message):
            to = sender.neighbours if share.to is None else share.to
            letters: Mapping[str, Message] = dict.fromkeys(to, share.message)
        else:
            letters = share.message
        strangers = sorted(set(letters) - set(sender.neighbours))
        if strangers:
            raise MethodError(f"peer {sender.id!r} shares with {strangers[:5]}, which are not its neighbours")
        self._count(share.phase, [(sender.id, receiver, letter) for receiver, letter in letters.items()])
        for receiver, letter in letters.items():
            if receiver in inbox and not self._lost(sender.id, f"share {turn} to {receiver}"):
                inbox[receiver][sender.id] = self.carried(letter)

    def _peer(self, id: str, near: Iterable[str] = ()) -> PeerView:
        return PeerView(**vars(self.view(id)), neighbours=tuple(sorted(set(near) - {id})))

    # -- what the loopback engine does otherwise ---------------------------------------------------------------

    def method(self) -> ServerMethod | PeerMethod:
        """The method as a client holds it."""
        return self.setup.method

    def order(self, ids: Any) -> list[str]:
        """In which order clients are served."""
        return sorted(ids)

    def carried(self, message: Message) -> Message:
        """A message as its receiver sees it."""
        return message

    def keep(self, id: str, state: dict[str, Any]) -> None:
        """Store a client's state until it is next needed."""
        self.states[id] = state
        if self.offload is not None:
            self.offload.keep(id, state)

    def stored(self, id: str) -> dict[str, Any]:
        """A client's state as it was stored."""
        state: dict[str, Any] = self.states[id]
        return state

    # -- views, losses, errors -----------------------------------------------------------------------------------

    def view(self, id: str) -> ClientView:
        """What a client has at hand now; its state is made when it is first met."""
        setup = self.setup
        client = self.federation[id]
        view: ClientView = ClientView(
            seed=setup.seed, round=self.number, net=setup.net_of(id), task=setup.federation.task,
            training=setup.training, state={}, id=id, train=client.train,
        )  # fmt: skip
        if id in self.states:
            view.state = self.stored(id)
            return view
        # As round 0: a client's first state must not depend on when somebody first looks at it.
        view.round = 0
        if isinstance(setup.method, PeerMethod):
            setup.method.join(PeerView(**vars(view), neighbours=()))
        else:
            setup.method.join(view)
        view.round = self.number
        return view

    def _lost(self, id: str, phase: str) -> str:
        """ "there" or "back" when this exchange is lost on the way to the client or back, else ""."""
        if self.setup.dropout == 0:
            return ""
        draw = rng(self.setup.seed, id, self.number, phase, "dropout").random()
        return "" if draw >= self.setup.dropout else ("there" if draw < self.setup.dropout / 2 else "back")

    def _count(self, phase: str, sent: Sequence[tuple[str, str, Message]]) -> None:
        with self.timed("messages"):
            self.traffic += self.scales.weigh(self.number, phase, sent)

    @contextmanager
    def _named(self, id: str, phase: str) -> Iterator[None]:
        """Say at which client and when a user's error happened."""
        try:
            yield
        except RunError:
            raise  # the machine's doing, not this client's
        except FedkinError as error:
            raise MethodError(f"round {self.number}, client {id!r}, phase {phase!r}: {error}") from None

    # -- evaluation and state ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Score]:
        with self.timed("evaluate"), one_thread(), exact(self.device):
            models = self.models()
            jobs = list(self.scores.jobs(models, self.federation, self.setup.net_of, self.number))
            for job, results in self.executor.run(jobs):
                assert isinstance(job, ScoreJob)
                self.scores.take(job, results, models, self.federation)
                if self.offload is not None:
                    self.offload.rest(job.params.values())
            return {id: self.scores.known[id][2] for id in models}

    def models(self) -> dict[str, Params]:
        """What every honest client of this round would use now, those that never take part included."""
        unseen = self.welcomed(self.federation.unseen)
        honest = [id for id in self.federation if id not in self.adversaries]
        return {id: unseen[id] if id in unseen else self.model(id) for id in honest}

    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""
        if not self.federation[id].seen:
            return self.welcomed((id,))[id]
        method = self.setup.method
        if isinstance(method, PeerMethod):
            return method.use(self._peer(id))
        return method.use(self.view(id), method.offer(self.server, id))

    def welcomed(self, ids: Sequence[str]) -> dict[str, Params]:
        """Models of clients that never took part. Nothing that happens here is kept, lost or counted."""
        if not ids:
            return {}
        method, setup = self.setup.method, self.setup
        held = self.traffic, self.steps, self.work, self.server
        self.traffic, self.steps, self.work = [], {}, Work(self.work.operations)
        self.server = replace(
            held[-1], state={name: _copied(item) for name, item in held[-1].state.items()}, clients=tuple(ids)
        )
        self.setup = replace(setup, dropout=0.0)
        try:
            if isinstance(method, PeerMethod):
                return self._welcomed_peers(method, ids)
            flow, answer = method.welcome(self.server, ids), None
            while True:
                try:
                    request = flow.send(answer)
                except StopIteration as stop:
                    return {id: method.use(self.view(id), stop.value[id]) for id in ids}
                answer = self._ask(checked_ask(method, request, ids))
        finally:
            for id in ids:
                self.states.pop(id, None)
                if self.offload is not None:
                    self.offload.drop(id)
            self.traffic, self.steps, self.work, self.server = held
            self.setup = setup

    def _welcomed_peers(self, method: PeerMethod, ids: Sequence[str]) -> dict[str, Params]:
        views = {id: self._peer(id) for id in ids}
        flows = {id: method.welcome(views[id]) for id in ids}
        for _ in self._drive(ids, lambda id: (views[id], flows[id]), "welcome"):
            pass
        return {id: method.use(views[id]) for id in ids}

    def state(self) -> dict[str, Any]:
        states = {id: self.stored(id) for id in sorted(self.states)}
        return {"round": self.number, "server": self.server.state, "clients": states}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.turn_to(state["round"])
        self.server.state = dict(state["server"])
        self.scores = Scores()
        self.states = {}
        for id, kept in state["clients"].items():
            self.keep(id, kept)

    def close(self) -> None:
        self.executor.close()
        if self.offload is not None:
            self.offload.close()

    @property
    def mode(self) -> str:
        return self.executor.chosen

    @property
    def measured(self) -> dict[str, float]:
        return self.executor.measured


def _offload(setup: Setup) -> Offload | None:
    """Where states go above the limit; initial parameters are everyone's, and stay."""
    if setup.state_limit_mb is None:
        return None
    nets = [setup.net, *(setup.nets or {}).values()]
    return Offload(int(setup.state_limit_mb * 2**20), [tensor for net in nets for tensor in net.initial.values()])


def _copied(tree: Any) -> Any:
    """A state that may be written to; parameters stay the objects they are, for no flow changes one in place."""
    if not isinstance(tree, dict) or any(isinstance(item, Tensor) for item in tree.values()):
        return tree
    return {name: _copied(item) for name, item in tree.items()}
