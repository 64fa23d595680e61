"""Secure sums over a network: the plain run's models, also when members are lost, and keys signed by certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from certificates import new_town
from fedkin.network.consent import disclosure
from fedkin.network.join_file import Member
from fedkin.network.signing import Signer
from fedkin.running.networked import settings_of, setup_of
from network.called import CalledNetwork
from network.federations import Clients, experiment, simulated, state_in
from network.memory import MemoryNetwork
from network.processes import place_for, rows
from support import same

SECURE = {"secure_sums": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "network"), [("fedavg", MemoryNetwork), ("kin", MemoryNetwork), ("fedavg", CalledNetwork)]
)  # as over Zenoh, and as on Flower
def test_a_federation_with_secure_sums_has_the_models_of_its_simulation(
    method: str, network: type[Any], tmp_path: Path
) -> None:
    plan = experiment(method, clients=6, privacy=SECURE)
    Clients(plan, tmp_path, network()).whole()
    simulated(plan, tmp_path / "here")
    assert same(*(state_in(tmp_path / name)["server"] for name in ("there", "here")))  # masks differ, no bit of the sum


def test_a_client_that_leaves_is_missing_in_the_sums_of_the_others(tmp_path: Path) -> None:
    with Clients(experiment(clients=5, rounds=3, privacy=SECURE), tmp_path) as there:
        there.start()
        result = there.serve(then={1: lambda: there.stop("c00")})
    assert len(result.rounds) == 3
    assert torch.isfinite(state_in(tmp_path / "there")["server"]["params"]["head.bias"]).all()


def test_consent_says_that_parameters_leave_masked(tmp_path: Path) -> None:
    plan = experiment(clients=5, privacy=SECURE)
    federation = plan.federation(tmp_path)
    lines = disclosure(setup_of(settings_of(plan), federation.task), federation["c00"])
    assert any(line.startswith("train: params") and "masked, for a sum over a group" in line for line in lines)
    assert any("the sum over a group of at least 3 members" in line for line in lines)


def test_keys_are_signed_by_certificates() -> None:
    town = new_town()
    signs, checks = (Signer(town[name], {"ann": Member(), "ben": Member()}) for name in ("ann", "ben"))
    signature = signs.sign("ann", b"keys")
    assert checks.holds("ann", b"keys", signature)
    for wrong in (("ann", b"other keys", signature), ("ben", b"keys", signature), ("ann", b"keys", signature[:40])):
        assert not checks.holds(*wrong)
    assert not checks.holds("ann", b"keys", b"")


@pytest.mark.slow
def test_secure_sums_over_tls_are_those_of_the_simulation(tmp_path: Path) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, new_town(), "fedavg", clients=4, rounds=2, privacy=SECURE) as place:
        place.whole(run)
    simulated(experiment(clients=4, rounds=2, privacy=SECURE), tmp_path / "here")
    assert same(*(state_in(folder)["server"] for folder in (run, tmp_path / "here")))
    assert {"secure.masked", "secure.unmask"} <= {row[3] for row in rows(run)}
