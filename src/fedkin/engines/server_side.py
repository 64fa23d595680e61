"""The server's side of a run: its view, its state and the flows of its method, without input or output."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedkin.engines.client_list import Roster
from fedkin.engines.client_side import apart
from fedkin.engines.failures import forgotten, place_in, place_of
from fedkin.engines.setup import Setup
from fedkin.errors import MethodError, nearest
from fedkin.flow import Ask, Mean, Message, Method, ServerFlow, ServerMethod
from fedkin.views import ServerView


class Alone:
    """The server's part of `method` for federations of one client each; the clients' part is the method's own.

    The clients of a round are drawn uniformly, as for Local. The requests of all servers go out together. State:
    {client id: the state of its server}.
    """

    def __init__(self, method: ServerMethod) -> None:
        self.method = method

    def leave(self, server: ServerView[Any], ids: Collection[str]) -> None:
        """Forget the servers of clients that have left."""
        server.state = {id: state for id, state in server.state.items() if id not in ids}

    def start(self, server: ServerView[Any]) -> None:
        """Begin with no server; a client's is made when it is first needed."""

    def sample(self, server: ServerView[Any]) -> list[str]:
        """Draw as every method without a draw of its own."""
        return Method.sample(self.method, server)

    def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
        """Run the round of each sampled client's server; those that ask for the same phase ask at once."""
        views = {id: self._own(server, id) for id in sampled}
        flows = {id: self._whole(view, id) for id, view in views.items()}
        answers: dict[str, Any] = {}
        while flows:
            asked: dict[str, dict[str, Message]] = {}
            asks: dict[str, Ask] = {}
            for id, flow in list(flows.items()):
                try:
                    ask = flow.send(answers.get(id))
                except StopIteration:
                    del flows[id]
                    continue
                asked.setdefault(ask.phase, {}).update(ask.messages)
                asks[id] = ask
            answers = {}
            for phase, messages in asked.items():
                replies = yield from Ask(phase, messages)
                answers |= {id: {id: replies[id]} if id in replies else {} for id in messages}
            # A server that asked nobody is told that nobody answered.
            answers = {id: asks[id].answer(answers.get(id, {})) for id in flows}
        for id, view in views.items():
            server.state[id] = view.state

    def offer(self, server: ServerView[Any], id: str) -> Message:
        """Return what its own server offers the client."""
        return self.method.offer(self._own(server, id), id)

    def welcome(self, server: ServerView[Any], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Offer each client what a server offers that never heard of anyone."""
        offers: dict[str, Message] = {}
        for id in ids:
            offered = yield from self.method.welcome(self._own(server, id), [id])
            offers[id] = offered[id]
        return offers

    def _whole(self, view: ServerView[Any], id: str) -> ServerFlow[None]:
        yield from self.method.round(view, [id])

    def _own(self, server: ServerView[Any], id: str) -> ServerView[Any]:
        """Return the view of this client's server, with its state."""
        planted = None if server.planted is None or id not in server.planted else {id: server.planted[id]}
        training = server.training.model_copy(update={"clients_per_round": "all"})
        known = server.state.get(id)
        view = replace(
            server, clients=(id,), planted=planted, training=training, state={} if known is None else known, graph=None,
            info={},
        )  # fmt: skip
        if known is None:
            self.method.start(view)
        return view


class ServerSide:
    """The server with its view and the flows of its method; for peer methods it only draws the peers of a round."""

    def __init__(self, setup: Setup, roster: Roster) -> None:
        self.method, self.whole, self.training = setup.method, roster, setup.training
        self.roster = roster.at(1)
        self.known = frozenset(self.roster.seen)
        self.joined: tuple[str, ...] = ()
        self.left: tuple[str, ...] = ()
        self.view: ServerView = ServerView(
            seed=setup.seed, round=0, net=setup.net, task=setup.task, training=setup.training, state={},
            clients=self.roster.seen, planted=self.roster.planted, public=setup.public,
            signature_noise=setup.privacy.signature_noise,
        )  # fmt: skip
        self.serving: ServerMethod | Alone | None = None
        if isinstance(setup.method, ServerMethod):
            self.serving = Alone(setup.method) if setup.engine.alone else setup.method
            self.serving.start(self.view)

    def turn_to(self, number: int) -> None:
        """Set the current round and its clients; the round has no graph and no figures yet."""
        self.view.round, self.view.graph, self.view.info, self.view.drifted = number, None, {}, ()
        self.view.training = self.training.at(number)
        now, before = self.whole.at(number), self.known
        self.joined, self.left = (), ()
        if now is self.roster:
            return
        self.roster, self.known = now, frozenset(now.seen)
        self.view.clients, self.view.planted = now.seen, now.planted
        self.joined, self.left = tuple(sorted(self.known - before)), tuple(sorted(before - self.known))
        if self.left and self.serving is not None:
            self.serving.leave(self.view, frozenset(self.left))

    @property
    def events(self) -> dict[str, tuple[str, ...]]:
        """The clients to which something happened in this round (see `Outcome`)."""
        events = {"joined": self.joined, "left": self.left, "drifted": tuple(sorted(self.view.drifted))}
        return {what: ids for what, ids in events.items() if ids}

    def round(self) -> ServerFlow[list[str]]:
        """Yield the requests of this round, after a check of each; returns the ids that were sampled."""
        assert self.serving is not None
        sampled = self.serving.sample(self.view)
        yield from self._checked(self.serving.round(self.view, sampled), self.known)
        return sampled

    def offer(self, id: str) -> Message:
        """Return the message that this client needs for its current model; it is empty between peers."""
        return Message() if self.serving is None else self.serving.offer(self.view, id)

    def welcome(self, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        """Yield requests to clients that never took part; returns their offers, and keeps the server's state."""
        assert self.serving is not None
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
            answer = asked.answer((yield asked))

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
