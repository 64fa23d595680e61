"""What a participant is shown before anything leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkin.engines import Setup
from fedkin.flow import Message
from fedkin.graph import Plan, Spread, sign
from fedkin.network.consent import disclosure, largest_message
from fedkin.running.experiment import Experiment
from fedkin.running.networked import settings_of, setup_of
from network.federations import NOWHERE, experiment, own_metric
from support import NET_METHODS

FEDERATION = experiment(clients=3).federation(NOWHERE)
CLIENT = FEDERATION["c00"]


def agreed(plan: Experiment) -> Setup:
    return setup_of(settings_of(plan), FEDERATION.task).equipped()


@pytest.mark.parametrize("method", sorted(NET_METHODS))
def test_every_method_says_what_leaves_a_participant(method: str) -> None:
    lines = disclosure(agreed(experiment(method)), CLIENT)
    assert not [line for line in lines if "not declared" in line]
    assert "about this" in " ".join(lines)


def test_no_more_is_taken_than_the_declared_form_can_have() -> None:
    setup = agreed(experiment("fedavg"))
    size = Message(params=setup.net.initial, n=100).nbytes
    assert size < largest_message(setup, "c00") < 2 * size + 100_000
    open_form = agreed(experiment("fedproto"))
    assert largest_message(open_form, "c00") == 2**30


@pytest.mark.parametrize("method", ["given", "kin"])
def test_what_depends_on_the_request_may_leave(method: str) -> None:
    (line,) = [line for line in disclosure(agreed(experiment(method)), CLIENT) if line.startswith("train: ")]
    assert "params (perhaps: of the net: body.1.weight [8, 64]" in line


def test_a_signature_is_as_large_as_is_said() -> None:
    (line,) = [line for line in disclosure(agreed(experiment("kin")), CLIENT) if line.startswith("sign_moments: ")]
    said = "signature (about 2,500 bytes, at most 1,048,576 bytes) or an empty message, about 2,500 bytes each time"
    assert said in line
    draw = np.random.default_rng(0)
    for width, classes in ((5, 2), (784, 10), (784, 62)):
        x, y = draw.normal(size=(300, width)).astype(np.float32), draw.integers(0, classes, 300)
        signature = sign(Plan.of([Spread.of(x, y)]), x, y)
        assert 1000 < len(signature.to_bytes()) < 5000


@pytest.mark.usefixtures("forgotten")
def test_the_numbers_of_further_metrics_are_named_with_the_file_that_computes_them() -> None:
    assert disclosure(agreed(own_metric()), CLIENT)[-1] == (
        "metrics: a number of each over its test samples: balanced-accuracy (fedkin), wrong-share "
        f"({Path(__file__).with_name('federations.py')})"
    )
    # A peer's figures stay with the peer.
    alone = disclosure(agreed(own_metric("dfedavgm")), CLIENT)
    assert not [line for line in alone if line.startswith(("metrics", "evaluation"))]
