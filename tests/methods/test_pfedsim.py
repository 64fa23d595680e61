"""pFedSim: FedAvg first, then bodies mixed by the likeness of heads, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.engines.results import SERVER
from fedkin.methods.pfedsim import PFedSim, head_cosines, mixed_bodies, similarity_weights
from methods.plain_loops import (
    BODY,
    HEAD,
    classes_federation,
    cosine,
    floats,
)
from support import after, present, small_federation, small_setup

SIZE = 7 * 5 + 7 + 7 * 4 + 4


@pytest.mark.parametrize(("warmup", "rounds", "warm"), [(0.5, 7, 3), (0.5, 1, 0), (0, 9, 0), (1, 9, 1), (4, 9, 4)])
def test_warm_up_is_a_fraction_or_a_count(warmup: float, rounds: int, warm: int) -> None:
    engine = LocalEngine(small_setup(PFedSim(warmup=warmup), rounds=rounds))
    for round in range(1, warm + 2):
        engine.round(round)
        assert bool(engine.server.state["models"]) == (round > warm), "models of their own come after the warm-up only"


def test_opposite_and_unrelated_heads_share_nothing() -> None:
    heads = [{"head.weight": torch.tensor([row])} for row in ([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0])]
    np.testing.assert_array_equal(similarity_weights(head_cosines(heads), 0.9999), np.eye(4))


@given(st.integers(0, 2**32 - 1))
def test_cosines_by_rows_and_of_whole_heads(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    heads = [
        {name: torch.randn(shape, generator=draw).double() for name, shape in zip(HEAD, ((3, 4), (3,)), strict=True)}
        for _ in range(3)
    ]
    for i, one in enumerate(heads):
        for j, other in enumerate(heads):
            rows = [float(cosine(one["head.weight"][c], other["head.weight"][c])) for c in range(3)]
            assert head_cosines(heads)[i, j] == pytest.approx(sum(rows) / 3)
            flat = [torch.cat([head["head.bias"], head["head.weight"].flatten()]) for head in (one, other)]
            assert head_cosines(heads, whole=True)[i, j] == pytest.approx(float(cosine(*flat)))


def test_counters_take_the_largest_value_and_stay_integers() -> None:
    bodies = [{"body.n": torch.tensor(5 + k), "body.mean": torch.tensor([float(k)])} for k in range(3)]
    for mixed in mixed_bodies(bodies, np.full((2, 3), 1 / 3)):
        assert mixed["body.n"].dtype == torch.int64
        assert mixed["body.n"].item() == 7
        torch.testing.assert_close(mixed["body.mean"], torch.tensor([1.0]))


@pytest.mark.slow
def test_the_graph_tells_clients_with_unlike_classes_apart() -> None:
    federation = classes_federation([(0, 1, 2)] * 3 + [(3, 4, 5)] * 3, [8] * 6)
    graph = present(after(PFedSim(warmup=0), 40, federation)[1].graph)
    assert graph.ids == tuple(sorted(federation))
    weights = np.asarray(graph.weights)
    assert np.array_equal(weights, weights.T)
    within = [weights[i, j] for i in range(6) for j in range(i) if (i < 3) == (j < 3)]
    across = [weights[i, j] for i in range(6) for j in range(i) if (i < 3) != (j < 3)]
    assert min(within) > max(across)
    np.testing.assert_allclose(np.asarray(graph.mixing).sum(1), 1.0)


def test_heads_stay_at_home_once_they_are_personal() -> None:
    setup = small_setup(PFedSim(warmup=1))
    witness = RecordingObserver()
    engine = LocalEngine(setup, observers=[witness])
    n = len(setup.federation)
    first, second, third = (engine.round(number) for number in (1, 2, 3))
    assert floats(first.traffic) == floats(second.traffic) == 2 * n * SIZE  # 2 M (theta + phi)
    assert floats(third.traffic, up=True) == n * SIZE
    assert floats(third.traffic, up=False) == n * (7 * 5 + 7)
    down = [e.message for e in witness.envelopes if (e.round, e.sender) == (3, SERVER)]
    assert len(down) == n
    assert all(set(message["params"]) == set(BODY) for message in down)


def test_mixed_prediction_has_the_own_head_on_the_mixed_body() -> None:
    trained, mixed = (after(PFedSim(warmup=0, predict=predict), 1)[0] for predict in ("trained", "mixed"))
    for id in small_federation():
        for name in HEAD:
            assert torch.equal(trained.model(id)[name], mixed.model(id)[name])
        for name in BODY:
            assert not torch.equal(trained.model(id)[name], mixed.model(id)[name])


def test_clients_that_were_never_met_use_the_common_model() -> None:
    engine, _ = after(PFedSim(warmup=1), 1, clients_per_round=2)
    common = dict(engine.server.state["params"])
    sampled = set(engine.round(2).sampled)
    for id in engine.setup.federation:
        same = all(torch.equal(engine.model(id)[name], common[name]) for name in common)
        assert same == (id not in sampled)
