"""The door of a server or a peer: what others send is checked here before a method sees it.

The door knows no transport. It looks at envelopes, in one process as behind a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.engines.setup import Plan
from fedkin.engines.transport import Envelope
from fedkin.flow import Message
from fedkin.forms import Fault, Place, all_fine, fault_of

__all__ = ["Awaited", "Door"]


@dataclass(frozen=True, eq=False)
class Awaited:
    """What is awaited now: the round and its turn; from whom; and the phase that each receiver is in.

    senders: those that may send, with the message that each of them answers, if it answers one.
    """

    round: int
    turn: int
    senders: Mapping[str, Message]
    phase: Callable[[Envelope], str]
    answers: bool = field(default=True)


class Door:
    """The checks of all that arrives at a server, or at peers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.places: dict[int, Place] = {}

    def look(self, envelopes: Iterable[Envelope], awaited: Awaited) -> Iterator[tuple[Envelope, Fault | None]]:
        """Yield each envelope with what is wrong with it, if anything."""
        came: set[tuple[str, str]] = set()
        # What a peer shares with many neighbours is looked at once.
        known: dict[tuple[int, str, str], Fault | None] = {}
        every = [(envelope, self._out_of_turn(envelope, awaited)) for envelope in envelopes]
        fine = self._all_fine([envelope for envelope, fault in every if fault is None], awaited)
        for envelope, fault in every:
            if fault is None and (envelope.sender, envelope.receiver) in came:
                fault = Fault("stale", "a second message")
            if fault is None:
                came.add((envelope.sender, envelope.receiver))
                if not fine:
                    at = id(envelope.message), envelope.sender, awaited.phase(envelope)
                    if at not in known:
                        asked = awaited.senders[envelope.sender]
                        known[at] = self.fault(envelope.sender, at[2], envelope.message, asked)
                    fault = known[at]
            yield envelope, fault

    def _all_fine(self, envelopes: Sequence[Envelope], awaited: Awaited) -> bool:
        """Whether one look at all messages shows that none of them has a fault: most of the time."""
        messages = list({id(envelope.message): envelope.message for envelope in envelopes}.values())
        if len(messages) < 2 or self.plan.nets is not None:
            return False
        phases = set(map(awaited.phase, envelopes))
        if len(phases) > 1:
            return False
        return all_fine(messages, self.plan.method.declared(phases.pop()), self._place(envelopes[0].sender))

    def fault(self, sender: str, phase: str, message: Message, asked: Message) -> Fault | None:
        """Return what is wrong with a message of this phase, if anything."""
        place = self._place(sender)
        place.asked = asked
        return fault_of(message, self.plan.method.declared(phase), place)

    def _place(self, sender: str) -> Place:
        """Return what the forms of a client's messages depend on."""
        net = self.plan.net_of(sender)
        place = self.places.get(id(net))
        if place is None:
            engine = self.plan.engine
            place = self.places[id(net)] = Place(
                self.plan.method, net, self.plan.task, engine.largest_n, int(engine.message_limit_mb * 2**20)
            )
        return place

    def _out_of_turn(self, envelope: Envelope, awaited: Awaited) -> Fault | None:
        if envelope.round != awaited.round:
            return Fault("stale", f"of round {envelope.round}, and this is round {awaited.round}")
        if envelope.turn != awaited.turn:
            return Fault("stale", f"of exchange {envelope.turn}, and this is exchange {awaited.turn}")
        if envelope.sender not in awaited.senders:
            return Fault("stale", "from one that was not asked")
        if awaited.answers and envelope.phase != awaited.phase(envelope):
            return Fault("stale", f"of phase {envelope.phase[:60]!r}, and this is {awaited.phase(envelope)!r}")
        return None
