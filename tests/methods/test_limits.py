"""Limits: FedAvg or local training bit for bit; planted groups are found by clustered methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.graph import ari
from fedkin.methods.cfl import Cfl
from fedkin.methods.drfa import Drfa
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.methods.fedsem import FedSem
from fedkin.methods.given import Given
from fedkin.methods.ifca import Ifca
from fedkin.methods.local import Local
from fedkin.methods.pca_km_hc import PcaKmHc
from fedkin.methods.pfedsim import PFedSim
from support import after, small_federation

CLUSTERED = [Cfl(eps1=0.0), Ifca(clusters=1), FedSem(clusters=1)]
ALL = tuple(small_federation())


def assert_equal_models(one: Any, other: Any) -> None:
    for id in one.setup.federation:
        for name, tensor in one.model(id).items():
            assert torch.equal(tensor, other.model(id)[name]), (id, name)


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("method", CLUSTERED, ids=lambda method: method.name)
def test_one_cluster_is_fedavg(method: Any, weights: str) -> None:
    options: dict[str, Any] = {"clients_per_round": 3, "momentum": 0.5}
    one, outcome = after(method.model_copy(update={"weights": weights}), 4, **options)
    assert_equal_models(one, after(FedAvg.model_validate({"weights": weights}), 4, **options)[0])
    assert outcome.graph is None or set(outcome.graph.groups.values()) == {0}


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (FedProx(mu=0.0), FedAvg()),
        (PcaKmHc(clusters=1), FedAvg()),
        (Drfa(gamma=0.0, snapshot=False), FedAvg(weights="equal")),
        (PFedSim(warmup=3), FedAvg()),
        (Given(groups={"all": ALL}), FedAvg()),
        (Given(), Local()),
    ],
    ids=["fedprox", "pca-km-hc", "drfa", "pfedsim", "given", "given-alone"],
)
def test_it_is_a_simpler_method(method: Any, limit: Any) -> None:
    assert_equal_models(after(method, 3)[0], after(limit, 3)[0])


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("method", "rounds", "clients_per_round"),
    [
        (Cfl(), 20, "all"),
        # Of half the clients a round, the last are placed some rounds after the split.
        pytest.param(Cfl(), 30, 0.5, marks=pytest.mark.slow),
        (Ifca(), 12, "all"),
        (Ifca(share="body"), 12, "all"),
        (FedSem(), 8, "all"),
    ],
)
def test_planted_groups_with_conflicting_labels_are_found(
    method: Any, rounds: int, clients_per_round: Any, seed: int
) -> None:
    federation = small_federation(12, seed)
    engine, outcome = after(method, rounds, federation, local_steps=10, clients_per_round=clients_per_round)
    planted = federation.planted
    assert planted is not None
    assert set(outcome.graph.ids) == set(federation)
    assert ari([planted[id] for id in outcome.graph.ids], outcome.graph.labels) == 1
    fedavg, _ = after(FedAvg(), rounds, federation, local_steps=10)
    right, common = (sum(score.right for score in each.evaluate().values()) for each in (engine, fedavg))
    assert right > 1.4 * common
