"""Own bodies in an advice: recommended where clients' inputs are turned against each other, and not where all agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin.advice.work as work
from advised import BENCH, A, advised, federation
from fedkin.advice import Advice, Plan, advise
from fedkin.advice.choice import OWN_BODIES, Marks, Trials
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.running.api import run

LONGER = replace(BENCH, training=BENCH.training.model_copy(update={"local_steps": 20}))
PLAN = Plan(folds=2, rates=(1.0,))


def striped(angle: float, count: int, rng: np.random.Generator) -> Samples:
    """Stripes of two classes, turned by this angle."""
    x = rng.normal(size=(count, 2))
    y = np.sin(2 * (np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1])) > 0
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))


@pytest.fixture(scope="module")
def turned() -> Federation:
    rng = np.random.default_rng(0)
    clients = [
        Client(f"c{place}", striped(angle, 100, rng), striped(angle, 40, rng))
        for place, angle in enumerate(np.linspace(-0.8, 0.8, 6))
    ]
    return Federation(clients, Task(2, (2,)), "stripes")


@pytest.fixture(scope="module")
def found(turned: Federation) -> Advice:
    return advised(turned, PLAN, LONGER)


def test_clients_whose_inputs_are_turned_get_bodies_of_their_own(found: Advice) -> None:
    assert (found.candidate, found.method.own_body) == ("all-heads", True)
    assert "that could be judged, with own bodies and heads (pull " in found.sentence
    assert found.to_json()["own_body"]
    bodies = [found.shared[client.id]["body.1.weight"] for client in found.clients]
    assert not any(torch.equal(bodies[0], other) for other in bodies[1:])


@pytest.mark.parametrize("kind", ["risk", "classification"])
def test_clients_of_one_distribution_share_the_body(kind: str) -> None:
    one = advised(federation({f"c{place}": (A, 60) for place in range(8)}, kind), PLAN)
    assert not one.method.own_body
    assert "own bodies" not in one.sentence


def test_the_method_gives_the_models_of_the_advice(turned: Federation, found: Advice) -> None:
    result = run(found.method, turned, model=LONGER.model, training=LONGER.training, settings={"mode": "fast"})
    takes = [client.id for client in found.clients if client.takes]
    assert takes
    for id in takes:
        for name, tensor in result.models[id].items():
            np.testing.assert_allclose(tensor.numpy(), found.models[id][name].numpy(), atol=1e-4)


def test_a_stopped_advice_goes_on_from_the_bodies_that_it_has(
    turned: Federation, found: Advice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods, trained = list[Any](), work.trained

    def noted(*given: Any) -> Any:
        methods.append(given[0])
        return trained(*given)

    monkeypatch.setattr(work, "trained", noted)
    assert advise(turned, LONGER, PLAN, folder=tmp_path).to_json() == found.to_json()
    assert [method.own_body for method in methods] == [False, True]
    assert advise(turned, LONGER, PLAN, folder=tmp_path).to_json() == found.to_json()
    (tmp_path / "bodies" / "run-0.safetensors").unlink()
    assert advise(turned, LONGER, PLAN, folder=tmp_path).to_json() == found.to_json()
    assert [method.own_body for method in methods] == [False, True, True]


@pytest.mark.parametrize(("rate", "losses", "own"), [(0, (0.4, 0.5), True), (0, (0.5, 0.5), False), (1, (0, 1), False)])
def test_a_clearly_smaller_loss_at_the_chosen_rate_decides(rate: int, losses: tuple[float, float], own: bool) -> None:
    """In all these the share of right samples is the same."""

    def did(loss: float) -> dict[str, list[Marks | None]]:
        noise = np.random.default_rng(0).normal(size=6) / 100
        return {
            id: [Marks("classification", (np.ones(20),), loss + by)] * 2 for id, by in zip("abcdef", noise, strict=True)
        }

    marks = {"all": {(0, 0): did(losses[1])}, OWN_BODIES: {(rate, 0): did(losses[0])}, "local": {(0, 0): did(1.0)}}
    trials = Trials(marks, {"all": frozenset("abcdef")}, 2)
    assert trials.pick("all", [0, 1]) == (OWN_BODIES if own else "all", (0, 0))
