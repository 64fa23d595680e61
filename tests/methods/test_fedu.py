"""FedU against its equation, its limits, and its graphs against their controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.methods.fedu import FedU
from support import Watched, newcomers, present, small_federation, small_setup


@pytest.mark.parametrize("source", ["cosine", "l2", "rbf", "dot", "planted"])
@pytest.mark.parametrize("neighbours", ["answered", "all"])
def test_a_round_is_the_papers_step_on_the_recorded_graph(source: str, neighbours: str) -> None:
    lam, lr, steps = 0.8, 0.05, 3
    method = FedU(lam=lam, neighbours=neighbours, graph={"source": source})
    engine = Watched(small_setup(method, dtype=torch.float64, lr=lr, local_steps=steps, clients_per_round=4))
    kept: dict[str, dict[str, Tensor]] = {}
    for number in (1, 2, 3):
        graph = present(engine.round(number).graph)
        trained = {id: dict(reply["params"]) for id, reply in engine.replies("train").items()}
        ids = sorted({**kept, **trained} if neighbours == "all" else trained)
        assert list(graph.ids) == ids
        a, before = np.asarray(graph.weights), {**kept, **trained}
        assert np.array_equal(a, a.T)
        assert a.any()
        for id in engine.federation:
            want = dict(before.get(id, engine.initial))
            if id in trained:
                k = ids.index(id)
                for name in want:
                    pull = sum(a[k, j] * (before[id][name] - before[other][name]) for j, other in enumerate(ids))
                    want[name] = before[id][name] - lam * lr * steps * pull
            torch.testing.assert_close(dict(engine.model(id)), want, rtol=1e-12, atol=1e-14)
        kept = {id: dict(engine.model(id)) for id in before}


def test_similarity_of_updates_sees_the_planted_groups_and_layers_limit_what_it_reads() -> None:
    method = FedU(lam=0.0, graph={"source": "cosine", "layers": 1})
    engine = Watched(small_setup(method, dtype=torch.float64, local_steps=20)).rounds(6)
    graph: Any = engine.server.graph
    planted = present(engine.federation.planted)
    groups = np.array([planted[id] for id in graph.ids])
    same = groups[:, None] == groups[None, :]
    off = ~np.eye(6, dtype=bool)
    assert graph.weights[same & off].min() > graph.weights[~same].max()
    initial = engine.initial
    x = np.stack([
        np.concatenate([(engine.model(id)[n] - initial[n]).flatten().numpy() for n in ("head.weight", "head.bias")])
        for id in graph.ids
    ])  # fmt: skip
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(graph.weights[off], np.maximum(unit @ unit.T, 0)[off], rtol=1e-10)


def test_a_step_that_is_too_long_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="lower method.lam or method.tau"):
        Watched(small_setup(FedU(lam=1.0, tau=0.5))).rounds(1)


def test_a_newcomer_adapts_the_mean_model() -> None:
    federation = small_federation()
    new = sorted(federation)[0]
    models = {}
    for steps in (0, 5):
        engine = Watched(small_setup(FedU(welcome_steps=steps), newcomers(federation, [new]))).rounds(1)
        seen = [engine.model(id) for id in engine.federation.seen]
        mean = {name: torch.stack([m[name] for m in seen]).mean(0) for name in seen[0]}
        models[steps] = engine.model(new)
        for name, tensor in mean.items():
            assert torch.allclose(models[steps][name], tensor, atol=1e-6) == (steps == 0)


def test_planted_groups_must_be_there() -> None:
    federation = small_federation()
    unplanted = Federation([replace(c, group=None) for c in federation.values()], federation.task, "plain")
    with pytest.raises(ConfigError, match=r"method\.graph\.source: 'planted' needs planted groups, and those of plain"):
        FedU(graph={"source": "planted"}).check(unplanted)
