"""The method without exchange, as a control: every client has a server of its own (`run.alone`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedkin.flow import Ask, Message, Method, ServerFlow, ServerMethod
from fedkin.views import ServerView


class Alone:
    """The server side of `method` with a separate server for each client; the client side is that of `method`.

    The clients of a round are drawn uniformly, as for Local. The requests of all servers go out together. State:
    {client id: the state of its server}.
    """

    def __init__(self, method: ServerMethod) -> None:
        self.method = method

    def leave(self, server: ServerView[Any], ids: Collection[str]) -> None:
        """Forget the servers of clients that have left."""
        server.state = {id: state for id, state in server.state.items() if id not in ids}

    def start(self, server: ServerView[Any]) -> None:
        """Begin without servers; the server of a client is made on first use."""

    def sample(self, server: ServerView[Any]) -> list[str]:
        """Draw the round's clients by the default `Method.sample`."""
        return Method.sample(self.method, server)

    def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
        """Run the round of each sampled client's server; requests of the same phase are sent together."""
        views = {id: self._server_of(server, id) for id in sampled}
        flows = {id: self.method.round(view, [id]) for id, view in views.items()}
        answers: dict[str, Any] = {}
        while flows:
            asks: dict[str, Ask] = {}
            for id, flow in list(flows.items()):
                try:
                    asks[id] = flow.send(answers.get(id))
                except StopIteration:
                    del flows[id]
            answers = yield from self._answers(asks)
        for id, view in views.items():
            server.state[id] = view.state

    def _answers(self, asks: Mapping[str, Ask]) -> ServerFlow[dict[str, Any]]:
        """Send the requests of each phase together; return the answer to each server."""
        # A server that asks nobody gets an empty answer.
        answers = {id: ask.answer({}) for id, ask in asks.items()}
        for phase in dict.fromkeys(ask.phase for ask in asks.values()):
            messages = {id: ask.messages[id] for id, ask in asks.items() if ask.phase == phase and ask.messages}
            replies = yield from Ask(phase, messages)
            answers |= {id: asks[id].answer({id: reply}) for id, reply in replies.items()}
        return answers

    def offer(self, server: ServerView[Any], id: str) -> Message:
        """Return the offer of the client's own server."""
        return self.method.offer(self._server_of(server, id), id)

    def welcome(self, server: ServerView[Any], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Return, for each client that never took part, the offer of a new server of its own."""
        offers: dict[str, Message] = {}
        for id in ids:
            offered = yield from self.method.welcome(self._server_of(server, id), [id])
            offers[id] = offered[id]
        return offers

    def _server_of(self, server: ServerView[Any], id: str) -> ServerView[Any]:
        """Return the view of this client's server, with its state."""
        planted = None if server.planted is None or id not in server.planted else {id: server.planted[id]}
        training = server.training.model_copy(update={"clients_per_round": "all"})
        state = server.state.get(id)
        view = replace(
            server, clients=(id,), planted=planted, training=training, state={} if state is None else state, graph=None,
            info={},
        )  # fmt: skip
        if state is None:
            self.method.start(view)
        return view
