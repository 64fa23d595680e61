"""A peer of a federation without a server: it runs its own part of each round, and exchanges with its neighbours.

In each exchange it offers a message, or that it has none, to each neighbour, and pulls theirs. All wait for each other,
so that the results are those of a simulation. A neighbour that is gone or late is left out of that inbox.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from threading import Event
from typing import Any, ClassVar, NamedTuple

from fedkin import codec
from fedkin.engines.client_side import Outbox
from fedkin.engines.door import Awaited, Door
from fedkin.engines.executors.jobs import Modules, OneByOne
from fedkin.engines.failures import TooFew, words_of
from fedkin.engines.local_site import LocalSite
from fedkin.engines.roster import Entry, Roster
from fedkin.engines.rounds import Rounds
from fedkin.engines.setup import Plan
from fedkin.engines.states import States
from fedkin.engines.transport import Envelope
from fedkin.errors import MethodError, RunError
from fedkin.federation import Client
from fedkin.flow import Message, PeerMethod
from fedkin.graph import network
from fedkin.learning.devices import opened
from fedkin.network.agreement import Agreement, unlike
from fedkin.network.link import Link, LinkError, Missed
from fedkin.network.node import Left, about_of
from fedkin.network.settings import NetworkSettings, tree_of_task
from fedkin.untrusted import shown

__all__ = ["Neighbours", "PeerEngine"]

_ROOM = 1 << 20  # bytes of an offer beside its message
_SLICE = 0.5  # seconds of one look for a message
_AGAIN = 0.1  # seconds until the others are looked at again
_LINGER = 2.0  # seconds for which one that is refused may look why
_KEPT = 2  # rounds before the current one whose messages are still offered


class _Heard(NamedTuple):
    """What a neighbour offers in an exchange: its message with the phase, or neither; whether its round has ended."""

    phase: str = ""
    message: Message | None = None
    ended: bool = False
    missing: str = ""


class Neighbours:
    """The link of a peer to all others, `names`.

    settings: those of `[network]`. limit: the largest message in bytes. stop: set when the peer is to leave.
    """

    def __init__(
        self, link: Link, names: Iterable[str], mine: Agreement, settings: NetworkSettings, limit: int, *,
        say: Callable[[str], None] = lambda line: None, stop: Event | None = None,
    ) -> None:  # fmt: skip
        self.link, self.mine, self.settings, self.say, self.stop = link, mine, settings, say, stop or Event()
        self.others = sorted(set(names) - {link.me})
        told = repr(sorted({*self.others, link.me}))
        self.run = blake2b(told.encode(), digest_size=4).hexdigest()
        self.most = limit + _ROOM
        self.known: set[str] = set()
        self.away: set[str] = set()
        self.pool = ThreadPoolExecutor(max(len(self.others), 1), thread_name_prefix="neighbour")

    def gather(self) -> None:
        """Wait until all are there, and compare what they have; raises Left, and RunError for what differs.

        Where others are in a round already, it waits for nobody who is not there.
        """
        told = codec.encode(self.mine.tree())
        for id in self.others:
            self.link.offer(id, f"{self.run}/terms", told)
        self.enter(0)
        waited = -1
        while missing := [id for id in self.others if id not in self.known]:
            if self.stop.is_set():
                raise Left
            if len(missing) != waited:
                waited = len(missing)
                self.say(f"waiting for {', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}")
            for id in missing:
                self._compare(id)
            if not self.link.present().intersection(missing) and any(self.now().values()):
                return

    def _compare(self, id: str) -> None:
        try:
            there = Agreement.of(codec.decode(self.link.pull(id, f"{self.run}/terms", _SLICE, self.most)))
        except Missed:
            return
        except (MethodError, LinkError) as error:
            raise RunError(f"{id}: {words_of(error)}") from None
        if words := unlike(self.mine, there):
            until = time.monotonic() + _LINGER
            while id in self.link.present() and time.monotonic() < until and not self.stop.wait(_AGAIN):
                pass  # so that the other one sees what differs too
            raise RunError(f"{id} cannot be a neighbour: {words} (there: at {id})")
        self.known.add(id)

    def enter(self, round: int) -> None:
        """Say which round this peer is in, and forget messages of rounds that nobody asks for any more."""
        for id in self.others:
            self.link.offer(id, f"{self.run}/now", codec.encode({"round": round}))
        self.link.withdraw(f"{self.run}/r{round - _KEPT - 1}/")

    def now(self, ids: Iterable[str] | None = None) -> dict[str, int]:
        """Return the round in which each of the others is that is there."""
        found = {}
        present = self.link.present()
        for id in self.others if ids is None else ids:
            if id in present:
                try:
                    found[id] = int(codec.decode(self.link.pull(id, f"{self.run}/now", _SLICE, self.most))["round"])
                except (Missed, MethodError, KeyError, TypeError, ValueError):
                    continue
        return found

    def exchange(self, round: int, turn: int, near: Iterable[str], box: Outbox | None) -> dict[str, _Heard]:
        """Offer to these neighbours (a box of None: the round has ended here), and return what they offer."""
        subject = f"{self.run}/r{round}/t{turn}"
        near = sorted(near)
        for id in near:
            tree: dict[str, Any] = {"ended": box is None}
            if box is not None and id in box.messages:
                tree |= {"phase": box.phase, "message": dict(box.messages[id])}
            self.link.offer(id, subject, codec.encode(tree))
        if box is None:
            return {}
        until = time.monotonic() + self.settings.deadline
        jobs = {id: self.pool.submit(self._pulled, id, subject, until) for id in near}
        return {id: job.result() for id, job in jobs.items()}

    def _pulled(self, id: str, subject: str, until: float) -> _Heard:
        if id in self.away and id not in self.link.present():
            return _Heard(missing="gone: not connected")
        self.away.discard(id)
        absent = 0.0
        while (left := until - time.monotonic()) > 0:
            begun = time.monotonic()
            try:
                return _read(self.link.pull(id, subject, min(left, _SLICE), self.most))
            except Missed:
                absent = 0.0 if id in self.link.present() else absent + time.monotonic() - begun
                if absent > self.settings.grace:
                    self.away.add(id)
                    return _Heard(missing="gone: the connection is lost")
                if self.stop.is_set():
                    return _Heard(missing="late: this peer was stopped")
            except LinkError as error:
                return _Heard(missing=f"refused: {words_of(error)}")
        return _Heard(missing=f"late: nothing within {self.settings.deadline:g} s")

    def end(self, round: int) -> None:
        """Stay until the others that are there have all that this peer offers."""
        self.enter(round)
        until = time.monotonic() + self.settings.deadline
        while not self.stop.wait(_AGAIN) and time.monotonic() < until:
            if all(there >= round for there in self.now().values()):
                return

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def _read(data: bytes) -> _Heard:
    try:
        tree = codec.decode(data)
        if "message" not in tree:
            return _Heard(ended=bool(tree["ended"]))
        return _Heard(str(tree["phase"]), Message(**tree["message"]))
    except (MethodError, KeyError, TypeError) as error:
        return _Heard(missing=f"refused: not a message ({words_of(error)})")


class PeerEngine(Rounds):
    """The engine of one peer: its own records, its own state, and the messages that it sends and gets."""

    name: ClassVar[str] = "peer"
    site: LocalSite

    def __init__(self, plan: Plan, client: Client, neighbours: Neighbours, device: str = "cpu") -> None:
        self.setup, self.client, self.neighbours, self.device = plan, client, neighbours, device
        names = sorted([*neighbours.others, client.id])
        sizes = {id: client.size if id == client.id else 0 for id in names}
        self.door = Door(plan)
        self.behind = True  # whether the others may be in a later round
        super().__init__(plan, Roster({id: Entry(True, 1, sizes[id], None) for id in names}, plan.task))

    def make_site(self) -> LocalSite:
        clients = {self.client.id: self.client}
        executor = OneByOne(self.plan.net, clients, Modules(opened(self.device)))
        return LocalSite(self.plan, clients, executor, States(), self.clock)

    def facts(self) -> dict[str, Any]:
        about = about_of(self.client, self.plan.task)
        own = {**about.model_dump(), "about": {}}
        return {
            "name": self.everyone.name, "fingerprint": about.digest, "task": tree_of_task(self.plan.task),
            "clients": {id: own if id == self.client.id else {} for id in self.everyone},
        }  # fmt: skip

    def _peers_round(self) -> list[str]:
        method, server, me = self.plan.method, self.server, self.client.id
        assert isinstance(method, PeerMethod)
        number = server.round
        active = method.sample(server)
        if self.behind:
            self.behind = False
            latest = max(self.neighbours.now().values(), default=0)
            if number < latest - 1:
                self.behind = True
                self.neighbours.say(f"round {number}: the others are in round {latest}, so it is left out")
                return []
        self.neighbours.enter(number)
        if me in active:
            near = network(self.plan.engine.network, server.clients, self.plan.seed, number)[me]
            self._exchange(number, frozenset(active).intersection(near))
        return active

    def _exchange(self, number: int, near: frozenset[str]) -> None:
        me, inbox = self.client.id, None
        there = set(near)
        self.site.begin({me: near})
        for turn in itertools.count():
            box = self.site.step({me: inbox}).get(me)
            for failure in self.exchange.failed(number):
                self.neighbours.say(f"round {number}: {shown(failure.words, 200)}")
                if self.plan.engine.errors == "stop" and failure.error is not None:
                    raise failure.error
            heard = self.neighbours.exchange(number, turn, there, box)
            if self.neighbours.stop.is_set() and any(told.missing for told in heard.values()):
                raise TooFew(f"round {number}: stopped while a neighbour was awaited")
            if box is None:
                return
            self.post.send([Envelope(number, box.phase, turn, me, id, message) for id, message in box.messages.items()])
            inbox = self._inbox(number, turn, box.phase, heard)
            there -= {id for id, told in heard.items() if told.ended}

    def _inbox(self, number: int, turn: int, phase: str, heard: Mapping[str, _Heard]) -> dict[str, Message]:
        """Return the messages that pass the door, in the order of the senders; what is missing is recorded."""
        me, came = self.client.id, []
        for id in sorted(heard):
            told = heard[id]
            if told.missing:
                self.behind = True
                self.post.miss(Envelope(number, phase, turn, id, me, Message()), told.missing)
            elif told.message is not None:
                came.append(Envelope(number, told.phase, turn, id, me, told.message))
        awaited = Awaited(number, turn, dict.fromkeys(heard, Message()), lambda envelope: phase, answers=False)
        arrived = self.post.send(came, check=partial(self.door.look, awaited=awaited))
        return {envelope.sender: envelope.message for envelope in arrived}

    def _offers(self) -> dict[str, Message]:
        return {self.client.id: Message()}

    def features(self, id: str) -> Message:
        return Message()

    def models(self) -> dict[str, Any]:
        return {}
