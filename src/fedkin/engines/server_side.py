"""The server's side of a run: its view, its state and the flows of its method, without input or output."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedkin.engines.alone import Alone
from fedkin.engines.answers import answer_to
from fedkin.engines.blame import forgotten, place_in, place_of
from fedkin.engines.roster import Roster
from fedkin.engines.setup import Plan
from fedkin.engines.states import apart
from fedkin.errors import MethodError, nearest
from fedkin.flow import Ask, Message, ServerFlow, ServerMethod
from fedkin.learning.aggregate import Mean
from fedkin.views import ServerView, no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset

__all__ = ["ServerSide"]


class ServerSide:
    """The server with its view and the flows of its method; for peer methods it only draws the peers of a round."""

    def __init__(self, plan: Plan, roster: Roster, public: Callable[[str], Dataset] = no_public_data) -> None:
        self.method, self.whole, self.training = plan.method, roster, plan.training
        self.roster = roster.at(1)
        self.known = frozenset(self.roster.seen)
        self.view: ServerView = ServerView(
            seed=plan.seed, round=0, net=plan.net, task=plan.task, training=plan.training, state={},
            clients=self.roster.seen, planted=self.roster.planted, public=public,
        )  # fmt: skip
        self.serving = (
            Alone(plan.method) if plan.engine.alone and isinstance(plan.method, ServerMethod) else plan.method
        )
        if isinstance(self.serving, ServerMethod | Alone):
            self.serving.start(self.view)

    def turn_to(self, number: int) -> None:
        """Set the current round and its clients; the round has no graph and no figures yet."""
        self.view.round, self.view.graph, self.view.info = number, None, {}
        self.view.training = self.training.at(number)
        now = self.whole.at(number)
        if now is not self.roster:
            self.roster = now
            self.view.clients, self.view.planted = now.seen, now.planted
            self.known = frozenset(now.seen)

    def round(self) -> ServerFlow[list[str]]:
        """Yield the requests of this round, after a check of each; returns the ids that were sampled."""
        method = self.serving
        assert isinstance(method, ServerMethod | Alone)
        yield from self._checked(method.prepare(self.view), self.view.clients)
        sampled = method.sample(self.view)
        yield from self._checked(method.round(self.view, sampled), self.known)
        return sampled

    def offer(self, id: str) -> Message:
        """Return the message that this client needs for its current model; it is empty between peers."""
        return self.serving.offer(self.view, id) if isinstance(self.serving, ServerMethod | Alone) else Message()

    def welcome(self, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        """Yield requests to clients that never took part; returns their offers, and keeps the server's state."""
        assert isinstance(self.serving, ServerMethod | Alone)
        view = replace(self.view, state=apart(self.view.state), clients=tuple(ids))
        offers: Mapping[str, Message] = yield from self._checked(self.serving.welcome(view, ids), ids)
        return {id: offers[id] for id in ids}

    def _checked(self, flow: ServerFlow[Any], clients: Container[str]) -> ServerFlow[Any]:
        answer: Any = None
        if not hasattr(flow, "send"):
            forgotten(self.method, "round", flow)
            raise MethodError(
                f"{place_in(self.method, 'round')}a server's round yields Ask, and this one never yields: write "
                "`replies = yield from Ask(...)`, or `yield from ()` if nothing is asked"
            )
        while True:
            try:
                request = flow.send(answer)
            except StopIteration as stop:
                return stop.value
            try:
                asked = self._ask(request, clients)
            except MethodError as error:
                raise MethodError(f"{place_of(flow)}{error}") from None
            answer = answer_to(asked, (yield asked))

    def _ask(self, request: Any, clients: Container[str]) -> Ask:
        """Return the request of a server's flow, if it is valid; raises MethodError."""
        assert isinstance(self.method, ServerMethod)
        where = f"method {self.method.name!r}"
        if not isinstance(request, Ask):
            raise MethodError(f"{where}: a server's round yields Ask, got {type(request).__name__}")
        if request.phase not in self.method.phases():
            raise MethodError(
                f"{where}: no phase {request.phase!r}: declare the method of that name with @phase; "
                + nearest(request.phase, self.method.phases())
            )
        unknown = sorted(id for id in request.messages if id not in clients)
        if unknown:
            raise MethodError(f"{where}: phase {request.phase!r} asks unknown clients {unknown[:5]}")
        wrong = [id for id, message in request.messages.items() if not isinstance(message, Message)]
        if wrong:
            raise MethodError(f"{where}: phase {request.phase!r} sends no Message to {wrong[:5]}")
        if not isinstance(request.mean, Mean | None):
            kind = type(request.mean).__name__
            raise MethodError(f"{where}: phase {request.phase!r}: mean is a {kind}: write mean=Mean('params', 'n')")
        return request
