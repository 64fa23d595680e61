"""The budget of an advice: what is planned within it, and what is left out when the machine becomes slower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedkin.advice.advising as advising
import fedkin.advice.candidates as shapes
import fedkin.advice.recommending as recommending
import fedkin.advice.work as work
from advised import BENCH, A, B, federation
from fedkin.advice import Advice, Plan, advise
from fedkin.advice.advising import PLAN_FILE
from fedkin.advice.recommending import Budget
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.records.files import read_json

# Seconds of a run of all 4 clients without rounds, of a round, and of finding the candidates.
ONCE, ROUND, TESTS, BEGUN = 0.5, 1.0, 3.0, 100.0
TOWN = federation({f"c{place}": ((A, B)[place % 2], 60) for place in range(4)})
FEW = replace(BENCH, training=BENCH.training.model_copy(update={"local_steps": 2}))


class Machine:
    """A machine whose clock goes on by what is computed, and by nothing else. slow: how much slower it has become."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slow, self.rounds = BEGUN, 1.0, list[int]()
        trained, shapes_of = work.trained, shapes.shapes_of

        def run(method: Any, made: Federation, bench: Any, rate: float) -> Any:
            self.rounds.append(bench.training.rounds)
            self.now += self.slow * len(made) / 4 * (ONCE + ROUND * bench.training.rounds)
            return trained(method, made, bench, rate)

        def tests(*given: Any) -> Any:
            self.now += self.slow * TESTS
            return shapes_of(*given)

        for place in (work, advising, recommending):
            monkeypatch.setattr(place, "trained", run)
        for other in (advising, recommending):
            monkeypatch.setattr(other, "shapes_of", tests)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def planned(machine: Machine, minutes: float, before: float = 0.0) -> tuple[Plan, Budget]:
    begun = machine.now
    machine.now += before
    budget = Budget(minutes, machine.clock, begun)
    return budget.plan(TOWN, FEW), budget


def advised(budget: Budget, plan: Plan, folder: Path | None = None) -> Advice:
    return advise(TOWN, FEW, plan, folder=folder, goes_on=budget.goes_on)


@pytest.mark.slow
def test_the_plan_falls_with_the_minutes(machine: Machine) -> None:
    each = [planned(machine, minutes)[0] for minutes in (100, 6, 4, 3, 2, 0.1)]
    sizes = [(plan.folds, len(plan.rates), plan.rounds) for plan in each]
    assert sizes[0] == (5, 3, FEW.training.rounds)
    assert sizes[-1] == (3, 1, 1)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 4


@pytest.mark.slow
def test_what_was_spent_before_counts(machine: Machine) -> None:
    assert planned(machine, 6)[0] != planned(machine, 6, before=200)[0]


@pytest.mark.parametrize("minutes", [pytest.param(6.0, marks=pytest.mark.slow), 4.0, 2.5])
def test_the_plan_keeps_to_the_minutes(machine: Machine, minutes: float) -> None:
    plan, budget = planned(machine, minutes, before=20)
    found = advised(budget, plan)
    assert bool(found.left_out) == (plan != Plan(rounds=FEW.training.rounds))
    assert found.rates == tuple(FEW.training.lr * rate for rate in plan.rates)
    # The recorded runs, one of which may train two models for each client, evaluate in each round.
    machine.now += 3 * (ONCE + ROUND) * (plan.rounds or FEW.training.rounds)
    assert budget.spent <= 60 * minutes


@pytest.mark.slow
def test_a_machine_that_becomes_slower_leaves_rates_out(machine: Machine, tmp_path: Path) -> None:
    plan, budget = planned(machine, 12)
    assert len(plan.rates) == 3
    machine.slow = 3.0
    found = advised(budget, plan, tmp_path)
    assert len(found.rates) < 3
    assert budget.spent <= 60 * 12
    left = [f"{rate:.2g}" for rate in Plan().rates[len(found.rates) :]]
    (note,) = [note for note in found.notes if note.startswith("Within the budget")]
    assert note == f"Within the budget, no run with {' or '.join(left)} times the rate."
    assert len(read_json(tmp_path / PLAN_FILE)["factors"]) == len(found.rates)
    # The same command goes on with what there is, and says the same.
    machine.slow, ran = 1.0, len(machine.rounds)
    again = Budget(12, machine.clock)
    kept = again.plan(TOWN, FEW, tmp_path)
    assert (kept.folds, len(kept.rates), kept.rounds) == (plan.folds, len(found.rates), plan.rounds)
    assert advised(again, kept, tmp_path).to_json() == found.to_json()
    assert len(machine.rounds) == ran + 2


@pytest.mark.slow
def test_what_was_tried_is_read_however_little_time_is_left(machine: Machine, tmp_path: Path) -> None:
    plan = Plan(3, (1.0, 3.0), 2)
    found = advised(Budget(100, machine.clock), plan, tmp_path)
    late = Budget(0.1, machine.clock)
    machine.now += 1000
    assert advised(late, late.plan(TOWN, FEW, tmp_path), tmp_path).to_json() == found.to_json()


@pytest.mark.slow
def test_a_smaller_plan_is_told_in_full() -> None:
    found = advise(TOWN, FEW, Plan(3, (1.0,), 2))
    assert "Within the budget, 3 folds, not 5; 2 rounds of each run, not 4; no run with 3 or 0.33 times the rate." in (
        found.notes
    )
    assert not [note for note in advise(TOWN, FEW).notes if note.startswith("Within")]


def test_what_cannot_be_planned_is_refused(machine: Machine) -> None:
    for minutes in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"^budget: expected minutes above 0"):
            Budget(minutes)
    late = [replace(client, joins=2) if id == "c1" else client for id, client in TOWN.items()]
    with pytest.raises(ConfigError, match="client 'c1' joins later"):
        Budget(1, machine.clock).plan(Federation(late, TOWN.task, TOWN.name), FEW)
    assert machine.now == BEGUN
