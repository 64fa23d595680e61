"""The door of a server or a peer: what others send is checked here before a method sees it.

The door knows no transport. It looks at envelopes, in one process as behind a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    def look(self, envelopes: Sequence[Envelope], awaited: Awaited) -> list[Fault | None]:
        """Return what is wrong with each envelope, if anything."""
        faults = self._out_of_turn(envelopes, awaited)
        here = [envelope for envelope, fault in zip(envelopes, faults, strict=True) if fault is None]
        if not here or self._all_fine(here, awaited):
            return faults
        # What a peer shares with many neighbours is looked at once.
        known: dict[tuple[int, str, str], Fault | None] = {}
        for place, envelope in enumerate(envelopes):
            if faults[place] is None:
                at = id(envelope.message), envelope.sender, awaited.phase(envelope)
                if at not in known:
                    known[at] = self.fault(envelope.sender, at[2], envelope.message, awaited.senders[envelope.sender])
                faults[place] = known[at]
        return faults

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

    def _out_of_turn(self, envelopes: Sequence[Envelope], awaited: Awaited) -> list[Fault | None]:
        """Return why an envelope is none of those that are awaited, each of them once; None: it is."""
        if len(envelopes) > 1:
            # All at once: most of the time they are.
            rounds, phases, turns, senders, receivers, *_ = zip(*envelopes, strict=True)
            if (
                {*rounds} == {awaited.round} and {*turns} == {awaited.turn} and {*senders} <= awaited.senders.keys()
                and len({*zip(senders, receivers, strict=True)}) == len(envelopes)
                and (not awaited.answers or list(phases) == [*map(awaited.phase, envelopes)])
            ):  # fmt: skip
                return [None] * len(envelopes)
        came: set[tuple[str, str]] = set()
        faults = []
        for envelope in envelopes:
            words, way = self._stale(envelope, awaited), (envelope.sender, envelope.receiver)
            words = "a second message" if not words and way in came else words
            came |= set() if words else {way}
            faults.append(Fault("stale", words) if words else None)
        return faults

    def _stale(self, envelope: Envelope, awaited: Awaited) -> str:
        if envelope.round != awaited.round:
            return f"of round {envelope.round}, and this is round {awaited.round}"
        if envelope.turn != awaited.turn:
            return f"of exchange {envelope.turn}, and this is exchange {awaited.turn}"
        if envelope.sender not in awaited.senders:
            return "from one that was not asked"
        if awaited.answers and envelope.phase != awaited.phase(envelope):
            return f"of phase {envelope.phase[:60]!r}, and this is {awaited.phase(envelope)!r}"
        return ""
