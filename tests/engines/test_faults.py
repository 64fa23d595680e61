"""Faults as a setting, clients that fail, and what a run does with too few replies."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkin
from engines.faulty import CASES, FAILS, GARBAGE, ROUNDS, Spoiling, failing, honest, of, phases, ran, setup, victim
from fedkin import codec
from fedkin.engines import Faults, LocalEngine, LoopbackEngine, Outcome, Traffic
from fedkin.engines.failures import TooFew
from fedkin.engines.results import SERVER, Missing
from fedkin.engines.setup import KINDS
from fedkin.engines.transport import Envelope, Faulty, Transport, spoiled
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import ClientFlow, Fit, Message, PeerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.testing import small_federation, small_setup
from fedkin.views import ClientView
from support import NET_METHODS, PATTERNS, begun, by_pattern, changed, finite, with_settings
from tiny import TABLE

NAMES = sorted(small_federation())


def kinds(outcome: Outcome) -> Counter[str]:
    return Counter(row.missing for row in outcome.traffic if row.missing)


def faulty(faults: dict[str, Any], method: Any = None, **training: Any) -> LocalEngine:
    return LocalEngine(with_settings(small_setup(method or FedAvg(), **training), faults))


# -- faults -------------------------------------------------------------------------------------------------------


def sent(count: int = 2000, round: int = 4) -> list[Envelope]:
    return [Envelope(round, "train", 0, f"c{k}", SERVER, Message(n=3)) for k in range(count)]


@pytest.mark.parametrize("what", ["late", "stale", "garbage"])
def test_how_often_a_fault_happens(what: str) -> None:
    made = Faulty(Transport(), Faults.model_validate({what: 0.3}), seed=2, rounds=9)
    came = [made.carry(envelope) for envelope in sent()]
    odd = sum(isinstance(e, Missing) or e.round != 4 or dict(e.message) != {"n": 3} for e in came)
    assert 540 < odd < 660  # binomial: 600 expected, standard deviation 20.5
    again = Faulty(Transport(), Faults.model_validate({what: 0.3}), seed=2, rounds=9)
    assert [isinstance(e, Missing) for e in map(again.carry, sent())] == [isinstance(e, Missing) for e in came]


@pytest.mark.parametrize(("before", "share"), [(0.0, 0), (0.25, 150), (0.5, 300), (1.0, 600)])
def test_an_exchange_is_lost_before_or_after_training_never_both(before: float, share: int) -> None:
    made = Faulty(Transport(), Faults(dropout=0.3, before=before), seed=1)
    down = [e._replace(sender=SERVER, receiver=e.sender) for e in sent()]
    lost = [[made.carry(envelope) is Missing.LOST for envelope in way] for way in (down, sent())]
    assert not any(there and back for there, back in zip(*lost, strict=True))
    assert abs(sum(lost[0]) - share) < 60  # binomial: of 600 in all, with a standard deviation of 20.5
    assert abs(sum(lost[1]) - (600 - share)) < 60


def test_a_client_that_is_gone_never_comes_back() -> None:
    engine = faulty({"gone": 0.5}, rounds=4)
    gone: set[str] = set()
    for number in range(1, 7):
        rows = [row for row in engine.round(number).traffic if row.missing]
        assert {row.missing for row in rows} <= {"gone"}
        now = {row.receiver for row in rows}
        assert gone <= now
        gone = now
    assert 0 < len(gone) < 6
    assert set(engine.evaluate()) == set(engine.setup.federation)


def test_a_crash_is_a_client_that_was_not_reached() -> None:
    engine = faulty({"crash": 0.4})
    rows = [row for row in engine.round(1).traffic if row.missing]
    assert {row[6:] for row in rows} == {("failed", "crashed, by faults.crash")}
    crashed = {row.sender for row in rows}
    absent = begun(small_setup(FedAvg()), transport=Spoiling(lambda e: e.receiver in crashed))
    assert codec.encode(engine.state()) == codec.encode(absent.state())


def test_all_may_crash_and_the_run_goes_on() -> None:
    engine = faulty({"crash": 0.999})
    before = codec.encode({"state": engine.server.state})
    assert kinds(engine.round(1)) == {"failed": 6}
    assert codec.encode({"state": engine.server.state}) == before


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_garbage_is_refused(kind: str) -> None:
    engine = faulty({"garbage": 0.9, "kinds": [kind]}, SfmtlGraph())
    found = kinds(engine.round(1))
    assert found.keys() == {"refused"}
    assert found["refused"] >= 3
    message = Message(params={"w": torch.ones(3)}, n=3)
    assert spoiled(message, kind).to_bytes() != message.to_bytes()
    assert torch.equal(message.params["w"], torch.ones(3))
    assert len(spoiled(Message(), kind)) == 1


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_every_method_ends_finite_with_all_faults_at_once(name: str) -> None:
    faults = {"dropout": 0.3, "garbage": 0.1, "late": 0.1, "stale": 0.1, "crash": 0.1, "gone": 0.1}
    engine = faulty(faults, CASES[name], local_steps=1)
    for number in (1, 2, 3, 4):
        engine.round(number)
    assert finite(*(engine.model(id) for id in engine.setup.federation))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "fedavg" else pytest.mark.slow) for name in PATTERNS]
)
def test_faults_are_the_same_behind_bytes(name: str) -> None:
    faults = {"dropout": 0.2, "garbage": 0.2, "late": 0.1, "stale": 0.1, "crash": 0.1}
    one, other = (kind(with_settings(small_setup(CASES[name]), faults)) for kind in (LocalEngine, LoopbackEngine))
    for number in (1, 2, 3):
        rows = [sorted(row for row in engine.round(number).traffic if row.missing) for engine in (one, other)]
        assert rows[0] == rows[1]


def test_a_run_says_what_was_missing_by_kind_and_client(tmp_path: Path) -> None:
    often = {"dropout": 0.2, "garbage": 0.2, "late": 0.3, "stale": 0.1, "crash": 0.1}
    experiment = Experiment.of(TABLE).with_changes(**{f"faults.{name}": share for name, share in often.items()})
    result = run_experiment(experiment, Path(), tmp_path / "run")
    missing = result.summary["missing"]
    assert set(missing["kinds"]) == {"lost", "late", "stale", "refused", "failed"}
    assert sum(missing["kinds"].values()) == sum(bool(row[6]) for row in result.messages)
    assert all(one["count"] > 0 and one["reason"] for one in missing["clients"].values())
    assert any(row.get("missing") for row in result.rounds)


# -- clients that fail ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choosy:
    """A loss that has a bug for clients of some size."""

    rows: int

    def __call__(self, model: Any, batch: Any, extras: Any, carry: Any, /) -> Tensor:
        name = "no such key" if extras["n"] == self.rows else "n"
        loss: Tensor = CrossEntropy()(model, batch, {}, {}) + 0 * extras[name]
        return loss


class Fragile(FedAvg):
    """FedAvg with that loss."""

    rows: int = 0

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params, Choosy(self.rows), extras={"n": client.size})
        return Message(params=fitted.params, n=client.size)


FRAGILE = Fragile(rows=small_federation()[NAMES[1]].size)


@pytest.mark.parametrize("mode", ["one-by-one", "fast"])
@pytest.mark.parametrize("engine", [LocalEngine, LoopbackEngine])
def test_a_bug_that_only_one_client_finds(engine: type[LocalEngine], mode: str) -> None:
    with closing(engine(with_settings(small_setup(FRAGILE), mode=mode))) as made:
        (row,) = [row for row in made.round(1).traffic if row.missing]
    assert row[:4] == (1, NAMES[1], SERVER, "train")
    assert row.bytes == 0
    assert row.reason == "KeyError in the net or the loss: 'no such key'"


def test_errors_may_stop_the_run_at_the_first_client() -> None:
    with pytest.raises(MethodError, match=rf"round 1, client '{NAMES[1]}', phase 'train': KeyError in the net") as told:
        LocalEngine(with_settings(small_setup(FRAGILE), errors="stop")).round(1)
    assert isinstance(told.value.__cause__, KeyError)


def test_a_bug_that_all_clients_find_stops_the_run_in_any_case() -> None:
    class Broken(FedAvg):
        @phase
        def train(self, client: ClientView[Any], message: Message) -> Message:  # type: ignore[override]
            raise AttributeError("misspelt")

    with pytest.raises(AttributeError, match="misspelt"):
        LocalEngine(small_setup(Broken())).round(1)


def test_python_users_are_warned_of_clients_that_failed() -> None:
    why, federation = "failed: KeyError in the net or the loss: 'no such key'", small_federation()
    with pytest.warns(RuntimeWarning, match=f"client '{NAMES[1]}' in round 1, phase 'train': {why}") as warned:
        result = fedkin.run(FRAGILE, federation, rounds=2)
    assert warned[0].filename == __file__  # the line that called, not one of fedkin
    told = {"count": 2, "round": 1, "phase": "train", "reason": why}
    assert result.summary["missing"]["clients"] == {NAMES[1]: told}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedkin.run("fedavg", federation, rounds=2, faults={"crash": 0.3})


class Picky(nn.Module):
    """A body that cannot take large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.max()) > 50:
            raise RuntimeError("such inputs were never thought of")
        return torch.relu(self.layer(x))


def test_a_client_whose_test_samples_break_the_net_has_no_score() -> None:
    federation = small_federation()
    bad = federation[NAMES[2]]
    wild = replace(bad.test, x=torch.full((len(bad.test), 5), 99.0))
    setup = small_setup(FedAvg(), changed(federation, bad.id, test=wild))
    engine = begun(replace(setup, net=Net(Picky(), nn.Linear(7, 4))))
    assert set(engine.evaluate()) == set(NAMES) - {bad.id}
    words = "RuntimeError in the net or the loss: such inputs were never thought of"
    assert [(row.sender, row.phase, row.reason) for row in engine.missed] == [(bad.id, "evaluate", words)]


# -- too few replies --------------------------------------------------------------------------------------------------


def test_a_round_with_too_few_replies_is_skipped_as_if_it_had_not_been() -> None:
    lost = Spoiling(lambda e: (e.round, e.phase, e.receiver) == (2, "update", SERVER))
    engine = begun(with_settings(small_setup(SfmtlGraph()), min_replies=2), transport=lost)
    before = engine.state()
    outcome = engine.round(2)
    assert outcome.skipped == "round 2, phase 'update': 0 of 6 clients answered, fewer than the 2 of run.min_replies"
    assert outcome.graph is None
    assert codec.encode({**engine.state(), "round": 1}) == codec.encode(before)
    assert not engine.round(3).skipped


@pytest.mark.parametrize(("least", "skipped"), [(0, False), (4, False), (5, True), (0.6, False), (0.7, True)])
def test_the_least_is_a_number_or_a_share(least: float, skipped: bool) -> None:
    lost = set(NAMES[:2])
    setup = with_settings(small_setup(FedAvg()), min_replies=least)
    engine = LocalEngine(setup, transport=Spoiling(lambda e: e.sender in lost))
    assert bool(engine.round(1).skipped) is skipped


def test_a_run_that_stops_for_too_few_replies_can_be_resumed(tmp_path: Path) -> None:
    changes = {"faults.dropout": 0.5, "run.min_replies": 0.5, "run.checkpoint_every": 10}
    stops = Experiment.of(TABLE).with_changes(**changes, **{"run.on_missing": "stop"})
    words = r"round \d, phase '\w+': . of 4 clients .*; go on with --resume .*run \(in Python .* out=\)$"
    with pytest.raises(TooFew, match=words) as told:
        run_experiment(stops, Path(), tmp_path / "run")
    assert isinstance(told.value, RunError)
    stopped = int(str(told.value)[6])
    # The draws are keyed, so it stops at the same place; all rounds before it are safe.
    with pytest.raises(TooFew, match=rf"round {stopped}, "):
        run_experiment(stops, Path(), tmp_path / "run")
    if stopped > 1:
        (kept,) = (tmp_path / "run" / "checkpoint").iterdir()
        assert kept.name == f"round-{stopped - 1:06d}.safetensors"


def test_peers_have_no_server_that_waits() -> None:
    with pytest.raises(ConfigError, match=r"run\.min_replies: method 'mapl' has no server"):
        with_settings(small_setup(METHODS["mapl"]()), min_replies=2)


# -- one client that sends garbage or fails, in any phase of any method: it is named, and as good as abse ------------


all_cases = by_pattern(CASES)


def empty_is_fine(kind: str, phase: str) -> bool:
    """Whether this is no garbage: in some phases an empty reply says: no samples."""
    return kind == "missing" and phase in ("spread", "sign_moments")


@cache
def without(name: str, phase: str, round: int, request: bool, rounds: int) -> tuple[bytes, list[Traffic], LocalEngine]:
    """A run in which the victim's message of this phase, or the request for it, is lost."""
    return ran(setup(name), Spoiling(of(victim(name), phase, round, request)), rounds)


def stays_finite(engine: LocalEngine) -> bool:
    return finite(engine.state(), *(engine.model(id) for id in engine.setup.federation))


def fails_like_absent(name: str, phase: str, how: str) -> None:
    """Let the victim fail in this phase: for the others it is as if the request was lost, and its state stays."""
    id, round = victim(name), 1 if phase == "round" else phases(name)[phase]
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, how, id, phase, round)
        failed, missing, engine = ran(setup(name), Spoiling(lambda envelope: False), round)
    assert stays_finite(engine)
    ((sender, told, words),) = {(row.sender, row.phase, row.reason) for row in missing}
    assert (sender, told) == (id, phase)
    assert words.startswith(("OSError: the disk", "ZeroDivisionError: a bug that only"))
    if phase != "round":
        assert failed == without(name, phase, round, True, round)[0]
        return
    _, _, absent = ran(setup(name), Spoiling(lambda envelope: envelope.sender == id), round)
    assert id not in engine.states
    for other in set(engine.setup.federation) - {id}:
        assert codec.encode(dict(engine.model(other))) == codec.encode(dict(absent.model(other)))


@pytest.mark.parametrize("name", all_cases)
def test_all_garbage_is_refused_in_every_phase(name: str) -> None:
    validator, found, checked = honest(name)
    assert found or name == "local"
    assert {asked for asked, _, _ in checked} >= set(found)
    for asked, message, request in checked:
        for kind, spoil in GARBAGE.items():
            if not empty_is_fine(kind, asked):
                assert validator.problem(victim(name), asked, spoil(message), request), (asked, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CASES} - {*PATTERNS}))
def test_a_method_goes_on_without_a_reply_in_any_phase(name: str) -> None:
    """What is refused is as good as lost: all kinds of garbage show it for each pattern."""
    for asked, round in phases(name).items():
        assert stays_finite(without(name, asked, round, False, min(round + 1, ROUNDS))[2])


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "nan" else pytest.mark.slow) for kind in GARBAGE]
)
def test_all_kinds_of_garbage_in_every_phase_of_each_pattern(name: str, kind: str) -> None:
    """Spoil the victim's messages of a phase in one round: bits and records are those of messages that are lost."""
    id = victim(name)
    for asked, round in phases(name).items():
        last = min(round + 1, ROUNDS)
        spoiled, missing, engine = ran(setup(name), Spoiling(of(id, asked, round), GARBAGE[kind]), last)
        absent, lost, _ = without(name, asked, round, False, last)
        assert spoiled == absent
        assert {(row.sender, row.phase, row.round) for row in lost} == {(id, asked, round)}
        if not empty_is_fine(kind, asked):
            assert {row[:4] for row in missing} == {row[:4] for row in lost}
            assert {row.missing for row in missing} == {"refused"}
        assert stays_finite(engine)


@pytest.mark.parametrize("name", all_cases)
def test_a_client_that_fails_is_named_and_absent(name: str) -> None:
    """A method has sent and changed more when it fails later; whether at once is the same, the patterns show."""
    for asked in ["round"] if isinstance(CASES[name], PeerMethod) else phases(name):
        for how in FAILS if name in PATTERNS else ("later",):
            fails_like_absent(name, asked, how)
