"""`fedkin.run` gives the figures of the command line, for names, objects, own nets and own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedkin
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from support import small_federation
from tiny import TABLE

PLAN = {"local_steps": 2, "lr": 0.1}


@pytest.mark.slow
def test_the_python_twin_of_an_experiment_file() -> None:
    by_file = run_experiment(Experiment.of(TABLE), Path())
    fed = fedkin.federate("digits", "rotated-masked", clients=6, seed=0)
    by_hand = fedkin.run(
        SfmtlGraph(lam=0.5), fed, rounds=7, seed=0, training={**PLAN, "clients_per_round": 4},
        settings={"mode": "one-by-one"},
        model=lambda task: (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 10)),
    )  # fmt: skip
    for name in ("accuracy", "bytes", "floats", "groups", "flops"):
        assert by_hand.summary[name] == by_file.summary[name]
    assert by_hand.scores == by_file.scores


def test_a_pair_of_modules_starts_from_its_own_values() -> None:
    body, head = nn.Linear(5, 6), nn.Linear(6, 4)
    result = fedkin.run("local", small_federation(), rounds=0, model=(body, head))
    for params in result.models.values():
        assert torch.equal(params["body.weight"], body.weight)
        assert torch.equal(params["head.bias"], head.bias)
    assert result.summary["rounds"] == 0
    assert result.summary["accuracy"]["clients"] == 6


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fedavg", {"round": 1}, "round: no such argument of run.*; did you mean 'rounds'"),
        ("sfmtl-graph", {"alpah": 0.5}, r"method\.alpah: no such setting; did you mean 'alpha'"),
        (FedAvg(), {"weights": "equal"}, "weights: set these on the method object"),
        ("local", {"settings": {"dtpe": "float64"}}, r"settings\.dtpe: no such setting; did you mean 'dtype'\?"),
        ("local", {"settings": {"seed": 3}}, r"settings\.seed: give the seed as run\("),
        ("local", {"rounds": -1}, r"training\.rounds"),
        (FedAvg, {}, "expected a name or a method object"),
        ("local", {"model": (nn.Linear(6, 3), nn.Linear(3, 4))}, r"model: .* does not take inputs of shape \(5,\)"),
        ("local", {"model": (nn.Linear(5, 3), nn.Linear(3, 3))}, r"expected outputs \[batch, 4\], got \(1, 3\)"),
    ],
)
def test_arguments_are_checked_before_training(method: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedkin.run(method, small_federation(), **options)


def test_bytes_by_client_add_up() -> None:
    result = fedkin.run("sfmtl-graph", small_federation(), rounds=3, training={**PLAN, "clients_per_round": 2})
    by_client = result.summary["bytes"]["clients"]
    for way in ("up", "down"):
        assert sum(ways[way] for ways in by_client.values()) == result.summary["bytes"][way]
    assert set(by_client) == set(small_federation())


def test_a_result_is_read_back_for_the_same_settings_data_and_net_only(tmp_path: Path) -> None:
    few: dict[str, Any] = {"rounds": 2, "training": PLAN, "out": tmp_path / "run"}
    first, again = (fedkin.run("fedavg", small_federation(), **few) for _ in range(2))
    assert (again.summary, again.scores) == (first.summary, first.scores)
    for seed, changed in ((1, dict[str, Any]()), (0, {"model": "linear"}), (0, {"rounds": 3})):
        why = "differs from the experiment to resume" if changed else "are not those that this run began with"
        with pytest.raises(RunError, match=why):
            fedkin.run("fedavg", small_federation(seed=seed), **{**few, **changed})


def test_a_run_with_attackers_is_read_back(tmp_path: Path) -> None:
    for attack in ("label-flip:0.2", "sybil:0.4"):
        options: Any = {"rounds": 1, "settings": {"adversaries": attack}, "out": tmp_path / attack[:5]}
        first = fedkin.run("fedavg", small_federation(), **options)
        assert fedkin.run("fedavg", small_federation(), **options).summary == first.summary


def test_rounds_may_be_a_setting_of_training() -> None:
    assert fedkin.run("local", small_federation(), training={"rounds": 2}).summary["rounds"] == 2


def test_a_body_without_a_vector_of_features_is_refused_by_methods_that_need_one() -> None:
    net = nn.Unflatten(1, (1, 5)), nn.Sequential(nn.Flatten(), nn.Linear(5, 4))
    with pytest.raises(MethodError, match=r"features \[batch, d\]"):
        fedkin.run("sfmtl-graph", small_federation(), model=net)


def test_clients_without_test_samples() -> None:
    fed = small_federation()
    blind = type(fed)([replace(client, test=client.test.take([])) for client in fed.values()], fed.task)
    result = fedkin.run("fedavg", blind, rounds=1, training=PLAN)
    assert result.accuracy != result.accuracy
    assert result.summary["accuracy"] == {"clients": 0}


def test_shared_frozen_and_unsaved_parts_of_a_net() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 5)
            self.b = nn.Linear(5, 5)
            self.b.weight = self.a.weight
            self.a.bias.requires_grad_(False)
            self.register_buffer("scale", torch.tensor(2.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.b(self.a(x)) * self.scale)

    body = Odd()
    for mode in ("one-by-one", "fast"):
        result = fedkin.run("sfmtl-graph", small_federation(), rounds=2, model=(body, nn.Linear(5, 4)), training=PLAN,
                            settings={"mode": mode})  # fmt: skip
        for params in result.models.values():
            assert "body.a.bias" not in params  # frozen: part of the net, the same for all
            assert not torch.equal(params["body.a.weight"], body.a.weight)
