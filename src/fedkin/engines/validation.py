"""Validation: what others send is checked here before a method sees it, in one process as behind a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedkin.engines.results import Missing
from fedkin.engines.secure_sums import MASKED, STEPS, declared, inner
from fedkin.engines.setup import Setup
from fedkin.engines.transport import Envelope, Refusal
from fedkin.flow import Message
from fedkin.forms import Context, Problem, problem_of


class Validator:
    """The checks of the messages of clients, or of peers, by what their phase declares."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.contexts: dict[int, Context] = {}

    def problem(self, sender: str, phase: str, message: Message, request: Message) -> Problem | None:
        """Return what is wrong with a message of this phase, if anything. request: the message that it answers."""
        context = self.context(sender)
        context.asked = request
        if phase not in STEPS:
            return problem_of(message, self.setup.method.declared(phase), context)
        fields = declared(self.setup.method, phase, request, context.net)
        context.asked = inner(request)[1] if phase == MASKED else request
        return problem_of(message, fields, context)

    def context(self, sender: str) -> Context:
        """Return what the forms of a client's messages depend on."""
        net = self.setup.net_of(sender)
        if id(net) not in self.contexts:
            self.contexts[id(net)] = self.setup.context(net)
        return self.contexts[id(net)]


class Expected:
    """The messages that one exchange expects: called with an envelope, it returns why that is refused, or None.

    requests: those that may send, each with the message that it answers (an empty one between peers). phase: the phase
    that a receiver is in. same_phase: whether the messages must name that phase.
    """

    def __init__(
        self, validator: Validator, round: int, turn: int, requests: Mapping[str, Message],
        phase: Callable[[Envelope], str], same_phase: bool = True,
    ) -> None:  # fmt: skip
        self.validator, self.round, self.turn, self.requests = validator, round, turn, requests
        self.phase, self.same_phase = phase, same_phase
        self.pairs: set[tuple[str, str]] = set()  # the senders and receivers of messages so far
        # The last message and what is wrong with it: what a peer shares with many neighbours is checked once.
        self.latest: tuple[Message, str, str] | None = None
        self.problem: Problem | None = None

    def __call__(self, envelope: Envelope) -> Refusal | None:
        """Return why this message is refused; None: it is not."""
        if words := self._stale(envelope):
            return Refusal(Missing.STALE, words)
        pair = envelope.sender, envelope.receiver
        if pair in self.pairs:
            return Refusal(Missing.STALE, "a second message")
        self.pairs.add(pair)
        message, sender, phase = envelope.message, envelope.sender, self.phase(envelope)
        if self.latest is None or self.latest[0] is not message or self.latest[1:] != (sender, phase):
            self.latest = message, sender, phase
            self.problem = self.validator.problem(sender, phase, message, self.requests[sender])
        problem = self.problem
        return None if problem is None else Refusal(Missing.REFUSED, problem.words, problem.kind == "form")

    def _stale(self, envelope: Envelope) -> str:
        if envelope.round != self.round:
            return f"of round {envelope.round}, and this is round {self.round}"
        if envelope.turn != self.turn:
            return f"of exchange {envelope.turn}, and this is exchange {self.turn}"
        if envelope.sender not in self.requests:
            return "from one that was not asked"
        if self.same_phase and envelope.phase != self.phase(envelope):
            return f"of phase {envelope.phase[:60]!r}, and this is {self.phase(envelope)!r}"
        return ""
