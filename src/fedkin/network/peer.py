"""A peer of a federation without a server: it runs its part of each round, and exchanges messages with neighbours.

All peers wait for each other in every exchange, so that the results are those of a simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from fedkin.engines.executors.jobs import Modules, OneByOne
from fedkin.engines.failures import TooFew
from fedkin.engines.ledger import Page
from fedkin.engines.privacy import system_noise
from fedkin.engines.results import Outbox, Outcome, Traffic, Undelivered
from fedkin.engines.rounds import Engine
from fedkin.engines.setup import Setup
from fedkin.engines.site import LocalSite
from fedkin.engines.transport import Envelope, Inbox, Validator
from fedkin.federation import Client, Entry, Roster
from fedkin.flow import Message, PeerMethod
from fedkin.graph import network
from fedkin.learning.devices import opened
from fedkin.network.hello import about_of
from fedkin.network.peer_exchange import PeerExchange, PeerMessage
from fedkin.network.status import StatusFile
from fedkin.untrusted import escaped, plain_word

_HEAVIEST = 5  # number of weights in the status file


class PeerEngine(Engine):
    """The engine of one peer: its own records, its own state, and the messages that it sends and receives.

    page: the peer's releases under `[privacy]`. status: the status file to update.
    """

    name: ClassVar[str] = "peer"
    site: LocalSite

    def __init__(
        self, setup: Setup, client: Client, neighbours: PeerExchange, page: Page, status: StatusFile, device: str
    ) -> None:  # fmt: skip
        self.client, self.neighbours, self.page, self.status = client, neighbours, page, status
        self.validator = Validator(setup, neighbours.link.refused.add)  # of what neighbours send
        self.absent: set[str] = set()  # neighbours of which nothing came last
        self.next = 0  # before this round the neighbours offer nothing to this peer
        self.unsure = True  # whether the neighbours may be in a later round
        status.rounds = setup.training.rounds
        clients = {client.id: client}
        executor = OneByOne(setup.net, clients, Modules(opened(device)))
        site = LocalSite(setup, clients, executor, noise=system_noise, store=page)
        sizes = {**dict.fromkeys(neighbours.others, 0), client.id: client.size}
        entries = {id: Entry(True, 1, size, None) for id, size in sorted(sizes.items())}
        super().__init__(setup, Roster(entries, setup.task), site)

    def round(self, number: int) -> Outcome:
        outcome = super().round(number)
        report = self.site.reports([self.client.id]).get(self.client.id, Message())
        self.exchange.failed(number)
        self.status.round = number
        self.status.tell(
            round=self.neighbours.last_heard, epsilon={"": self.page.spent} if self.setup.privacy.on else {},
            weights={"": heaviest_in(report)},
        )  # fmt: skip
        return outcome

    def releases(self) -> dict[str, dict[str, Any]]:
        state = self.states.get(self.client.id, {})
        return {self.client.id: self.page.tree(state)} if self.setup.privacy.on else {}

    def facts(self) -> dict[str, Any]:
        about = about_of(self.client, self.setup.task)
        facts = {**about.model_dump(), "about": {}}
        return {
            "name": self.all_clients.name, "fingerprint": about.digest, "task": asdict(self.setup.task),
            "clients": {id: facts if id == self.client.id else {} for id in self.all_clients},
        }  # fmt: skip

    def _peers_round(self) -> list[str]:
        method, server, me = self.setup.method, self.server, self.client.id
        assert isinstance(method, PeerMethod)
        number = server.round
        active = method.sample(server)
        self.neighbours.admit()
        near = frozenset[str]()
        if me in active:
            around = network(self.setup.engine.reach, server.clients, self.setup.seed, number)[me]
            near = frozenset(active).intersection(around, self.neighbours.members)
        if self._is_behind(number, near):
            return []
        self.neighbours.enter(number)
        if me in active:
            self._exchange(number, near)
        return active

    def _is_behind(self, number: int, near: frozenset[str]) -> bool:
        """Whether a neighbour is so far ahead that it offers nothing for this round any more, or never did."""
        if self.unsure and number >= self.next:
            others = self.neighbours.progress_of_others(near).values()
            self.next = max((there.round for there in others if there.first > number), default=1)
            self.unsure = number < self.next
            if self.unsure:
                self.neighbours.enter(self.next)  # so that the neighbours wait for this peer in that round
                self.neighbours.say(f"rounds {number} to {self.next - 1}: left out, since neighbours are further on")
        return number < self.next

    def _exchange(self, number: int, near: frozenset[str]) -> None:
        me, inbox = self.client.id, None
        awaited = set(near)
        self.site.begin({me: near})
        for turn in itertools.count():
            box = self.site.step({me: inbox}).get(me)
            self._say_failures(number)
            offers = {} if box is None else self._offers_of(number, box)
            other = PeerMessage(ended=True) if box is None else PeerMessage()
            heard = self.neighbours.exchange(number, turn, {id: offers.get(id, other) for id in awaited})
            if self.neighbours.stop.is_set() and any(isinstance(answer, Undelivered) for answer in heard.values()):
                raise TooFew(f"round {number}: stopped while a neighbour was awaited")
            if box is None:
                return
            sent = {id: message for id, message in box.messages.items() if not offers[id].refused}
            self.log.send([Envelope(number, box.phase, turn, me, id, message) for id, message in sent.items()])
            inbox = self._inbox(number, turn, box.phase, heard)
            awaited -= {id for id, answer in heard.items() if isinstance(answer, PeerMessage) and answer.ended}

    def _offers_of(self, number: int, box: Outbox) -> dict[str, PeerMessage]:
        """Return the offer of each message by receiver; a message with fields that the owner has not seen is not sent.

        A message to many neighbours is checked once, and they share one offer.
        """
        offers: dict[int, PeerMessage] = {}
        for message in box.messages.values():
            if id(message) in offers:
                continue
            # Not `self.validator`, which counts what it refuses as a neighbour's.
            problem = self.exchange.validator.problem(self.client.id, box.phase, message, Message())
            if problem is None:
                offers[id(message)] = PeerMessage(phase=box.phase, message=dict(message))
            else:
                offers[id(message)] = PeerMessage(refused=escaped(problem.words, 300))
        for words in sorted({offer.refused for offer in offers.values()} - {""}):
            self.neighbours.say(f"round {number}: not what the method declares ({words}), so it was not sent")
        return {name: offers[id(message)] for name, message in box.messages.items()}

    def _say_failures(self, number: int) -> None:
        for failure in self.exchange.failed(number):
            self.neighbours.say(f"round {number}: {escaped(failure.cause.reason, 200)}")
            if self.setup.engine.errors == "stop":
                raise failure.error

    def _inbox(
        self, number: int, turn: int, phase: str, heard: Mapping[str, PeerMessage | Undelivered]
    ) -> dict[str, Message]:
        """Return the valid messages, in the order of the senders; missing messages are recorded."""
        me, envelopes = self.client.id, []
        for id, answer in sorted(heard.items()):
            if isinstance(answer, Undelivered) != (id in self.absent):
                words = escaped(": ".join(answer), 200) if isinstance(answer, Undelivered) else "heard again"
                self.neighbours.say(f"round {number}: {id}: {words}")
                self.absent ^= {id}
            if isinstance(answer, Undelivered):
                self.unsure = True
                self.log.traffic.append(Traffic(number, id, me, phase, 0, 0, *answer))
            elif answer.message is not None:
                envelopes.append(Envelope(number, answer.phase, turn, id, me, Message(**answer.message)))
        inbox = Inbox(self.validator, number, turn, dict.fromkeys(heard, Message()), {me: phase})
        return {envelope.sender: envelope.message for envelope in self.log.send(envelopes, inbox)}

    def _offers(self, ids: Iterable[str] | None = None) -> dict[str, Message]:
        return {self.client.id: Message()}

    def features(self, id: str) -> Message:
        return Message()


def heaviest_in(report: Message) -> dict[str, float]:
    """Return the largest weights of others in a peer's report; empty if it has none.

    >>> heaviest_in(Message(weights={"ann": 0.25, "bob": 0.75}))
    {'bob': 0.75, 'ann': 0.25}
    """
    for row in report.values():
        if isinstance(row, Mapping) and row and all(plain_word(str(id)) and type(w) is float for id, w in row.items()):
            ids = sorted((id for id in row if row[id] > 0), key=lambda id: (-row[id], id))
            return {id: round(row[id], 4) for id in ids[:_HEAVIEST]}
    return {}
