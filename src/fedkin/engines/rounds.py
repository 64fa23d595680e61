"""The rounds of a federation: the server, the site of its clients, and a transport between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.base import Engine, Outcome, Score, Traffic
from fedkin.engines.exchange import Exchange, Skipped
from fedkin.engines.failures import TooFew, raise_if_all
from fedkin.engines.faults import Faulty
from fedkin.engines.forging import Forgery
from fedkin.engines.observer import Observer
from fedkin.engines.post import Post
from fedkin.engines.roster import Roster
from fedkin.engines.server_side import ServerSide
from fedkin.engines.setup import Plan, Setup
from fedkin.engines.site import Site
from fedkin.engines.states import apart
from fedkin.engines.transport import Transport
from fedkin.flow import Message, Params, PeerMethod
from fedkin.graph import network
from fedkin.views import ServerView, no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset
    from fedkin.engines.executors.jobs import TrainingPath

__all__ = ["Rounds"]


class Rounds(Engine):
    """An engine whose messages are recorded, carried to the site of the clients, answered there, and carried back.

    plan: what all participants know. roster: the clients. public(name): a data set that the server owns. transport:
    replaces the engine's own transport (a test may lose chosen messages). observers: see every message. forgery: what
    simulated adversaries change in their messages.
    """

    setup: Setup | Plan
    adversaries: frozenset[str] = frozenset()
    undoes = True  # whether a round may be undone: a copy of the server's state takes time for every client

    def __init__(
        self, plan: Plan, roster: Roster, public: Callable[[str], Dataset] = no_public_data, *,
        transport: Transport | None = None, observers: Sequence[Observer] = (), forgery: Forgery | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.clock = Clock("local", "graph", "evaluate", "messages")
        self.server_side = ServerSide(plan, roster, public)
        self.site = self.make_site()
        carrier = transport or self.make_transport()
        wrong = Faulty(carrier, plan.faults, plan.seed, plan.training.rounds)
        self.post = Post(wrong if plan.faults.on_the_way else carrier, self.clock, observers)
        self.exchange = Exchange(plan, self.site, self.post, forgery=forgery)
        # For clients that never took part: nothing goes wrong, nothing is recorded.
        self.unlost = Exchange(plan, self.site, Post(carrier, self.clock, observers), patient=False)

    def make_site(self) -> Site:
        """Return the site of the clients."""
        raise TypeError(f"{type(self).__name__} does not say where its clients live")

    def make_transport(self) -> Transport:
        """Return the transport of messages."""
        return Transport()

    @property
    def seconds(self) -> dict[str, float]:
        return self.clock.seconds

    @property
    def transport(self) -> Transport:
        """What carries messages now."""
        return self.post.transport

    @property
    def traffic(self) -> list[Traffic]:
        """The messages of this round."""
        return self.post.traffic

    @property
    def server(self) -> ServerView:
        return self.server_side.view

    @property
    def roster(self) -> Roster:
        return self.server_side.roster

    @property
    def everyone(self) -> Roster:
        return self.server_side.whole

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id; a client has none before its first view."""
        return self.site.states

    def round(self, number: int) -> Outcome:
        late, skipped, sampled = self.transport.state(), "", []
        self.turn_to(number)
        self.exchange.late(self.transport.arrived(number), number)
        before = apart(self.server.state) if self.undoes else {}
        with self.site.exact():
            try:
                sampled = self._peers_round() if isinstance(self.plan.method, PeerMethod) else self._server_round()
            except Skipped as error:
                skipped = str(error)
                self._undo(before)
            except TooFew:
                self._undo(before)
                self.turn_to(number - 1)
                self.transport.restore(late)
                raise
        work = self.site.work
        return Outcome(
            number, tuple(sampled), self.server.graph, tuple(self.traffic), work.samples, work.inferred, work.flops,
            skipped,
        )  # fmt: skip

    def _undo(self, before: dict[str, Any]) -> None:
        """Go back to the states before this round."""
        self.server.state, self.server.graph, self.server.info = before, None, {}
        self.site.undo()

    def turn_to(self, number: int) -> None:
        """Set the current round for all participants."""
        self.server_side.turn_to(number)
        self.site.turn_to(number)
        self.post.traffic, self.unlost.post.traffic = [], []
        self.missed = ()

    def _server_round(self) -> list[str]:
        flow, answer = self.server_side.round(), None
        for turn in itertools.count():
            with self.clock.of("graph"):
                try:
                    ask = flow.send(answer)
                except StopIteration as stop:
                    sampled: list[str] = stop.value
                    return sampled
            answer = self.exchange.answers(ask, self.server.round, turn)
            for observer in self.post.observers:
                observer.answered(self.server.round, ask, answer)
        raise AssertionError("unreachable")

    def _peers_round(self) -> list[str]:
        """Run all peers in step: each exchange waits for the messages of all, then all inboxes are delivered."""
        method, server = self.plan.method, self.server
        assert isinstance(method, PeerMethod)
        active = method.sample(server)
        near = network(self.plan.engine.reach, server.clients, self.plan.seed, server.round, server.planted)
        taking = frozenset(active)
        self.site.begin({id: taking.intersection(near[id]) for id in self.transport.order(active, server.round)})
        inboxes: dict[str, dict[str, Message] | None] = dict.fromkeys(self.transport.order(active, server.round))
        for turn in itertools.count():
            if not inboxes:
                break
            inboxes = self.exchange.step(inboxes, server.round, turn)
        server.graph = method.graph_of(self.exchange.reports(server.clients, server.round))
        return active

    def evaluate(self) -> dict[str, Score]:
        with self.clock.of("evaluate"), self._looking():
            scores = self.site.scores(offers := self._offers())
            self._missed(len(offers))
            return scores

    def models(self) -> dict[str, Params]:
        with self._looking():
            models = self.site.models(offers := self._offers())
            self._missed(len(offers))
            return models

    def model(self, id: str) -> Params:
        with self._looking():
            models = self.site.models(self._offer(id))
            self._missed(1)
            return models[id]

    def features(self, id: str) -> Message:
        with self._looking():
            return self.site.features(id, self._offer(id)[id])

    def _missed(self, asked: int) -> None:
        """Note who was asked for its model and failed; raises the first error if all did."""
        failed = self.exchange.failed(self.server.round, self.unlost.post)
        self.missed = tuple(row for row in self.unlost.post.traffic if row.missing)
        raise_if_all(asked, failed)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Whoever looks at models leaves no trace at clients that never took part."""
        try:
            with self.site.exact():
                yield
        finally:
            self.site.forget(self.roster.unseen)

    def _offers(self) -> dict[str, Message]:
        """Return the offers to all evaluated clients: honest clients, and clients that never take part."""
        unseen, offer = self._welcomed(self.roster.unseen), self.server_side.offer
        return {id: unseen[id] if id in unseen else offer(id) for id in self.roster if id not in self.adversaries}

    def _offer(self, id: str) -> dict[str, Message]:
        return {id: self.server_side.offer(id)} if self.roster[id].seen else self._welcomed((id,))

    def _welcomed(self, ids: Sequence[str]) -> dict[str, Message]:
        """Return the offers to clients that never took part; here no message is lost, and nothing is recorded."""
        if not ids:
            return {}
        with self.site.uncounted():
            if isinstance(self.plan.method, PeerMethod):
                self.site.welcome(ids)
                return {id: Message() for id in ids}
            flow, answer = self.server_side.welcome(ids), None
            while True:
                try:
                    ask = flow.send(answer)
                except StopIteration as stop:
                    return dict(stop.value)
                answer = self.unlost.answers(ask, self.server.round, 0)

    def state(self) -> dict[str, Any]:
        late, clients = self.transport.state(), dict(sorted(self.site.states.items()))
        state = {"round": self.server.round, "server": self.server.state, "clients": clients}
        return {**state, "late": late} if late else state

    def restore(self, state: Mapping[str, Any]) -> None:
        self.turn_to(state["round"])
        self.server.state = dict(state["server"])
        self.site.restore(state["round"], state["clients"])
        self.transport.restore(state.get("late", []))

    def close(self) -> None:
        self.site.close()

    @property
    def mode(self) -> str:
        return self.site.mode

    @property
    def training_paths(self) -> list[TrainingPath]:
        return self.site.training_paths
