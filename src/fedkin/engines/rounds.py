"""The rounds of a federation: a server, the site of its clients, and the messages between them.

`Engine.round` resumes the server's flow, `Exchange.answers` sends its requests to the site and brings the replies back.
What does not arrive, is refused, or fails at a client is missing, and the message log says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from fedkin.engines.accounting import Clock
from fedkin.engines.attacks import Forgery
from fedkin.engines.client_list import Roster
from fedkin.engines.client_side import apart
from fedkin.engines.failures import Failure, TooFew, place_in, raise_if_all
from fedkin.engines.releases import counted
from fedkin.engines.results import SERVER, Missing, Outcome, Score, Traffic
from fedkin.engines.secure_sums import STEPS, GroupSum, check_phase, summed_names
from fedkin.engines.server_side import ServerSide
from fedkin.engines.setup import Setup
from fedkin.engines.site import Site
from fedkin.engines.transport import (
    Delivery,
    Envelope,
    Expected,
    Faulty,
    MessageLog,
    Observer,
    Transport,
    Validator,
)
from fedkin.errors import MethodError
from fedkin.flow import Ask, AveragedReplies, Mean, Message, Params, PeerMethod
from fedkin.graph import network
from fedkin.views import ServerView


class Skipped(Exception):
    """Too few clients answered, so that the round is skipped."""


class Exchange:
    """Requests of a server and messages of peers: sent, carried, answered at a site, checked, and recorded.

    patient: whether too few replies have the consequence that the settings say. forgery: what adversaries send.
    """

    def __init__(
        self, setup: Setup, site: Site, log: MessageLog, patient: bool = True, forgery: Forgery | None = None
    ) -> None:
        self.setup, self.site, self.log, self.patient, self.forgery = setup, site, log, patient, forgery
        self.validator = Validator(setup)

    def answers(self, ask: Ask, round: int, turn: int) -> Mapping[str, Message]:
        """Return replies as the server receives them, in the order in which clients are served.

        Raises Skipped or TooFew if too few clients have answered.
        """
        settings = self.setup.engine
        needed = settings.needed(len(ask.messages)) if self.patient else 0
        if self.setup.sums_securely:
            check_phase(self.setup.method, ask.phase, ask.mean)
        replies: Mapping[str, Message]
        if self.setup.sums_securely and ask.mean is not None:
            replies = self._summed(ask, ask.mean, round, turn)
        else:
            replies = self._asked(ask, round, turn)
        if len(replies) >= needed:
            return replies
        words = (
            f"round {round}, phase {ask.phase!r}: {len(replies)} of {len(ask.messages)} clients answered, fewer than "
            f"the {needed} of run.min_replies"
        )
        raise TooFew(words) if settings.on_missing == "stop" else Skipped(words)

    def _asked(self, ask: Ask, round: int, turn: int) -> Mapping[str, Message]:
        """Send the requests, and return the replies that have come and are as they should be."""
        order = self.log.transport.order(ask.messages, round)
        envelopes = [Envelope(round, ask.phase, turn, SERVER, id, ask.messages[id]) for id in order]
        requests = {envelope.receiver: envelope.message for envelope in self.log.send(envelopes).arrived}
        expected = Expected(self.validator, round, turn, ask.messages, lambda envelope: ask.phase)
        answers: Iterable[tuple[str, Message]]
        # Replies that come in the order of the ids are added to the mean as they come, and forgotten.
        mean, failures = ask.mean, list[Failure]()
        if (
            mean is None
            or order != sorted(order)
            or self.log.observers
            or self.forgery
            or self.setup.engine.min_replies
        ):
            mean = None
            made = self.site.ask(ask.phase, requests)
            failures = self.failed(round)
            answers = (self.forgery.replies(ask.phase, requests, made, round) if self.forgery else made).items()
        else:
            answers = self.site.replies(ask.phase, requests)
        replies, averaged, total = dict[str, Message](), None if mean is None else AveragedReplies(mean), Delivery()
        for id, reply in answers:
            delivery = self.log.send([Envelope(round, ask.phase, turn, id, SERVER, reply)], expected)
            for envelope in delivery.arrived:
                if averaged is None:
                    replies[id] = envelope.message
                else:
                    averaged.add(id, envelope.message)
            total.add(delivery)
        self._stop_if_all(len(requests), failures + self.failed(round), total, round)
        return replies if averaged is None else averaged

    def _summed(self, ask: Ask, mean: Mean, round: int, turn: int) -> Mapping[str, Message]:
        """Ask for secure sums, one in each group; who is in no group is asked as always."""
        groups: dict[str, dict[str, Message]] = {}
        alone: dict[str, Message] = {}
        for id, message in ask.messages.items():
            group = mean.group_of(id)
            (alone if group is None else groups.setdefault(group, {}))[id] = message
        least = self.setup.privacy.min_members
        sums = {group: GroupSum(mean, ask.phase, asked, least) for group, asked in sorted(groups.items())}
        for step in STEPS:
            messages = {id: message for one in sums.values() for id, message in one.messages(step).items()}
            answers = self._asked(Ask(step, messages), round, turn) if messages else {}
            for one in sums.values():
                if not one.failed:
                    one.take(step, {id: answers[id] for id in one.asked if id in answers})
        averaged = AveragedReplies(mean)
        for id, reply in self._asked(Ask(ask.phase, alone), round, turn).items() if alone else ():
            averaged.add(id, reply)
        for group, one in sums.items():
            self._add_sum(averaged, group, one, round, turn)
        return averaged

    def _add_sum(self, averaged: AveragedReplies, group: str, one: GroupSum, round: int, turn: int) -> None:
        """Add the mean of a group, or note that its members are missing."""
        if one.failed:
            for id, message in one.asked.items():
                envelope = Envelope(round, one.phase, turn, id, SERVER, message)
                self.log.miss(envelope, Missing.REFUSED, f"no secure sum: {one.failed}")
            return
        net = self.setup.net_of(next(iter(one.replies)))
        names = summed_names(self.setup.method, one.phase, one.mean.field, net)
        averaged.add_term(group, one.params({name: net.initial[name] for name in names}), one.weight, one.replies)

    def step(
        self, inboxes: Mapping[str, dict[str, Message] | None], round: int, turn: int
    ) -> dict[str, dict[str, Message] | None]:
        """Give peers their inboxes; returns the new inboxes of those that have shared, and not ended their round."""
        outboxes = self.site.step(inboxes)
        failures = self.failed(round)
        if self.forgery:
            outboxes = self.forgery.posts(outboxes, round, turn)
        nothing = dict.fromkeys(outboxes, Message())
        expected = Expected(
            self.validator, round, turn, nothing, lambda envelope: outboxes[envelope.receiver].phase, same_phase=False
        )
        received: dict[str, dict[str, Message] | None] = {id: {} for id in outboxes}
        total = Delivery()
        for sender in self.log.transport.order(outboxes, round):
            phase, messages = outboxes[sender].phase, outboxes[sender].messages
            envelopes = [Envelope(round, phase, turn, sender, id, message) for id, message in messages.items()]
            delivery = self.log.send(envelopes, expected, listening=outboxes)
            for envelope in delivery.arrived:
                inbox = received[envelope.receiver]
                assert inbox is not None
                inbox[sender] = envelope.message
            total.add(delivery)
        self._stop_if_all(len(inboxes), failures, total, round)
        return received

    def reports(self, ids: Iterable[str], round: int) -> dict[str, Message]:
        """Return the reports of peers for the records, those that are fit for them."""
        messages = self.site.reports(ids)
        self.failed(round)
        reports = {}
        for id, message in messages.items():
            problem = self.validator.problem(id, "report", message, Message())
            if problem is None:
                reports[id] = message
            else:
                self.log.miss(Envelope(round, "report", 0, id, SERVER, message), Missing.REFUSED, problem.words)
        return reports

    def failed(self, round: int, log: MessageLog | None = None) -> list[Failure]:
        """Return the failures at the site, recorded in a log (None: this one's)."""
        failures = self.site.failed()
        for failure in failures:
            envelope = Envelope(round, failure.phase, 0, failure.id, SERVER, Message())
            (log or self.log).miss(envelope, failure.kind, failure.words)
        return failures

    def _stop_if_all(self, count: int, failures: Sequence[Failure], delivery: Delivery, round: int) -> None:
        """Raise the first error if all clients have failed, or if the form of every message was refused."""
        unsent = [Failure(id, "", str(error), error) for id, error in delivery.unsent.items()]
        if unsent and self.setup.engine.errors == "stop":
            raise delivery.unsent[unsent[0].id]
        raise_if_all(count, [*failures, *unsent])
        if delivery.sent > 1 and len(delivery.refused) == delivery.sent and not self.setup.faults.garbage:
            sender, phase, reason = delivery.refused[0]
            raise MethodError(
                f"{place_in(self.setup.method, phase)}round {round}, phase {phase!r}: every message was refused, the "
                f"first, of {sender!r}, because {reason}; declare what this phase sends: @phase(...), or `shares`"
            )


class Engine:
    """An engine runs the rounds of one method.

    setup: with the nets that the method trains. roster: the clients. transport: replaces the engine's own transport (a
    test may lose chosen messages). observers: see every message. forgery: what simulated adversaries change in their
    messages. missed: the lines of clients that failed in the last evaluation.
    """

    name: ClassVar[str]
    adversaries: frozenset[str] = frozenset()
    undoes = True  # whether a round may be undone: a copy of the server's state takes time for every client
    missed: Sequence[Traffic] = ()

    def __init__(
        self, setup: Setup, roster: Roster, *, transport: Transport | None = None, observers: Sequence[Observer] = (),
        forgery: Forgery | None = None,
    ) -> None:  # fmt: skip
        self.setup = setup
        self.clock = Clock("local", "graph", "evaluate", "messages")
        self.server_side = ServerSide(setup, roster)
        self.site = self.make_site()
        carrier = transport or self.make_transport()
        faulty = Faulty(carrier, setup.faults, setup.seed, setup.training.rounds)
        self.log = MessageLog(faulty if setup.faults.on_the_way else carrier, self.clock, observers)
        self.exchange = Exchange(setup, self.site, self.log, forgery=forgery)
        # For clients that never took part: nothing goes wrong, nothing is recorded.
        self.unlost = Exchange(setup, self.site, MessageLog(carrier, self.clock, observers), patient=False)

    def make_site(self) -> Site:
        """Return the site of the clients."""
        raise NotImplementedError

    def make_transport(self) -> Transport:
        """Return the transport of messages."""
        return Transport()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports (see `client_list.facts_of`)."""
        raise NotImplementedError

    def last_facts(self) -> dict[str, Any] | None:
        """Return the facts of the clients at the end of a run, if others may have joined; else None."""
        return None

    @property
    def traffic(self) -> list[Traffic]:
        """The messages of this round."""
        return self.log.traffic

    @property
    def server(self) -> ServerView:
        """The view of the server; without a server, the view of the engine, which knows all peers."""
        return self.server_side.view

    @property
    def roster(self) -> Roster:
        """The clients of the current round."""
        return self.server_side.roster

    @property
    def everyone(self) -> Roster:
        """All clients of the run, in whatever round they join."""
        return self.server_side.whole

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        """The current states of clients by id; a client has none before its first view."""
        return self.site.states

    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""
        skipped, sampled = "", []
        self.turn_to(number)
        before = apart(self.server.state) if self.undoes else {}
        with self.site.exact():
            try:
                sampled = self._peers_round() if isinstance(self.setup.method, PeerMethod) else self._server_round()
            except Skipped as error:
                skipped = str(error)
                self._undo(before)
            except TooFew:
                self._undo(before)
                self.turn_to(number - 1)
                raise
        work = self.site.work
        return Outcome(
            number, tuple(sampled), self.server.graph, tuple(self.traffic), work.samples, work.inferred, work.flops,
            skipped, self.server_side.events,
        )  # fmt: skip

    def _undo(self, before: dict[str, Any]) -> None:
        """Go back to the states before this round."""
        self.server.state, self.server.graph, self.server.info, self.server.drifted = before, None, {}, ()
        self.site.undo()

    def turn_to(self, number: int) -> None:
        """Set the current round for all participants."""
        self.server_side.turn_to(number)
        self.site.turn_to(number)
        if self.server_side.left:
            self.site.leave(self.server_side.left)
        self.log.traffic, self.unlost.log.traffic = [], []
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
            for observer in self.log.observers:
                observer.answered(self.server.round, ask, answer)
        raise AssertionError("unreachable")

    def _peers_round(self) -> list[str]:
        """Run all peers in step: each exchange waits for the messages of all, then all inboxes are delivered."""
        method, server = self.setup.method, self.server
        assert isinstance(method, PeerMethod)
        active = method.sample(server)
        near = network(self.setup.engine.reach, server.clients, self.setup.seed, server.round, server.planted)
        order = self.log.transport.order(active, server.round)
        self.site.begin({id: frozenset(active).intersection(near[id]) for id in order})
        inboxes: dict[str, dict[str, Message] | None] = dict.fromkeys(order)
        for turn in itertools.count():
            if not inboxes:
                break
            inboxes = self.exchange.step(inboxes, server.round, turn)
        server.graph = method.graph_of(self.exchange.reports(server.clients, server.round))
        return active

    def evaluate(self) -> dict[str, Score]:
        """Return the score of every evaluated client, for the model that it would use now."""
        with self.clock.of("evaluate"), self._looking():
            offers = self._offers()
            scores = self.site.scores(offers)
            self._note_missed(len(offers))
            return scores

    def models(self) -> dict[str, Params]:
        """Return the parameters that every evaluated client would use now."""
        with self._looking():
            offers = self._offers()
            models = self.site.models(offers)
            self._note_missed(len(offers))
            return models

    def model(self, id: str) -> Params:
        """Return the parameters that this client would use now."""
        with self._looking():
            models = self.site.models(self._offer(id))
            self._note_missed(1)
            return models[id]

    def features(self, id: str) -> Message:
        """Return the class features of a client's model (see `site.features_of`); empty if there are none."""
        with self._looking():
            return self.site.features(id, self._offer(id)[id])

    def _note_missed(self, count: int) -> None:
        """Note which of these clients failed to give its model; raises the first error if all did."""
        failures = self.exchange.failed(self.server.round, self.unlost.log)
        self.missed = tuple(row for row in self.unlost.log.traffic if row.missing)
        raise_if_all(count, failures)

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
        unseen, roster = self._welcomed(self.roster.unseen), self.roster
        return {
            id: unseen[id] if id in unseen else self.server_side.offer(id)
            for id in roster if id not in self.adversaries and (roster[id].seen or id in unseen)
        }  # fmt: skip

    def _offer(self, id: str) -> dict[str, Message]:
        return {id: self.server_side.offer(id)} if self.roster[id].seen else self._welcomed((id,))

    def _welcomed(self, ids: Sequence[str]) -> dict[str, Message]:
        """Return the offers to clients that never took part; here no message is lost, and nothing is recorded."""
        if not ids:
            return {}
        with self.site.uncounted():
            if isinstance(self.setup.method, PeerMethod):
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
        """Return everything that the next round depends on, as a tree of tensors and small values."""
        clients = dict(sorted(self.site.states.items()))
        return {"round": self.server.round, "server": self.server.state, "clients": clients}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state that `state()` returned."""
        self.turn_to(state["round"])
        self.server.state = dict(state["server"])
        self.site.restore(state["round"], state["clients"])

    def releases(self) -> dict[str, dict[str, Any]]:
        """Return what each client has released (`engines.releases.counted`) under `[privacy]`; without it nothing."""
        return counted(self.states, self.everyone.seen) if self.setup.privacy.on else {}

    def close(self) -> None:
        """Release processes and memory."""
        self.site.close()
