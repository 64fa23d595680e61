"""The local engine: a whole federation in one process, one client after another."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from fedkin.engines.base import SERVER, Engine, Outcome, Score, Setup, Traffic, checked_ask
from fedkin.errors import FedkinError, MethodError
from fedkin.flow import Ask, Fit, Fitted, Flow, Infer, Message, Params, PeerMethod, ServerMethod, Share
from fedkin.keys import rng
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.sgd import fit, infer, score
from fedkin.views import ClientView, PeerView

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Clients run in this process, in the order of their ids, each with its own samples and state only."""

    name: ClassVar[str] = "local"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.module = setup.net.scratch()
        self.number = 0
        self.states: dict[str, Any] = {}
        self.traffic: list[Traffic] = []
        self.samples: dict[str, int] = {}
        # Scores are kept with the very parameters that they belong to: an untouched model is not run again.
        self.scores: dict[str, tuple[Params, Score]] = {}

    # -- rounds ---------------------------------------------------------------------------------------------

    def round(self, number: int) -> Outcome:
        self.number = number
        self.traffic, self.samples = [], {}
        self.server.round, self.server.graph = number, None
        with _one_thread():
            if isinstance(self.setup.method, PeerMethod):
                sampled = self._peers_round(self.setup.method)
            else:
                sampled = self._server_round(self.setup.method)
        return Outcome(number, tuple(sampled), self.server.graph, tuple(self.traffic), dict(self.samples))

    def _server_round(self, method: ServerMethod) -> list[str]:
        sampled = method.sample(self.server)
        flow = method.round(self.server, sampled)
        answer: Any = None
        while True:
            with self.timed("graph"):
                try:
                    request = flow.send(answer)
                except StopIteration:
                    return sampled
            answer = self._ask(checked_ask(method, request, self.setup.federation))

    def _ask(self, ask: Ask) -> dict[str, Message]:
        replies = {}
        for id in self.order(ask.messages):
            message = ask.messages[id]
            lost = self._lost(id, ask.phase)
            self._count(SERVER, id, ask.phase, message)
            if lost == "there":
                continue
            reply = self._phase(id, ask.phase, self.carried(message))
            self._count(id, SERVER, ask.phase, reply)
            if lost != "back":
                replies[id] = self.carried(reply)
        return replies

    def _phase(self, id: str, phase: str, message: Message) -> Message:
        """Run one phase at one client."""
        with self.timed("local"):
            view = self.view(id)
            try:
                run = getattr(self.method(), phase)(view, message)
                reply = self._drive(view, phase, run) if hasattr(run, "send") else run
            except FedkinError as error:
                raise self._named(error, id, phase) from None
        if not isinstance(reply, Message):
            raise MethodError(f"phase {phase!r} at client {id!r} must return a Message, got {type(reply).__name__}")
        self.keep(id, view.state)
        return reply

    def _drive(self, view: ClientView, phase: str, flow: Flow) -> Any:
        """Run a client's flow to its end."""
        answer: Any = None
        step = 0
        while True:
            try:
                request = flow.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = self._work(view, phase, step, request)
            step += 1

    def _work(self, view: ClientView, phase: str, step: int, request: Any) -> Any:
        """Carry out one Fit or Infer of a client; `step` numbers them within the phase."""
        samples = getattr(request, "data", None) or view.train
        net = self.setup.net
        if isinstance(request, Infer):
            return infer(net, self.module, request.params, request.what, samples)
        if not isinstance(request, Fit):
            raise MethodError(f"a client's phase yields Fit or Infer, got {type(request).__name__}")
        fitted: Fitted = fit(
            net, self.module, request.params, request.loss or CrossEntropy(), samples,
            request.training or view.training, request.extras, request.carry,
            view.rng(f"{phase}.fit{step}"),
        )  # fmt: skip
        self.samples[view.id] = self.samples.get(view.id, 0) + fitted.samples
        return fitted

    # -- peers ----------------------------------------------------------------------------------------------

    def _peers_round(self, method: PeerMethod) -> list[str]:
        """Move all peers in step: each Share waits for everyone's, then every inbox is delivered."""
        count = self.setup.training.count(len(self.server.clients))
        drawn = self.server.rng("sample").permutation(len(self.server.clients))[:count]
        active = sorted(self.server.clients[i] for i in drawn)
        views = {id: self._peer(id, active) for id in self.order(active)}
        flows = {id: self.method().round(view) for id, view in views.items()}  # type: ignore[union-attr,call-arg]
        inbox: dict[str, Any] = dict.fromkeys(flows)
        steps = dict.fromkeys(flows, 0)
        while flows:
            posts: dict[str, Share] = {}
            for id in list(flows):
                share = self._until_share(views[id], flows[id], inbox[id], steps)
                if share is None:
                    del flows[id]
                    self.keep(id, views[id].state)
                else:
                    posts[id] = share
            inbox = {id: {} for id in flows}
            for sender in self.order(posts):
                self._deliver(views[sender], posts[sender], inbox)
        return active

    def _until_share(self, view: PeerView, flow: Flow, answer: Any, steps: dict[str, int]) -> Share | None:
        with self.timed("local"):
            try:
                while True:
                    request = flow.send(answer)
                    if isinstance(request, Share):
                        return request
                    answer = self._work(view, "round", steps[view.id], request)
                    steps[view.id] += 1
            except StopIteration:
                return None
            except FedkinError as error:
                raise self._named(error, view.id, "round") from None

    def _deliver(self, sender: PeerView, share: Share, inbox: dict[str, Any]) -> None:
        if isinstance(share.message, Message):
            to = sender.neighbours if share.to is None else share.to
            letters: Mapping[str, Message] = dict.fromkeys(to, share.message)
        else:
            letters = share.message
        strangers = sorted(set(letters) - set(sender.neighbours))
        if strangers:
            raise MethodError(f"peer {sender.id!r} shares with {strangers[:5]}, which are not its neighbours")
        for receiver, letter in letters.items():
            self._count(sender.id, receiver, "share", letter)
            if receiver in inbox and not self._lost(sender.id, f"share to {receiver}"):
                inbox[receiver][sender.id] = self.carried(letter)

    def _peer(self, id: str, active: list[str]) -> PeerView:
        view = self.view(id)
        return PeerView(**vars(view), neighbours=tuple(other for other in active if other != id))

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

    def stored(self, id: str) -> dict[str, Any]:
        """A client's state as it was stored."""
        state: dict[str, Any] = self.states[id]
        return state

    # -- views, losses, errors -----------------------------------------------------------------------------------

    def view(self, id: str) -> ClientView:
        """What a client has at hand now; its state is made when it is first met."""
        setup = self.setup
        client = setup.federation[id]
        view = ClientView(
            seed=setup.seed, round=self.number, net=setup.net, task=setup.federation.task, training=setup.training,
            state={}, id=id, train=client.train,
        )  # fmt: skip
        if id in self.states:
            view.state = self.stored(id)
        elif isinstance(setup.method, PeerMethod):
            setup.method.join(PeerView(**vars(view), neighbours=()))
        else:
            setup.method.join(view)
        return view

    def _lost(self, id: str, phase: str) -> str:
        """ "there" or "back" when this exchange is lost on the way to the client or back, else ""."""
        if self.setup.dropout == 0:
            return ""
        draw = rng(self.setup.seed, id, self.number, phase, "dropout").random()
        return "" if draw >= self.setup.dropout else ("there" if draw < self.setup.dropout / 2 else "back")

    def _count(self, sender: str, receiver: str, phase: str, message: Message) -> None:
        if len(message):
            self.traffic.append(Traffic(self.number, sender, receiver, phase, message.nbytes, message.floats))

    def _named(self, error: FedkinError, id: str, phase: str) -> MethodError:
        return MethodError(f"round {self.number}, client {id!r}, phase {phase!r}: {error}")

    # -- evaluation and state ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Score]:
        with self.timed("evaluate"), _one_thread():
            return {id: self._score(id) for id in self.setup.federation}

    def _score(self, id: str) -> Score:
        params = self.model(id)
        kept = self.scores.get(id)
        if kept is not None and kept[0] is params:
            return kept[1]
        test = self.setup.federation[id].test
        loss, right = score(self.setup.net, self.module, params, test)
        self.scores[id] = params, Score(len(test), loss, right)
        return self.scores[id][1]

    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""
        method, view = self.setup.method, self.view(id)
        if isinstance(method, PeerMethod):
            return method.use(PeerView(**vars(view), neighbours=()))
        return method.use(view, method.offer(self.server, id))

    def state(self) -> dict[str, Any]:
        return {"server": self.server.state, "clients": {id: self.stored(id) for id in sorted(self.states)}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.server.state = dict(state["server"])
        self.scores = {}
        self.states = {}
        for id, kept in state["clients"].items():
            self.keep(id, kept)


class _one_thread:
    """One OpenMP thread inside: more of them change the bits, and on a busy machine cost rather than help."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


