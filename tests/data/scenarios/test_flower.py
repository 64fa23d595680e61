"""Partitioners of Flower Datasets as a scenario: what they say, no sample twice, and what is refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_sets import toy
from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios import SCENARIOS
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from support import module_at

Partitioned: Any = module_at(Path(__file__).parents[3] / "examples" / "flower_partitioner.py").Partitioned

PATHOLOGICAL: dict[str, Any] = {"num_partitions": 10, "partition_by": "label", "num_classes_per_partition": 2,
    "class_assignment_mode": "deterministic"}  # fmt: skip
WHY = "Flower Datasets is not installed: pip install 'fedkin[flwr-datasets]'"


def needing(test: Any) -> Any:
    """A test that needs the package, which is installed before the slow tests only."""
    return pytest.mark.slow(pytest.mark.skipif(find_spec("flwr_datasets") is None, reason=WHY)(test))


def built(dataset: Dataset, partitioner: str, seed: int = 3, test: str = "alike", **arguments: Any) -> Federation:
    table = {"name": "flwr-datasets", "partitioner": partitioner, "arguments": arguments, "test": test}
    federation: Federation = Partitioned.model_validate(table).federation(dataset, seed)
    return federation


def rows(client: Client, split: str = "train") -> list[int]:
    """Which samples a client has, by the numbers that the toy data set wrote into them."""
    samples = client.train if split == "train" else client.test
    x = samples.inputs(slice(None), torch.float64)
    return [round((abs(value) - 1) * 1000) for value in x.reshape(len(x), -1)[:, 0].tolist()]


def owned(dataset: Dataset) -> Dataset:
    """The data set with clients "w0" .. "w6"."""

    def part(given: Part) -> Part:
        return Part(given.x, given.y, np.char.mod("w%d", np.arange(len(given)) % 7))

    return Dataset(dataset.name, part(dataset.train), part(dataset.test), dataset.task, dataset.scale)


@needing
@pytest.mark.parametrize(
    ("partitioner", "arguments"),
    [
        ("IidPartitioner", {"num_partitions": 6}),
        ("DirichletPartitioner", {"num_partitions": 5, "partition_by": "label", "alpha": 0.5, "min_partition_size": 8}),
        ("PathologicalPartitioner", PATHOLOGICAL),
        ("ShardPartitioner", {"num_partitions": 5, "partition_by": "label", "num_shards_per_partition": 2}),
        ("SizePartitioner", {"partition_sizes": [100, 60, 40]}),
        ("LinearPartitioner", {"num_partitions": 4}),
        ("NaturalIdPartitioner", {"partition_by": "client"}),
    ],
)
def test_partitions_become_clients(partitioner: str, arguments: dict[str, Any]) -> None:
    dataset = owned(toy())
    made = built(dataset, partitioner, **arguments)
    train = {id: rows(client) for id, client in made.items()}
    assert sorted(row for own in train.values() for row in own) == list(range(200))
    tests = [row for client in made.values() for row in rows(client, "test")]
    assert len(set(tests)) == len(tests)
    assert built(dataset, partitioner, **arguments).fingerprint() == made.fingerprint()
    assert built(dataset, partitioner, seed=4, **arguments).fingerprint() != made.fingerprint()
    labels = {id: {row % 10 for row in own} for id, own in train.items()}
    sizes = sorted(map(len, train.values()))
    if partitioner == "PathologicalPartitioner":
        assert all(len(own) == 2 for own in labels.values())
    if partitioner == "NaturalIdPartitioner":
        assert sorted([*{row % 7 for row in own}] for own in train.values()) == [[number] for number in range(7)]
    expected = {"SizePartitioner": [40, 60, 100], "LinearPartitioner": [20, 40, 60, 80]}
    assert sizes == expected.get(partitioner, sizes)


@needing
def test_it_is_what_the_partitioner_says_with_the_runs_seed() -> None:
    from datasets import Dataset as Table
    from flwr_datasets.partitioner import DirichletPartitioner

    from fedkin.keys import rng

    dataset = toy()
    order = rng(3, "flwr-datasets", "train", "order").permutation(200)
    theirs = DirichletPartitioner(num_partitions=4, partition_by="label", alpha=1.0, seed=3)
    theirs.dataset = Table.from_dict({"row": order, "label": order % 10})
    made = built(dataset, "DirichletPartitioner", num_partitions=4, partition_by="label", alpha=1.0)
    assert [rows(client) for client in made.values()] == [list(theirs.load_partition(k)["row"]) for k in range(4)]


@needing
def test_test_samples_follow_the_labels_or_are_partitioned_too() -> None:
    made = built(toy(), "PathologicalPartitioner", **PATHOLOGICAL)
    for client in made.values():
        assert {row % 10 for row in rows(client, "test")} == {row % 10 for row in rows(client)}
    apart = built(toy(), "IidPartitioner", test="partitioned", num_partitions=5)
    assert [len(rows(client, "test")) for client in apart.values()] == [20] * 5


@needing
@pytest.mark.parametrize(
    ("partitioner", "arguments", "words"),
    [
        ("DirichletPartitoner", {}, "did you mean 'DirichletPartitioner'"),
        ("IidPartitioner", {"num_partition": 3}, "did you mean 'num_partitions'"),
        ("IidPartitioner", {}, "scenario.arguments: IidPartitioner: .*num_partitions"),
        ("IidPartitioner", {"num_partitions": 0}, "greater than zero"),
        ("ShardPartitioner", {"num_partitions": 3, "partition_by": "x", "shard_size": 5}, "train samples: .*x"),
        ("SizePartitioner", {"partition_sizes": [150, 150]}, "SizePartitioner, train samples"),
        ("VerticalEvenPartitioner", {"num_partitions": 2}, "divides columns"),
        ("IidPartitioner", {"num_partitions": 500}, "have no sample|IidPartitioner, train"),
    ],
)  # fmt: skip
def test_what_a_partitioner_refuses_is_said(partitioner: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(toy(), partitioner, **arguments)


@needing
def test_an_experiment_runs_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, "flwr-datasets", Partitioned)
    scenario = {"name": "flwr-datasets", "partitioner": "IidPartitioner", "arguments": {"num_partitions": 3}}
    table = {
        "name": "parts", "data": {"source": "digits"}, "scenario": scenario, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 1, "local_steps": 1}, "method": {"name": "fedavg"},
    }  # fmt: skip
    plan = Experiment.of(table)
    assert Experiment.of(plan.resolved()).scenario == plan.scenario
    result = execute(plan.setup(plan.federation(Path())), plan.run, name=plan.name, folder=tmp_path / "run")
    assert sorted(result.scores) == ["c00", "c01", "c02"]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match=r'pip install "fedkin\[flwr-datasets\]"'):
        built(toy(), "IidPartitioner", num_partitions=3)
