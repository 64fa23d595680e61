"""`fedkin.run` gives the figures of the command line, for names, objects, own nets and own data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedkin
from fedkin.errors import ConfigError, RunError
from fedkin.methods import FedAvg, SfmtlGraph
from fedkin.running.compare import run_experiment
from fedkin.running.experiment import Experiment
from support import small_federation
from tiny import TABLE

PLAN = {"local_steps": 2, "lr": 0.1}


def test_the_python_twin_of_an_experiment_file() -> None:
    by_file = run_experiment(Experiment.of(TABLE), Path())
    fed = fedkin.federate("digits", "rotated-masked", clients=6, seed=0)
    by_hand = fedkin.run(
        SfmtlGraph(lam=0.5), fed, rounds=7, seed=0, model=lambda task: _mlp(8), training={**PLAN, "per_round": 4}
    )
    for name in ("accuracy", "bytes", "floats", "groups", "flops"):
        assert by_hand.summary[name] == by_file.summary[name]
    assert by_hand.scores == by_file.scores


def _mlp(width: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU()), nn.Linear(width, 10)


def test_a_pair_of_modules_starts_from_its_own_values() -> None:
    body, head = nn.Linear(5, 6), nn.Linear(6, 4)
    result = fedkin.run("local", small_federation(), rounds=0, model=(body, head))
    for params in result.models.values():
        assert torch.equal(params["body.weight"], body.weight)
        assert torch.equal(params["head.bias"], head.bias)
    assert result.summary["rounds"] == 0
    assert result.summary["accuracy"]["clients"] == 6


def test_options_of_a_named_method_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"method\.alpah: no such setting; did you mean 'alpha'"):
        fedkin.run("sfmtl-graph", small_federation(), alpah=0.5)
    with pytest.raises(ConfigError, match="weights: set these on the method object"):
        fedkin.run(FedAvg(), small_federation(), weights="equal")
    with pytest.raises(ConfigError, match=r"settings\.dtpe: no such setting; did you mean 'dtype'\?"):
        fedkin.run("local", small_federation(), settings={"dtpe": "float64"})


def test_records_are_resumed_read_back_and_guarded(tmp_path: Path) -> None:
    fed = small_federation()
    first = fedkin.run("fedavg", fed, rounds=2, training=PLAN, out=tmp_path / "run")
    again = fedkin.run("fedavg", fed, rounds=2, training=PLAN, out=tmp_path / "run")
    assert again.summary == first.summary
    assert again.scores == first.scores
    with pytest.raises(RunError, match="differs from the experiment to resume"):
        fedkin.run("fedavg", fed, rounds=3, training=PLAN, out=tmp_path / "run")


def test_double_precision() -> None:
    result = fedkin.run("fedavg", small_federation(), rounds=1, training=PLAN, settings={"dtype": "float64"})
    assert next(iter(result.models.values()))["head.weight"].dtype == torch.float64


def test_bytes_by_client_add_up() -> None:
    result = fedkin.run("sfmtl-graph", small_federation(), rounds=3, training={**PLAN, "per_round": 2})
    by_client = result.bytes_by_client()
    for way in ("up", "down"):
        assert sum(ways[way] for ways in by_client.values()) == result.summary["bytes"][way]
    assert set(by_client) == set(small_federation())
