"""FedCollab: the solver against all partitions, divergences and rounds against a plain loop, and its limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.engines import Setup
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedcollab import FedCollab, coalitions
from fedkin.methods.local import Local
from methods.plain_loops import (
    HEAD,
    Plain,
    assert_params,
    combined,
    entropy,
    initial,
    logits,
    partitions,
    plain_training,
)
from support import after, newcomers, present, same, small_federation

# -- the solver -------------------------------------------------------------------------------------------------------


def objective(parts: list[list[int]], n: Any, d: Any, c: float) -> float:
    """mean_i [c sqrt(sum_j a_ij^2 / n_j) + sum_j a_ij d_ij], client by client."""
    total = 0.0
    for part in parts:
        a = {j: n[j] / sum(n[k] for k in part) for j in part}
        for i in part:
            total += c * sum(a[j] ** 2 / n[j] for j in part) ** 0.5 + sum(a[j] * d[i, j] for j in part)
    return total / len(n)


def parts_of(labels: Any) -> list[list[int]]:
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, 9))
def test_the_best_of_all_partitions_is_found(count: int) -> None:
    for seed in range(4):
        draw = np.random.default_rng(seed)
        n, upper = draw.integers(10, 200, count), np.triu(draw.random((count, count)), 1)
        d, c = upper + upper.T, float(draw.choice([0.5, 2.0, 5.0]))
        least = min(objective(parts, n, d, c) for parts in partitions(list(range(count))))
        found = coalitions(n.tolist(), d, c, 100, seed)
        assert objective(parts_of(found), n, d, c) == pytest.approx(least, abs=1e-12)


def test_planted_divergences_make_the_planted_coalitions_whatever_the_order() -> None:
    draw = np.random.default_rng(0)
    planted = draw.permutation(np.repeat([0, 1, 2], [6, 4, 2]))
    n = draw.integers(30, 300, 12)
    d = np.where(planted[:, None] == planted, 0.1, 0.9) + draw.uniform(0, 0.05, (12, 12))
    d = np.triu(d, 1) + np.triu(d, 1).T
    found = coalitions(n.tolist(), d, 5.0, 20, 0)
    assert np.array_equal(found[:, None] == found, planted[:, None] == planted)
    turn = draw.permutation(12)
    np.testing.assert_array_equal(coalitions(n[turn].tolist(), d[np.ix_(turn, turn)], 5.0, 20, 0), found[turn])


# -- whole rounds -----------------------------------------------------------------------------------------------------


def told(params: Plain, x: Tensor, y: Tensor) -> Tensor:
    return logits(params, x.double())[torch.arange(len(y)), y]


def plain_divergences(setup: Setup, exchanges: int) -> dict[tuple[str, str], float]:
    """Pair after pair: FedAvg of one discriminator, and the best sum of the shares told right, less 1."""
    kept, held = {}, {}
    for id, client in setup.federation.items():
        rows = np.arange(client.size)
        kept[id] = replace(client, train=client.train.take(rows[rows % 5 != 4]).own())
        held[id] = client.train.take(rows[rows % 5 == 4])
    part: Any = SimpleNamespace(federation=kept, training=setup.training, seed=setup.seed)
    found = {}
    for pair in combinations(sorted(kept), 2):
        params = {**initial(setup), **{name: torch.zeros_like(initial(setup)[name]) for name in HEAD}}
        found[pair] = 0.0
        for exchange in range(exchanges + 1):
            right, trained = 0.0, {}
            for id, other, side in ((pair[0], pair[1], 1), (pair[1], pair[0], -1)):
                right += float(
                    (side * told(params, held[id].inputs(slice(None)), held[id].labels()) > 0).double().mean()
                )

                def loss(p: Plain, x: Tensor, y: Tensor, side: int = side) -> Tensor:
                    return F.softplus(-side * told(p, x, y)).mean()

                # A client goes through the others in the order of their ids: it judges, then it trains.
                place = [mate for mate in sorted(kept) if mate != id].index(other) + exchange * (len(kept) - 1)
                trained[id] = plain_training(part, id, 1, params, loss, "discriminate", fit=2 * place + 1)
            found[pair] = max(found[pair], right - 1)
            if exchange < exchanges:
                params = combined(trained, dict.fromkeys(pair, 0.5))
    return found


def test_two_rounds_are_those_of_a_plain_loop() -> None:
    engine, _ = after(FedCollab(exchanges=3, c=4.0), 2, small_federation(5), lr=0.3, dtype=torch.float64)
    setup = engine.setup
    ids, n = sorted(setup.federation), [setup.federation[id].size for id in sorted(setup.federation)]
    wanted = plain_divergences(setup, 3)
    divergence = engine.server.state["divergence"]
    assert {pair: divergence[pair[0]][pair[1]] for pair in wanted} == pytest.approx(wanted, abs=1e-9)
    d = np.array([[divergence[i].get(j, 0.0) for j in ids] for i in ids])
    best = min(partitions(list(range(5))), key=lambda parts: objective(parts, n, d, 4.0))
    assert 1 < len(best) < 5

    def loss(params: Plain, x: Tensor, y: Tensor) -> Tensor:
        return entropy(logits(params, x.double()), y)

    for part in best:
        shares = {ids[k]: n[k] / sum(n[j] for j in part) for k in sorted(part)}
        common = initial(setup)
        for number in (1, 2):
            common = combined({id: plain_training(setup, id, number, common, loss) for id in shares}, shares)
        for id in shares:
            assert_params(engine.model(id), common)


@pytest.mark.parametrize(("c", "limit"), [(0.0, Local()), (1e9, FedAvg())])
def test_without_an_error_of_estimation_it_is_local_and_with_a_large_one_fedavg(c: float, limit: Any) -> None:
    one, other = after(FedCollab(c=c, exchanges=1), 3)[0], after(limit, 3)[0]
    assert same(one.models(), other.models())


@pytest.mark.slow
def test_a_client_that_comes_later_is_compared_with_all_and_one_that_never_does_has_the_mean() -> None:
    federation = small_federation()
    late, unseen = sorted(federation)[:2]
    engine, _ = after(FedCollab(c=8.0, exchanges=10), 1, newcomers(federation, [unseen], {late: 2}), local_steps=8)
    before = dict(engine.server.state["cluster"])
    assert set(before) == set(federation) - {late, unseen}
    engine.round(2)
    state, planted = engine.server.state, present(federation.planted)
    assert all(len(state["divergence"][id]) == 4 for id in state["cluster"])
    assert all(
        (state["cluster"][i] == state["cluster"][j]) == (planted[i] == planted[j])
        for i, j in combinations(state["cluster"], 2)
    )
    members = list(state["cluster"].values())
    mean = combined(state["models"], {number: members.count(number) / 5 for number in state["models"]})
    assert_params(dict(engine.model(unseen)), mean)
