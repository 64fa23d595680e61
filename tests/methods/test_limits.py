"""Limits: FedAvg or local training bit for bit; planted groups are found by clustered methods."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.engines import LocalEngine
from fedkin.errors import FedkinError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.graph import ari
from fedkin.learning import Net
from methods.flt_world import grouped, raw
from methods.plain_loops import assert_params
from support import after, named, play, present, same, small_federation, small_setup

CLUSTERED = [named("cfl", eps1=0.0), named("ifca", clusters=1), named("fedsem", clusters=1)]
ALL = tuple(small_federation())


def members_of(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The ids of each planted group."""
    groups: dict[str, tuple[str, ...]] = {}
    for id, group in present(federation.planted).items():
        groups[group] = (*groups.get(group, ()), id)
    return groups


def assert_close_models(one: Any, other: Any) -> None:
    for id in one.setup.federation:
        assert_params(one.model(id), dict(other.model(id)), 1e-6)


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("method", CLUSTERED, ids=lambda method: method.name)
def test_one_cluster_is_fedavg(method: Any, weights: str) -> None:
    options: dict[str, Any] = {"clients_per_round": 3, "momentum": 0.5}
    one, outcome = after(method.model_copy(update={"weights": weights}), 4, **options)
    assert same(one.models(), after(named("fedavg", weights=weights), 4, **options)[0].models())
    assert outcome.graph is None or set(outcome.graph.groups.values()) == {0}


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (named("fedprox", mu=0.0), named("fedavg")),
        (named("pca-km-hc", clusters=1), named("fedavg")),
        (named("drfa", gamma=0.0, snapshot=False), named("fedavg", weights="equal")),
        (named("pfedsim", warmup=3), named("fedavg")),
        (named("given", groups={"all": ALL}), named("fedavg")),
        (named("given"), named("local")),
        (named("feddrift", every=2), named("fedavg")),
        (named("cobo", rho=0), named("local")),
        (named("fedu", lam=0.0), named("local")),
        (named("fedu", lam=0.5, graph={"control": "self"}), named("local")),
    ],
    ids=["fedprox", "pca-km-hc", "drfa", "pfedsim", "given", "given-alone", "feddrift", "cobo", "fedu", "fedu-self"],
)
def test_it_is_a_simpler_method(method: Any, limit: Any) -> None:
    assert same(*(after(each, 3)[0].models() for each in (method, limit)))


@pytest.mark.parametrize(
    "method",
    [
        raw(k=2),
        named("flt-same"),
        named("pca-km-hc", clusters=3, centres=2),
        named("pacfl", vectors=1, threshold=15.0),
        named("kin", degrees="groups"),
        named("given", groups=members_of(grouped())),
    ],
    ids=lambda method: method.name,
)
def test_each_group_is_fedavg_among_its_members(method: Any) -> None:
    engine, _ = after(method, 3, grouped())
    for ids in members_of(grouped()).values():
        alone, _ = after(named("fedavg"), 3, grouped().reorder(ids))
        assert same({id: engine.model(id) for id in ids}, alone.models())


# With all samples in one batch there is no draw in which the two could differ.
@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (named("fedavg-ft", passes=0), named("fedavg")),
        (named("ditto", lam=0), named("local")),
        (named("apfl", alpha=0, adaptive=False), named("fedavg")),
        (named("apfl", alpha=1, adaptive=False), named("local")),
        (named("per-fedavg", alpha=0), named("fedavg")),
        (named("lg-fedavg", warmup=0), named("fedsim")),
        (named("lg-fedavg", warmup=99), named("fedavg")),
        (named("fedbn"), named("fedavg")),
        (named("fednova"), named("fedavg")),
        (named("fedamp", lam=0), named("local")),
        (named("fedproto", lam=0.0, predict="head"), named("local")),
        (named("sfmtl-graph", lam=0.0), named("local")),
        (named("dfedavgm", momentum=0.0), named("fedavg", weights="equal")),
        (named("fedu", lam=1.0, tau=1 / 6), named("fedavg", weights="equal")),
    ],
    ids=lambda method: method.name,
)
def test_with_whole_batches_it_is_a_simpler_method(method: Any, limit: Any) -> None:
    options: dict[str, Any] = {"batch_size": "all", "local_steps": 3, "dtype": torch.float64}
    assert_close_models(after(method, 3, **options)[0], after(limit, 3, **options)[0])


def test_fedper_of_one_client_is_local() -> None:
    alone = small_federation().reorder(ALL[:1])
    assert same(*(after(method, 3, alone)[0].models() for method in (named("fedper"), named("local"))))


def test_scaffold_is_fedavg_where_all_have_the_same_samples() -> None:
    first = small_federation()[ALL[0]]
    equal = Federation([replace(first, id=id) for id in ALL], small_federation().task)
    options: dict[str, Any] = {"batch_size": "all", "local_steps": 3, "dtype": torch.float64}
    assert_close_models(*(after(method, 3, equal, **options)[0] for method in (named("scaffold"), named("fedavg"))))


def test_dittos_models_tend_to_the_shared_one_as_lam_grows() -> None:
    distances = []
    for lam in (0.0, 10.0, 100.0, 1000.0):
        engine, _ = after(named("ditto", lam=lam), 2, lr=1e-3, local_steps=20, batch_size="all", dtype=torch.float64)
        shared, own = dict(engine.server.state["params"]), engine.model(ALL[0])
        distances.append(sum(float((own[name] - shared[name]).norm()) for name in own))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.2 * distances[0]


def test_scaffold_refuses_momentum_by_name() -> None:
    with pytest.raises(FedkinError, match=r"training\.momentum"):
        after(named("scaffold"), 1, momentum=0.9)


@pytest.mark.slow
def test_feddyn_minimises_the_mean_of_the_losses_and_fedavg_does_not() -> None:
    """Least squares of clients with unlike inputs, of whom each takes many steps."""
    draw, clients, normal, target = np.random.default_rng(0), [], np.zeros((3, 3)), np.zeros(3)
    for k in range(4):
        x = draw.normal(size=(50, 3)) * draw.uniform(0.3, 2, 3)
        y = x @ draw.normal(size=3)
        normal, target = normal + x.T @ x / 50, target + x.T @ y / 50
        samples = Samples(torch.from_numpy(x), torch.from_numpy(y[:, None]))
        clients.append(Client(f"c{k}", samples, samples))
    federation, away = Federation(clients, Task.regression(1, (3,))), {}
    net = Net(nn.Flatten(), nn.Linear(3, 1, bias=False), torch.float64)
    for method in (named("feddyn", alpha=1.0), named("fedavg", weights="equal")):
        engine = LocalEngine(
            replace(small_setup(method, federation, lr=0.05, batch_size="all", local_steps=10), net=net)
        )
        play(engine, *range(1, 41))
        found = engine.server.state["params"]["head.weight"][0].numpy()
        away[method.name] = float(np.abs(found - np.linalg.solve(normal, target)).max())
    assert away["feddyn"] < 1e-4 < 0.01 < away["fedavg"]


def test_fedala_without_a_rate_has_fedavgs_common_model() -> None:
    one, other = (after(method, 3)[0] for method in (named("fedala", eta=0), named("fedavg")))
    assert_params(dict(one.server.state["params"]), dict(other.server.state["params"]), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("method", "rounds", "clients_per_round"),
    [
        (named("cfl"), 20, "all"),
        # Of half the clients a round, the last are placed some rounds after the split.
        (named("cfl"), 30, 0.5),
        (named("ifca"), 12, "all"),
        (named("ifca", share="body"), 12, "all"),
        (named("fedsem"), 8, "all"),
    ],
)
def test_planted_groups_with_conflicting_labels_are_found(
    method: Any, rounds: int, clients_per_round: Any, seed: int
) -> None:
    federation = small_federation(12, seed)
    engine, outcome = after(method, rounds, federation, local_steps=10, clients_per_round=clients_per_round)
    planted = present(federation.planted)
    assert set(outcome.graph.ids) == set(federation)
    assert ari([planted[id] for id in outcome.graph.ids], outcome.graph.labels) == 1
    assert right_of(engine) > 1.4 * right_of_one_model(seed)


def right_of(engine: LocalEngine) -> int:
    return sum(score.right for score in engine.evaluate().values())


@cache
def right_of_one_model(seed: int) -> int:
    """What FedAvg predicts for the clients of this seed."""
    return right_of(after(named("fedavg"), 12, small_federation(12, seed), local_steps=10)[0])
