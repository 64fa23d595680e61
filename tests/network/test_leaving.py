"""What a participant is shown before anything leaves it."""

from __future__ import annotations

import pytest

from fedkin.methods import METHODS
from fedkin.network.leaving import leaving
from fedkin.running.networked import plan_of, settings_of
from network.federations import NOWHERE, experiment

FEDERATION = experiment(clients=3).federation(NOWHERE)
CLIENT = FEDERATION["c00"]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_says_what_leaves_a_participant(method: str) -> None:
    plan = plan_of(settings_of(experiment(method)), FEDERATION.task).equipped()
    lines = leaving(plan, CLIENT)
    assert not [line for line in lines if "not declared" in line]
    assert "about this" in " ".join(lines)


@pytest.mark.parametrize("method", ["given", "kin"])
def test_what_depends_on_the_request_may_leave(method: str) -> None:
    plan = plan_of(settings_of(experiment(method)), FEDERATION.task).equipped()
    (line,) = [line for line in leaving(plan, CLIENT) if line.startswith("train: ")]
    assert "params (perhaps: of the net: body.1.weight [8, 64]" in line
