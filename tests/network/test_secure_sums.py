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


def apart(one: Any, other: Any) -> float:
    """The largest sum of differences between two tensors, or difference of two numbers, of two trees."""
    if isinstance(one, torch.Tensor):
        return float((one.double() - other.double()).abs().sum())
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max((apart(part, other[name]) for name, part in one.items()), default=0.0)
    if isinstance(one, list):
        assert len(one) == len(other)
        return max(map(apart, one, other), default=0.0)
    return abs(one - other) if isinstance(one, float) and one != other else float(one != other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "network"), [("fedavg", MemoryNetwork), ("kin", MemoryNetwork), ("fedavg", CalledNetwork)]
)  # as over Zenoh, and as on Flower
def test_a_federation_with_secure_sums_has_the_models_of_its_simulation(
    method: str, network: type[Any], tmp_path: Path
) -> None:
    plan = experiment(method, clients=6, privacy=SECURE)
    Clients(plan, tmp_path, network()).whole()
    there = state_in(tmp_path / "there")["server"]
    simulated(plan, tmp_path / "here")
    assert same(there, state_in(tmp_path / "here")["server"])  # masks differ, and no bit of the sum
    simulated(experiment(method, clients=6), tmp_path / "plain")
    assert apart(there, state_in(tmp_path / "plain")["server"]) < 1e-4


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
def test_kin_over_tls_with_secure_sums_is_the_plain_run(tmp_path: Path) -> None:
    # Two groups. At a small rate training does not enlarge what masked sums round: the bound is 40 times that error.
    sections: dict[str, Any] = {
        "scenario": {"rotations": [0, 90], "mask_rate": 0.0}, "model": {"name": "mlp", "hidden": [32]},
        "training": {"lr": 0.1, "local_steps": 10},
    }  # fmt: skip
    run = tmp_path / "there"
    with place_for(tmp_path, new_town(), "kin", rounds=8, privacy=SECURE, **sections) as place:
        place.whole(run)
    for name, privacy, bound in (("secure", SECURE, 0.0), ("plain", {}, 1e-3)):
        simulated(experiment("kin", rounds=8, privacy=privacy, **sections), tmp_path / name)
        assert apart(state_in(run)["server"], state_in(tmp_path / name)["server"]) <= bound
    phases = {row[3] for row in rows(run)}
    assert {"secure.masked", "secure.unmask"} <= phases
