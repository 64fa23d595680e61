"""Scores that are computed once for what is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import fedkin
from fedkin.engines import Score
from fedkin.engines.accounting import KnownScore, Scores, model_names
from fedkin.engines.setup import EngineSettings, Setup
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods.fedavg import FedAvg
from support import small_federation


def test_a_metric_is_computed_once_for_a_model_and_test_set() -> None:
    happened: list[Any] = []

    @fedkin.metric(higher=True)
    def mean_output(outputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> float:
        happened.append("computed")
        return float(outputs.mean())

    federation = small_federation()
    net = Net.build(lambda: Mlp(hidden=(7,)).build(federation.task), 11)
    plan = Setup(FedAvg(), federation.task, net, Training(), 0, EngineSettings(), measures=(mean_output,))
    one, other = dict(net.initial), {name: tensor + 1 for name, tensor in net.initial.items()}
    tests = [client.test for client in federation.values()][:2]
    held = {"a": (one, tests[0]), "b": (other, tests[0]), "c": (dict(one), tests[0]), "d": (one, tests[1])}
    scores = Scores()
    held["e"] = one, tests[0]  # known later
    names = model_names({id: params for id, (params, _) in held.items()})
    every = {id: KnownScore(names[id], params, test, Score(len(test), 0.5, 0)) for id, (params, test) in held.items()}
    scores.known = {id: every[id] for id in "abcd"}

    scores.measure("abcd", plan)
    assert happened == ["computed"] * 3
    found = {id: known.score.further for id, known in scores.known.items()}
    assert found["a"] == found["c"]
    assert len({found["a"], found["b"], found["d"]}) == 3
    with torch.no_grad():
        module = net.scratch()
        values = torch.func.functional_call(module, one, (tests[1].inputs(slice(None)),))
    np.testing.assert_allclose(np.array(found["d"], float), [values.double().mean().item()], rtol=1e-6)
    scores.measure("abcd", plan)
    # A client that comes to have both takes what is known of them.
    scores.known["e"] = every["e"]
    scores.measure(held, plan)
    assert happened.count("computed") == 3
    assert scores.known["e"].score.further == found["a"]
