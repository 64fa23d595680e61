"""The rounds of a federation: a server, the site of its clients, and the messages between them.

`Engine.round` resumes the server's flow; `Exchange.ask` sends the flow's requests to the site and returns the replies.
Messages that do not arrive or are refused, and replies of clients that fail, are missing; the log says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

from fedkin.engines.alone import Alone
from fedkin.engines.attacks import Forgery
from fedkin.engines.failures import Failure, TooFew, check_yields, place_in, place_of, raise_if_all
from fedkin.engines.releases import counted
from fedkin.engines.results import SERVER, Missing, Outcome, Traffic, Undelivered
from fedkin.engines.secure_sums import STEPS, GroupSum, check_phase, summed_names
from fedkin.engines.setup import Setup
from fedkin.engines.site import Site
from fedkin.engines.states import copy_for_flow
from fedkin.engines.transport import Envelope, Faulty, Inbox, MessageLog, Observer, Transport, Validator
from fedkin.errors import MethodError, nearest
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, AveragedReplies, Mean, Message, Params, PeerMethod, ServerFlow, ServerMethod
from fedkin.graph import network
from fedkin.learning.metrics import Score
from fedkin.views import ServerView

T = TypeVar("T")


class Skipped(Exception):
    """Too few clients answered, so the round is skipped."""


class Exchange:
    """Sends the requests of a server and the messages of peers to a site; checks and records messages and replies.

    applies_min_replies: whether `run.min_replies` and `run.on_missing` apply. forgery: how adversaries change their
    messages.
    """

    def __init__(
        self, setup: Setup, site: Site, log: MessageLog, *, applies_min_replies: bool = True,
        forgery: Forgery | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.site, self.log, self.forgery = setup, site, log, forgery
        self.applies_min_replies = applies_min_replies
        self.validator = Validator(setup)

    def ask(self, ask: Ask, round: int, turn: int) -> Mapping[str, Message]:
        """Return replies as the server receives them, in the order in which clients are served.

        Raises Skipped or TooFew if too few clients have answered.
        """
        settings = self.setup.engine
        needed = settings.needed(len(ask.messages)) if self.applies_min_replies else 0
        summed = self.setup.sums_securely
        if summed:
            check_phase(self.setup.method, ask.phase, ask.mean)
        if summed and ask.mean:
            replies = self._summed(ask, ask.mean, round, turn)
        else:
            replies = self._send_and_collect(ask, round, turn)
        if len(replies) >= needed:
            return replies
        words = (
            f"round {round}, phase {ask.phase!r}: {len(replies)} of {len(ask.messages)} clients answered, fewer than "
            f"the {needed} of run.min_replies"
        )
        raise TooFew(words) if settings.on_missing == "stop" else Skipped(words)

    def _send_and_collect(self, ask: Ask, round: int, turn: int) -> Mapping[str, Message]:
        """Send the requests, and return the valid replies that arrive."""
        order = self.log.transport.order(ask.messages, round)
        envelopes = [Envelope(round, ask.phase, turn, SERVER, id, ask.messages[id]) for id in order]
        requests = {envelope.receiver: envelope.message for envelope in self.log.send(envelopes)}
        inbox = Inbox(self.validator, round, turn, ask.messages, {SERVER: ask.phase})
        sent: Iterable[tuple[str, Message]] = self.site.replies(ask.phase, requests)
        if self.forgery:
            sent = self.forgery.replies(ask.phase, requests, dict(sent), round).items()
        averaged = self._streaming_mean(ask, order)
        replies: dict[str, Message] = {}
        add = replies.__setitem__ if averaged is None else averaged.add
        for id, reply in sent:
            for envelope in self.log.send([Envelope(round, ask.phase, turn, id, SERVER, reply)], inbox):
                add(id, envelope.message)
        self._stop_if_all(len(requests), self.failed(round), inbox)
        return replies if averaged is None else averaged

    def _streaming_mean(self, ask: Ask, order: Sequence[str]) -> AveragedReplies | None:
        """Return an empty answer for replies that are averaged as they arrive, and not kept; None: they are kept.

        This needs replies in the order of the ids, which nobody else reads.
        """
        needs_all = self.log.observers or self.forgery or self.setup.engine.min_replies or order != sorted(order)
        return None if ask.mean is None or needs_all else AveragedReplies(ask.mean)

    def _summed(self, ask: Ask, mean: Mean, round: int, turn: int) -> Mapping[str, Message]:
        """Ask for one secure sum in each group; clients without a group are asked as usual."""
        groups: dict[str, dict[str, Message]] = {}
        alone: dict[str, Message] = {}
        for id, message in ask.messages.items():
            group = mean.group_of(id)
            (alone if group is None else groups.setdefault(group, {}))[id] = message
        least = self.setup.privacy.min_members
        sums = {group: GroupSum(mean, ask.phase, asked, least) for group, asked in sorted(groups.items())}
        for step in STEPS:
            self._ask_sums(step, sums.values(), round, turn)
        averaged = AveragedReplies(mean)
        if alone:
            for id, reply in self._send_and_collect(Ask(ask.phase, alone), round, turn).items():
                averaged.add(id, reply)
        for group, group_sum in sums.items():
            self._add_sum(averaged, group, group_sum, round)
        return averaged

    def _ask_sums(self, step: str, sums: Collection[GroupSum], round: int, turn: int) -> None:
        """Send the requests of a step of all sums together, and give each sum its answers."""
        messages = {id: message for group_sum in sums for id, message in group_sum.requests.items()}
        answers = self._send_and_collect(Ask(step, messages), round, turn) if messages else {}
        for group_sum in sums:
            group_sum.take({id: answers[id] for id in group_sum.asked if id in answers})

    def _add_sum(self, averaged: AveragedReplies, group: str, group_sum: GroupSum, round: int) -> None:
        """Add the mean of a group, or note that its members are missing."""
        if group_sum.failed:
            why = Undelivered(Missing.REFUSED, f"no secure sum: {group_sum.failed}")
            self.log.traffic += [Traffic(round, id, SERVER, group_sum.phase, 0, 0, *why) for id in group_sum.asked]
            return
        net = self.setup.net_of(next(iter(group_sum.replies)))
        names = summed_names(self.setup.method, group_sum.phase, group_sum.mean.field, net)
        params = group_sum.params({name: net.initial[name] for name in names})
        averaged.add_term(group, params, group_sum.weight, group_sum.replies)

    def step(
        self, inboxes: Mapping[str, dict[str, Message] | None], round: int, turn: int
    ) -> dict[str, dict[str, Message]]:
        """Deliver the peers' inboxes; returns the new inboxes of peers that have shared and not ended their round."""
        outboxes = self.site.step(inboxes)
        failures = self.failed(round)
        if self.forgery:
            outboxes = self.forgery.posts(outboxes, round, turn)
        phases = {id: box.phase for id, box in outboxes.items()}
        inbox = Inbox(self.validator, round, turn, dict.fromkeys(outboxes, Message()), phases)
        received: dict[str, dict[str, Message]] = {id: {} for id in outboxes}
        for sender in self.log.transport.order(outboxes, round):
            messages = outboxes[sender].messages.items()
            envelopes = [Envelope(round, phases[sender], turn, sender, id, message) for id, message in messages]
            for envelope in self.log.send(envelopes, inbox):
                received[envelope.receiver][sender] = envelope.message
        self._stop_if_all(len(inboxes), failures, inbox)
        return received

    def reports(self, ids: Iterable[str], round: int) -> dict[str, Message]:
        """Return the valid reports of peers, for the records."""
        messages = self.site.reports(ids)
        self.failed(round)
        reports = {}
        for id, message in messages.items():
            problem = self.validator.problem(id, "report", message, Message())
            if problem is None:
                reports[id] = message
            else:
                self.log.traffic.append(Traffic(round, id, SERVER, "report", 0, 0, Missing.REFUSED, problem.words))
        return reports

    def failed(self, round: int, log: MessageLog | None = None) -> list[Failure]:
        """Return the failures at the site, and record them in `log` (None: the log of this exchange)."""
        failures = self.site.failed()
        rows = [Traffic(round, failure.id, SERVER, failure.phase, 0, 0, *failure.cause) for failure in failures]
        (log or self.log).traffic += rows
        return failures

    def _stop_if_all(self, count: int, failures: Sequence[Failure], inbox: Inbox) -> None:
        """Raise the first error if all clients have failed, or if every message was refused."""
        if inbox.unsent and self.setup.engine.errors == "stop":
            raise next(iter(inbox.unsent.values()))
        raise_if_all(count, failures, inbox.unsent)
        if 1 < inbox.sent == len(inbox.refused) and not self.setup.faults.garbage:
            sender, phase, problem = inbox.refused[0]
            remedy = "; declare what this phase sends: @phase(...), or `shares`" if problem.kind == "form" else ""
            raise MethodError(
                f"{place_in(self.setup.method, phase)}round {inbox.round}, phase {phase!r}: every message was refused, "
                f"the first, of {sender!r}, because {problem.words}{remedy}"
            )


class Engine:
    """An engine runs the rounds of one method.

    setup: the setup with the nets that the method trains. all_clients: those of the run, also those that join later;
    roster: the clients of the current round. server: the server's view; without a server, the engine's view, which
    knows all peers. transport: replaces the engine's own (a test may lose chosen messages). observers: see every
    message. forgery: how simulated adversaries change their messages. missed: rows of the clients that failed in the
    last evaluation.
    """

    name: ClassVar[str]
    adversaries: frozenset[str] = frozenset()
    can_undo = True  # whether a round may be undone, which needs a slow copy of the server's state in each round

    def __init__(
        self, setup: Setup, all_clients: AnyRoster, site: Site, *, transport: Transport | None = None,
        observers: Sequence[Observer] = (), forgery: Forgery | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.all_clients, self.site, self.clock = setup, all_clients, site, site.clock
        self.roster = all_clients.at(1)
        self.server: ServerView = ServerView(
            seed=setup.seed, round=0, net=setup.net, task=setup.task, training=setup.training, state={},
            clients=self.roster.seen, planted=self.roster.planted, public=setup.public,
            signature_noise=setup.privacy.signature_noise,
        )  # fmt: skip
        self.server_method: ServerMethod | Alone | None = None
        if isinstance(setup.method, ServerMethod):
            self.server_method = Alone(setup.method) if setup.engine.alone else setup.method
            self.server_method.start(self.server)
        self.events: dict[str, tuple[str, ...]] = {}
        self.missed: Sequence[Traffic] = ()
        carrier = transport or Transport()
        faulty = Faulty(carrier, setup.faults, setup.seed, setup.training.rounds)
        self.log = MessageLog(faulty if setup.faults.on_the_way else carrier, self.clock, observers)
        self.exchange = Exchange(setup, site, self.log, forgery=forgery)
        # For clients that never took part: an exchange without faults and records.
        log = MessageLog(carrier, self.clock, observers)
        self.faultless_exchange = Exchange(setup, site, log, applies_min_replies=False)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports (see `facts.facts_of`)."""
        raise NotImplementedError

    def last_facts(self) -> dict[str, Any] | None:
        """Return the facts of the clients at the end of a run, if clients may have joined later; else None."""
        return None

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id; a client has none before its first view."""
        return self.site.states

    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""
        skipped, sampled = "", []
        self.turn_to(number)
        before = copy_for_flow(self.server.state) if self.can_undo else {}
        with self.site.exact():
            try:
                sampled = self._peers_round() if self.server_method is None else self._server_round(self.server_method)
            except Skipped as error:
                skipped = str(error)
                self._undo(before)
            except TooFew:
                self._undo(before)
                self.turn_to(number - 1)
                raise
        work, drifted = self.site.work, tuple(sorted(self.server.drifted))
        return Outcome(
            number, tuple(sampled), self.server.graph, tuple(self.log.traffic), work.samples, work.inferred, work.flops,
            skipped, {**self.events, **({"drifted": drifted} if drifted else {})},
        )  # fmt: skip

    def _undo(self, before: dict[str, Any]) -> None:
        """Restore the states from before this round."""
        self.server.state, self.server.graph, self.server.info, self.server.drifted = before, None, {}, ()
        self.site.undo()

    def turn_to(self, number: int) -> None:
        """Set the current round and its clients for all participants, without a graph or messages yet."""
        server, now, self.events = self.server, self.all_clients.at(number), {}
        server.round, server.graph, server.info, server.drifted = number, None, {}, ()
        server.training = self.setup.training.at(number)
        self.site.turn_to(number)
        if now is not self.roster:
            before, here = set(server.clients), set(now.seen)
            self.roster, server.clients, server.planted = now, now.seen, now.planted
            changes = {"joined": tuple(sorted(here - before)), "left": tuple(sorted(before - here))}
            self.events = {what: ids for what, ids in changes.items() if ids}
            if left := changes["left"]:
                if self.server_method is not None:
                    self.server_method.leave(server, frozenset(left))
                self.site.leave(left)
        self.log.traffic, self.faultless_exchange.log.traffic, self.missed = [], [], ()

    def _server_round(self, method: ServerMethod | Alone) -> list[str]:
        with self.clock.of("graph"):
            sampled = method.sample(self.server)
        self._run_server_flow(method.round(self.server, sampled), self.server.clients, self.exchange)
        return sampled

    def _run_server_flow(self, flow: ServerFlow[T], clients: Sequence[str], exchange: Exchange) -> T:
        """Answer the requests of a server's flow to these clients, and return the flow's result."""
        method, answer, known = self.setup.method, None, frozenset(clients)
        if not hasattr(flow, "send"):
            check_yields(method, "round", flow)
            raise MethodError(
                f"{place_in(method, 'round')}a server's round yields Ask, and this one never yields: write "
                "`replies = yield from Ask(...)`, or `yield from ()` if nothing is asked"
            )
        for turn in itertools.count():
            with self.clock.of("graph"):
                try:
                    ask = flow.send(answer)
                except StopIteration as stop:
                    returned: T = stop.value
                    return returned
                if words := self._mistake(ask, known):
                    raise MethodError(f"{place_of(flow)}method {method.name!r}: {words}")
            replies = exchange.ask(ask, self.server.round, turn)
            answer = ask.answer(replies)
            for observer in self.log.observers if exchange is self.exchange else ():
                observer.answered(self.server.round, ask, replies)
        raise AssertionError("unreachable")

    def _mistake(self, request: Any, clients: Container[str]) -> str:
        """Return what is wrong with a request of a server's flow; empty if nothing is."""
        if not isinstance(request, Ask):
            return f"a server's round yields Ask, got {type(request).__name__}"
        phases, at = self.setup.method.phases(), f"phase {request.phase!r}"
        if request.phase not in phases:
            return f"no {at}: declare the method of that name with @phase; {nearest(request.phase, phases)}"
        if unknown := sorted(id for id in request.messages if id not in clients):
            return f"{at} asks unknown clients {unknown[:5]}"
        if wrong := [id for id, message in request.messages.items() if not isinstance(message, Message)]:
            return f"{at} sends no Message to {wrong[:5]}"
        if not isinstance(request.mean, Mean | None):
            return f"{at}: mean is a {type(request.mean).__name__}: write mean=Mean('params', 'n')"
        return ""

    def _peers_round(self) -> list[str]:
        """Run all peers in step: each exchange waits for the messages of all, then all inboxes are delivered."""
        method, server = cast(PeerMethod, self.setup.method), self.server
        active = method.sample(server)
        neighbours = network(self.setup.engine.reach, server.clients, self.setup.seed, server.round, server.planted)
        order = self.log.transport.order(active, server.round)
        self.site.begin({id: frozenset(active).intersection(neighbours[id]) for id in order})
        inboxes: Mapping[str, dict[str, Message] | None] = dict.fromkeys(order)
        for turn in itertools.count():
            if not inboxes:
                break
            inboxes = self.exchange.step(inboxes, server.round, turn)
        server.graph = method.graph_of(self.exchange.reports(server.clients, server.round))
        return active

    def evaluate(self) -> dict[str, Score]:
        """Return the score of every evaluated client, for the model that it would use now."""
        with self.clock.of("evaluate"):
            return self._from_offers(self.site.scores)

    def models(self) -> dict[str, Params]:
        """Return the parameters that every evaluated client would use now."""
        return self._from_offers(self.site.models)

    def model(self, id: str) -> Params:
        """Return the parameters that this client would use now."""
        return self._from_offers(self.site.models, [id])[id]

    def features(self, id: str) -> Message:
        """Return the class features of a client's model (see `Site.features`); empty if there are none."""
        with self._reading_models():
            return self.site.features(id, self._offers([id])[id])

    def _from_offers(
        self, read: Callable[[Mapping[str, Message]], dict[str, T]], ids: Iterable[str] | None = None
    ) -> dict[str, T]:
        """Return the result of `read` for these clients (None: all evaluated clients), given the server's offers.

        Notes the clients that failed in `missed`; raises the first error if all failed.
        """
        with self._reading_models():
            offers = self._offers(ids)
            results = read(offers)
            failures = self.exchange.failed(self.server.round, self.faultless_exchange.log)
            self.missed = tuple(row for row in self.faultless_exchange.log.traffic if row.missing)
            raise_if_all(len(offers), failures)
            return results

    @contextmanager
    def _reading_models(self) -> Iterator[None]:
        """Return a context for reading models, which leaves no state at clients that never took part."""
        try:
            with self.site.exact():
                yield
        finally:
            self.site.forget(self.roster.unseen)

    def _offers(self, ids: Iterable[str] | None = None) -> dict[str, Message]:
        """Return the offers to these clients (None: to all evaluated clients: the honest and the unseen ones)."""
        ids = [id for id in self.roster if id not in self.adversaries] if ids is None else ids
        unseen = self._offers_to_unseen(sorted(set(ids).intersection(self.roster.unseen)))
        offers = {}
        for id in ids:
            if id in unseen:
                offers[id] = unseen[id]
            elif self.roster[id].seen:
                offers[id] = self.offer(id)
        return offers

    def offer(self, id: str) -> Message:
        """Return the message that this client needs for its current model; it is empty between peers."""
        return Message() if self.server_method is None else self.server_method.offer(self.server, id)

    def _offers_to_unseen(self, ids: Sequence[str]) -> dict[str, Message]:
        """Return the offers to clients that never took part; here no message is lost, and nothing is recorded."""
        if not ids:
            return {}
        with self.site.uncounted():
            if self.server_method is None:
                self.site.welcome(ids)
                return {id: Message() for id in ids}
            view = replace(self.server, state=copy_for_flow(self.server.state), clients=tuple(ids))
            offers = self._run_server_flow(self.server_method.welcome(view, ids), ids, self.faultless_exchange)
            return {id: offers[id] for id in ids}

    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on, as a tree of tensors and small values."""
        clients = dict(sorted(self.site.states.items()))
        return {"round": self.server.round, "server": self.server.state, "clients": clients}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state()` returned."""
        self.turn_to(state["round"])
        self.server.state = dict(state["server"])
        self.site.restore(state["round"], state["clients"])

    def releases(self) -> dict[str, dict[str, Any]]:
        """Return the releases of each client under `[privacy]` (`engines.releases.counted`); empty without it."""
        return counted(self.states, self.all_clients.seen) if self.setup.privacy.on else {}

    def close(self) -> None:
        """Release processes and memory."""
        self.site.close()
