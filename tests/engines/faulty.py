"""Clients that send garbage, are lost, or fail, in one phase of one round: what the tests of the door share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest

from fedkin import codec
from fedkin.engines import Envelope, LocalEngine, RecordingObserver, Setup, Traffic, Transport
from fedkin.engines.results import SERVER, Missing
from fedkin.engines.setup import KINDS
from fedkin.engines.site import LocalSite, Running
from fedkin.engines.transport import Validator, spoiled
from fedkin.flow import Message, PeerMethod, ServerMethod
from fedkin.forms import Problem
from methods.cases import CASES as VARIANTS
from support import NET_METHODS, default_method, small_setup

CASES: dict[str, ServerMethod | PeerMethod] = {**{name: default_method(name) for name in NET_METHODS}, **VARIANTS}
ROUNDS = 3
GARBAGE: dict[str, Callable[[Message], Message]] = {
    **{kind: partial(spoiled, kind=kind) for kind in KINDS},
    "negative": lambda m: Message(**{name: -20 if type(v) is int else v for name, v in m.items()}, more=-20),
    "objects": lambda m: Message(**dict.fromkeys([*m, "thing"], object())),
}
FAILS = ("at once", "later")


class Spoiling(Transport):
    """Replaces messages of which `where(envelope)` is true: `change(message)`, or None for a message that is lost."""

    def __init__(self, where: Callable[[Envelope], bool], change: Callable[[Message], Message] | None = None) -> None:
        self.where, self.change = where, change

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        if not self.where(envelope):
            return envelope
        return Missing.LOST if self.change is None else envelope._replace(message=self.change(envelope.message))


@cache
def honest(name: str) -> tuple[Validator, dict[str, int], list[tuple[str, Message, Message]]]:
    """What client `victim` sends in a run in which nothing is refused.

    The server's checks; the phases in which it answers, or shares, and the first round of each; each phase's first
    message with each set of fields, and what it answers.
    """
    witness, checked = RecordingObserver(), dict[tuple[str, ...], tuple[str, Message, Message]]()
    engine = LocalEngine(setup(name), observers=[witness])
    validator = engine.exchange.validator

    def problem(sender: str, phase: str, message: Message, request: Message) -> Problem | None:
        if sender == victim(name):
            checked.setdefault((phase, *message), (phase, message, request))
        return Validator.problem(validator, sender, phase, message, request)

    with mock.patch.object(validator, "problem", problem):
        for number in range(1, ROUNDS + 1):
            assert not [row for row in engine.round(number).traffic if row.missing]
        engine.evaluate()
    assert not engine.missed
    found: dict[str, int] = {}
    for envelope in witness.envelopes:
        if envelope.sender == victim(name):
            found.setdefault(envelope.phase, envelope.round)
    return validator, found, list(checked.values())


def phases(name: str) -> dict[str, int]:
    """The phases in which client `victim` answers, or shares, and the first round of each."""
    return honest(name)[1]


def setup(name: str) -> Setup:
    """The setup of a case, with two local steps."""
    return small_setup(CASES[name], local_steps=2)


@cache
def victim(name: str) -> str:
    """The client that something is wrong with."""
    return sorted(setup(name).federation)[2]


def ran(setup: Setup, transport: Transport, rounds: int) -> tuple[bytes, list[Traffic], LocalEngine]:
    """The engine's state after these rounds, as bytes; the lines of all that is missing; the engine."""
    engine, missing = LocalEngine(setup, transport=transport), []
    for number in range(1, rounds + 1):
        missing += [row for row in engine.round(number).traffic if row.missing]
    return codec.encode(engine.state()), missing, engine


def of(id: str, phase: str, round: int, to_client: bool = False) -> Callable[[Envelope], bool]:
    """Whether an envelope is this client's message of this phase and round, or the request for it."""
    return lambda envelope: (
        (envelope.phase, envelope.round) == (phase, round)
        and (envelope.sender == SERVER and envelope.receiver == id if to_client else envelope.sender == id)
    )


def failing(patch: pytest.MonkeyPatch, how: str, id: str, phase: str, round: int) -> None:
    """Let this client's phase (a peer's round) raise: at once, or when it is resumed with its first answer."""
    if how == "at once":
        real = LocalSite._raise_if_crashed

        def begin(self: LocalSite, who: str, name: str) -> None:
            if (who, self.number, name) == (id, round, phase):
                raise OSError("the disk of this client is gone")
            real(self, who, name)

        patch.setattr(LocalSite, "_raise_if_crashed", begin)
        return
    resume = Running.resume

    def resumed(self: Running, answer: Any) -> Any:
        request = resume(self, answer)
        here = (self.id, self.phase, self.view.round) == (id, phase, round)
        if here and (answer is not None or (request is None and self.share is None)):
            raise ZeroDivisionError("a bug\nthat only this client's samples find")
        return request

    patch.setattr(Running, "resume", resumed)
