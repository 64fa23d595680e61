"""What a participant is shown before anything leaves it."""

from __future__ import annotations

import pytest

from fedkin.methods import METHODS
from fedkin.network.leaving import leaving
from fedkin.running.networked import plan_of, settings_of
from fedkin.tasks import Task
from network.federations import experiment


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_says_what_leaves_a_participant(method: str) -> None:
    plan = plan_of(settings_of(experiment(method)), Task(10, (1, 8, 8))).equipped()
    lines = leaving(plan, id="c00")
    assert not [line for line in lines if "not declared" in line]
    assert "about this" in " ".join(lines)


@pytest.mark.parametrize("method", ["given", "kin"])
def test_what_depends_on_the_request_may_leave(method: str) -> None:
    plan = plan_of(settings_of(experiment(method)), Task(10, (1, 8, 8))).equipped()
    (line,) = [line for line in leaving(plan) if line.startswith("train: ")]
    assert "params (perhaps: of the net: body.1.weight [8, 64]" in line
