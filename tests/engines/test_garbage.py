"""One client that sends garbage or fails, in any phase of any method: it is named, and as good as absent."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from engines.faulty import CASES, FAILS, GARBAGE, ROUNDS, Spoiling, failing, of, phases, ran, setup, victim
from fedkin.codec import tensors_of
from fedkin.engines import LocalEngine, Traffic
from fedkin.flow import PeerMethod
from support import NET_METHODS, by_pattern

every_case = pytest.mark.parametrize("name", CASES)
all_cases = by_pattern(CASES)


def like_absent(name: str, phase: str, kind: str) -> None:
    """Spoil the victim's messages of this phase in one round: bits and records are those of messages that are lost."""
    id, round = victim(name), phases(name)[phase]
    last = min(round + 1, ROUNDS)
    spoiled, missing, engine = ran(setup(name), Spoiling(of(id, phase, round), GARBAGE[kind]), last)
    absent, lost, _ = without(name, phase, round, False, last)
    assert spoiled == absent
    assert {(row.sender, row.phase, row.round) for row in lost} == {(id, phase, round)}
    if not (kind == "missing" and phase in ("spread", "sign_moments")):  # an empty reply says: no samples
        assert {row[:4] for row in missing} == {row[:4] for row in lost}
        assert {row.missing for row in missing} == {"refused"}
    finite(engine)


@cache
def without(name: str, phase: str, round: int, request: bool, rounds: int) -> tuple[bytes, list[Traffic], LocalEngine]:
    """A run in which the victim's message of this phase, or the request for it, is lost."""
    return ran(setup(name), Spoiling(of(victim(name), phase, round, request)), rounds)


def finite(engine: LocalEngine) -> None:
    for pointer, tensor in tensors_of(engine.state()).items():
        assert not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), pointer
    for id in engine.setup.federation:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in engine.model(id).values()), id


def fails_like_absent(name: str, phase: str, how: str) -> None:
    """Let the victim fail in this phase: for the others it is as if the request was lost, and its state stays."""
    id, round = victim(name), 1 if phase == "round" else phases(name)[phase]
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, how, id, phase, round)
        failed, missing, engine = ran(setup(name), Spoiling(lambda envelope: False), round)
    finite(engine)
    ((sender, told, words),) = {(row.sender, row.phase, row.reason) for row in missing}
    assert (sender, told) == (id, phase)
    assert words.startswith(("OSError: the disk", "ZeroDivisionError: a bug that only"))
    if phase != "round":
        assert failed == without(name, phase, round, True, round)[0]
        return
    _, _, absent = ran(setup(name), Spoiling(lambda envelope: envelope.sender == id), round)
    assert id not in engine.states
    for other in set(engine.setup.federation) - {id}:
        one, same = engine.model(other), absent.model(other)
        assert all(torch.equal(tensor, same[at]) for at, tensor in one.items())


@pytest.mark.parametrize("name", all_cases)
def test_honest_clients_are_never_refused(name: str) -> None:
    found = phases(name)
    assert found or name == "local"
    for phase in found:
        assert type(CASES[name]).declared(phase) is not None, f"{phase}: declare what it sends"


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
@pytest.mark.parametrize("turn", range(3))
def test_garbage_is_refused_and_its_sender_absent(name: str, turn: int) -> None:
    """Each phase with three kinds of garbage; all kinds come up over the phases of all methods."""
    kinds = list(GARBAGE)
    for place, phase in enumerate(phases(name)):
        like_absent(name, phase, kinds[(list(NET_METHODS).index(name) + place + 3 * turn) % len(kinds)])


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("kind", GARBAGE)
def test_all_garbage_in_every_phase_of_every_method(name: str, kind: str) -> None:
    for phase in phases(name):
        like_absent(name, phase, kind)


@pytest.mark.parametrize("name", all_cases)
@pytest.mark.parametrize("how", FAILS)
def test_a_client_that_fails_is_named_and_absent(name: str, how: str) -> None:
    for phase in ["round"] if isinstance(CASES[name], PeerMethod) else phases(name):
        fails_like_absent(name, phase, how)
