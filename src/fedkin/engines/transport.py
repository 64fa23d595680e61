"""Messages between participants: their transport, their faults, their checks, and their log."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkin import codec
from fedkin.engines.accounting import Clock
from fedkin.engines.failures import words_of
from fedkin.engines.results import SERVER, Missing, Traffic, Undelivered
from fedkin.engines.secure_sums import MASKED, STEPS, declared, inner
from fedkin.engines.setup import Faults, Setup
from fedkin.errors import MethodError
from fedkin.flow import Ask, Message
from fedkin.forms import Context, Problem, problem_of
from fedkin.keys import rng
from fedkin.learning.net import Net
from fedkin.untrusted import error_text


class Envelope(NamedTuple):
    """A message with its sender and receiver.

    round, phase: the round and phase of the message. turn: the number of the exchange in the round, from 0.
    """

    round: int
    phase: str
    turn: int
    sender: str
    receiver: str
    message: Message

    def to_bytes(self) -> bytes:
        """Return the envelope and its message as safetensors bytes."""
        return codec.encode({**self._asdict(), "message": dict(self.message)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Return the envelope that `to_bytes` wrote; raises MethodError for other bytes."""
        fields = codec.decode(data)
        try:
            return cls(**{**fields, "message": Message(**fields["message"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MethodError(f"not an envelope: {len(data)} bytes ({error_text(error)})") from None


class Transport:
    """The transport that delivers each message as the object that was sent, to clients in the order of their ids."""

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        """Return the order in which participants are served in this round."""
        return sorted(ids)

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        """Return the envelope as its receiver sees it, or why it does not arrive."""
        return envelope


class BytesTransport(Transport):
    """The transport that delivers each message through bytes, to clients in a shuffled order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        names = sorted(ids)
        drawn = rng(self.seed, "", round, "loopback order").permutation(len(names))
        return [names[i] for i in drawn]

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        return Envelope.from_bytes(envelope.to_bytes())


class Observer:
    """An observer of an engine; subclasses override methods, and must not change their arguments."""

    def delivered(self, envelope: Envelope) -> None:
        """Called when a message has arrived, with the message as its receiver sees it."""

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        """Called when clients have answered a request of the server."""


class RecordingObserver(Observer):
    """An observer that stores envelopes in the order of delivery, and (round, request, replies) of the server."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.asks: list[tuple[int, Ask, Mapping[str, Message]]] = []

    def delivered(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        self.asks.append((round, ask, dict(replies)))


class Faulty(Transport):
    """The transport that loses, delays and corrupts messages; `inner` delivers the others.

    Of an exchange between the server and a client, the request or the reply is lost, never both. Draws are keyed by
    (seed, client, round, phase), so that one fault changes no other draw.
    """

    def __init__(self, inner: Transport, faults: Faults, seed: int, rounds: int = 1) -> None:
        self.inner, self.faults, self.seed, self.rounds = inner, faults, seed, rounds

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        return self.inner.order(ids, round)

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        missing = self._loses(envelope)
        if missing is not None:
            return missing
        carried = self.inner.carry(envelope)
        if isinstance(carried, Missing) or envelope.sender == SERVER:
            return carried
        if self._draw(envelope, "garbage") < self.faults.garbage:
            draw = rng(self.seed, envelope.sender, envelope.round, _occasion(envelope), "kind of garbage")
            kind = self.faults.kinds[int(draw.integers(len(self.faults.kinds)))]
            carried = carried._replace(message=spoiled(carried.message, kind))
        if self._draw(envelope, "stale") < self.faults.stale:
            carried = carried._replace(round=envelope.round - 1)
        return carried

    def _loses(self, envelope: Envelope) -> Missing | None:
        """Return why this message does not arrive in its round; None if it arrives."""
        faults = self.faults
        if any(self._gone(id) <= envelope.round for id in (envelope.sender, envelope.receiver) if id != SERVER):
            return Missing.GONE
        if faults.dropout and self._dropped(envelope):
            return Missing.LOST
        return Missing.LATE if envelope.sender != SERVER and self._draw(envelope, "late") < faults.late else None

    def _dropped(self, envelope: Envelope) -> bool:
        dropout, is_request = self.faults.dropout, envelope.sender == SERVER
        if not is_request and envelope.receiver != SERVER:
            occasion = f"share {envelope.turn} to {envelope.receiver}"
            return rng(self.seed, envelope.sender, envelope.round, occasion, "dropout").random() < dropout
        client = envelope.receiver if is_request else envelope.sender
        draw = rng(self.seed, client, envelope.round, envelope.phase, "dropout").random()
        before = dropout * self.faults.before
        return draw < before if is_request else before <= draw < dropout

    def _gone(self, id: str) -> float:
        """Return the first round in which a client is gone; infinite if it never leaves."""
        if not self.faults.gone:
            return float("inf")
        draw = rng(self.seed, id, "gone")
        return 1 + int(draw.integers(self.rounds)) if draw.random() < self.faults.gone else float("inf")

    def _draw(self, envelope: Envelope, fault: str) -> float:
        if not getattr(self.faults, fault):
            return 1.0
        return rng(self.seed, envelope.sender, envelope.round, _occasion(envelope), fault).random()


def _occasion(envelope: Envelope) -> str:
    """Return the key of a message's faults; it is the same for all receivers of a peer's message."""
    return f"{envelope.phase} {envelope.turn}"


def spoiled(message: Mapping[str, Any], kind: str) -> Message:
    """Return the message with this fault; a message that cannot have the fault gets an undeclared field.

    >>> spoiled(Message(n=3), "count")["n"]
    1000000000000
    """
    fields = dict(message)
    change = {
        "nan": lambda leaf: _with(leaf, float("nan")), "inf": lambda leaf: _with(leaf, float("inf")),
        "shape": lambda leaf: leaf.new_zeros(*leaf.shape, 2) if isinstance(leaf, Tensor) else leaf,
        "count": lambda leaf: 10**12 if type(leaf) is int else leaf,
        "type": lambda leaf: "garbage",
    }.get(kind)  # fmt: skip
    other: dict[str, Any] = {} if kind == "missing" else {**fields, "garbage": 1}
    spoilt = other if change is None else codec.mapped(fields, change)
    same = len(spoilt) == len(fields) and all(spoilt[name] is value for name, value in fields.items())
    return Message(**{**spoilt, "garbage": float("nan")} if same else spoilt)


def _with(leaf: Any, number: float) -> Any:
    """Return the leaf with its first number replaced, if it has floats."""
    if isinstance(leaf, float):
        return number
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.numel():
        return leaf
    spoilt = leaf.detach().clone(memory_format=torch.contiguous_format)
    spoilt.view(-1)[0] = number
    return spoilt


class MessageLog:
    """The messages of a round: each is measured, carried, checked, and shown to observers.

    traffic: a row for each message so far. The row of a missing message has the reason; its bytes count if it was sent.
    """

    def __init__(self, transport: Transport, clock: Clock, observers: Sequence[Observer]) -> None:
        self.transport, self.clock, self.observers = transport, clock, list(observers)
        self.traffic: list[Traffic] = []
        self._sizes: dict[Hashable, tuple[int, int]] = {}

    def send(self, envelopes: Iterable[Envelope], inbox: Inbox | None = None) -> list[Envelope]:
        """Send messages, and return those that arrive. inbox: the checks of their receivers (None: accept all).

        Raises the error of a message that the server cannot send.
        """
        arrived: list[Envelope] = []
        with self.clock.of("messages"):
            message, size = None, (0, 0)
            for envelope in envelopes:
                if inbox is not None:
                    inbox.sent += 1
                if envelope.message is not message:  # a message to many receivers is measured once
                    if (measured := self._measured(envelope, inbox)) is None:
                        continue
                    size, message = measured, envelope.message
                carried, why = self._carried(envelope, inbox)
                if carried is not None:
                    arrived.append(carried)
                if size[0] or why:
                    round, phase, _, sender, receiver, _ = envelope
                    self.traffic.append(Traffic(round, sender, receiver, phase, *size, *why))
        for observer in self.observers:
            for envelope in arrived:
                observer.delivered(envelope)
        return arrived

    def _carried(self, envelope: Envelope, inbox: Inbox | None) -> tuple[Envelope | None, Undelivered | tuple[()]]:
        """Return what arrives, and why nothing does; a receiver that has ended its round receives nothing."""
        if inbox is not None and envelope.receiver not in inbox.phases:
            return None, ()
        carried = self.transport.carry(envelope)
        if isinstance(carried, Missing):
            return None, Undelivered(carried)
        why = None if inbox is None else inbox.refuses(carried)
        return (carried, ()) if why is None else (None, why)

    def _measured(self, envelope: Envelope, inbox: Inbox | None) -> tuple[int, int] | None:
        """Return the size of a message; None if it cannot be sent."""
        try:
            return self._size(envelope.message)
        except Exception as error:  # a client may have put anything into it
            if envelope.sender == SERVER:
                raise
            if inbox is not None:
                inbox.unsent[envelope.sender] = error
            round, phase, _, sender, receiver, _ = envelope
            self.traffic.append(Traffic(round, sender, receiver, phase, 0, 0, Missing.FAILED, words_of(error)))
            return None

    def _size(self, message: Message) -> tuple[int, int]:
        """Return (bytes, floats) of a message, (0, 0) if it is empty; only one message per layout is measured."""
        if not len(message):
            return 0, 0
        try:
            layout = _layout(message)
            size = self._sizes.get(layout)
        except TypeError:  # lists and tuples, whose items may be of any kind
            return codec.size(message)
        if size is None:
            if len(self._sizes) >= _LAYOUTS:  # each different float in a message makes another layout
                self._sizes.clear()
            size = self._sizes[layout] = codec.size(message)
        return size


_LAYOUTS = 4096  # largest number of layouts with cached sizes


def _layout(value: Any) -> Hashable:
    """Return a key that is equal for values of equal size; raises TypeError for lists and tuples."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if isinstance(value, Mapping):
        return tuple([(name, _layout(item)) for name, item in value.items()])
    if type(value) is int:
        return int, len(str(value))
    if isinstance(value, float):
        return type(value), repr(value)  # 0.0 equals -0.0, which is longer
    if isinstance(value, tuple):
        raise TypeError("equal tuples may have items of other kinds")
    hash(value)
    return type(value), value


# -- checks of receivers --------------------------------------------------------------------------------------------


class Validator:
    """The checks of messages of clients or peers, by the fields that their phase declares.

    refused: called with (sender, why) for each invalid message. samples: the number of training samples that
    each sender has registered; a message may not claim more.
    """

    def __init__(
        self, setup: Setup, refused: Callable[[str, str], None] | None = None,
        samples: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.refused, self.samples = setup, refused, samples or {}
        self.contexts: dict[Net, Context] = {}

    def problem(self, sender: str, phase: str, message: Message, request: Message) -> Problem | None:
        """Return what is wrong with a message of this phase; None if nothing. request: the message that it answers."""
        net, most = self.setup.net_of(sender), self.setup.engine.largest_n
        if net not in self.contexts:
            self.contexts[net] = self.setup.context(net)
        context = self.contexts[net]
        context.asked = inner(request)[1] if phase == MASKED else request
        context.most_n = min(most, self.samples.get(sender, most))
        method = self.setup.method
        fields = declared(method, phase, request, net) if phase in STEPS else method.declared(phase)
        problem = problem_of(message, fields, context)
        if problem is not None and self.refused is not None:
            self.refused(sender, problem.words)
        return problem


class Inbox:
    """The checks of the receivers in one exchange, and what became of the messages.

    requests: by expected sender, the message that it answers (empty between peers). phases: the phase of each receiver;
    other participants do not receive. sent: the number of messages. refused: (sender, phase, problem) of messages that
    do not fit. unsent: by sender, why its message could not be sent.
    """

    def __init__(
        self, validator: Validator, round: int, turn: int, requests: Mapping[str, Message], phases: Mapping[str, str]
    ) -> None:
        self.validator, self.round, self.turn, self.requests, self.phases = validator, round, turn, requests, phases
        self.sent, self.refused = 0, list[tuple[str, str, Problem]]()
        self.unsent: dict[str, Exception] = {}
        self.pairs: set[tuple[str, str]] = set()  # (sender, receiver) of each message so far
        # The last message and what is wrong with it: a peer's message to many neighbours is checked once.
        self.latest: tuple[Message, str, str] | None = None
        self.problem: Problem | None = None

    def refuses(self, envelope: Envelope) -> Undelivered | None:
        """Return why an arrived message is refused; None if it is accepted."""
        if words := self._stale(envelope):
            return Undelivered(Missing.STALE, words)
        self.pairs.add((envelope.sender, envelope.receiver))
        message, sender, phase = envelope.message, envelope.sender, self.phases[envelope.receiver]
        if self.latest is None or self.latest[0] is not message or self.latest[1:] != (sender, phase):
            self.latest = message, sender, phase
            self.problem = self.validator.problem(sender, phase, message, self.requests[sender])
        if self.problem is None:
            return None
        self.refused.append((sender, envelope.phase, self.problem))
        return Undelivered(Missing.REFUSED, self.problem.words)

    def _stale(self, envelope: Envelope) -> str:
        phase = self.phases[envelope.receiver]
        if envelope.round != self.round:
            return f"of round {envelope.round}, and this is round {self.round}"
        if envelope.turn != self.turn:
            return f"of exchange {envelope.turn}, and this is exchange {self.turn}"
        if envelope.sender not in self.requests:
            return "from one that was not asked"
        if envelope.receiver == SERVER and envelope.phase != phase:  # peers may share under different phase names
            return f"of phase {envelope.phase[:60]!r}, and this is {phase!r}"
        return "a second message" if (envelope.sender, envelope.receiver) in self.pairs else ""
