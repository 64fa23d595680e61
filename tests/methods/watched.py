"""A local run of a server's method that can be watched: what the server asks, what it is answered, its state.

It listens where the contract is, inside the method's own flow, so it knows nothing of the engine. It can lose answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedkin.engines import LocalEngine, Setup
from fedkin.engines.base import Outcome
from fedkin.flow import Message, Params, ServerMethod
from fedkin.views import ServerView

Asked = tuple[str, dict[str, Message], dict[str, Message]]


class Watched:
    """asks: (phase, messages by client id, replies by client id) of every Ask so far. server: the server's view.

    lose(phase, id): whether this client's reply is lost; may be set at any time.
    """

    server: ServerView[Any]

    def __init__(self, setup: Setup) -> None:
        self.asks: list[Asked] = []
        self.lose: Callable[[str, str], bool] = lambda phase, id: False
        method = setup.method
        assert isinstance(method, ServerMethod)
        self.engine = LocalEngine(replace(setup, method=self._listening(method)))
        self.federation = setup.federation
        self.initial: Params = self.server.initial
        self.trainable = self.server.net.trainable

    def _listening(self, method: ServerMethod) -> ServerMethod:
        watch, kind = self, type(method)

        class Listening(kind):  # type: ignore[misc, valid-type]
            def start(self, server: ServerView[Any]) -> None:
                watch.server = server
                super().start(server)

            def round(self, server: ServerView[Any], sampled: Sequence[str]) -> Any:
                watch.server = server
                flow, answer = super().round(server, sampled), None
                while True:
                    try:
                        request = flow.send(answer)
                    except StopIteration:
                        return
                    replies = yield request
                    answer = {id: reply for id, reply in replies.items() if not watch.lose(request.phase, id)}
                    watch.asks.append((request.phase, dict(request.messages), answer))

        made = Listening(**method.model_dump())
        assert isinstance(made, ServerMethod)
        return made

    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""
        return self.engine.round(number)

    def rounds(self, count: int) -> Watched:
        """Run rounds 1 to `count`."""
        for number in range(1, count + 1):
            self.round(number)
        return self

    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""
        return self.engine.model(id)

    def replies(self, phase: str) -> dict[str, Message]:
        """What the clients answered when this phase was last asked for."""
        return next(replies for asked, _, replies in reversed(self.asks) if asked == phase)
