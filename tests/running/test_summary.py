"""What was told to a method, and warnings about a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.engines import Score
from fedkin.federation import Federation
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.running.summary import prior_knowledge, warnings_of
from tiny import TABLE

FINE = {"a": Score(10, 0.5, 8), "b": Score(10, 0.4, 7)}


def lines(*losses: float | None) -> list[dict[str, Any]]:
    return [{"round": i, "accuracy": {"loss": loss}} for i, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("method", "network", "told"),
    [
        ({"clusters": "same"}, "complete", []),
        ({"clusters": 1}, "ring", ["1 group, given"]),
        ({"graph": {"groups": 4, "control": "none"}}, "complete", ["4 groups, given"]),
        ({"graph": {"groups": "kmeans:3"}}, "complete", ["3 groups, given"]),
        ({"graph": {"groups": "louvain", "control": "oracle"}}, "complete", ["planted graph, given"]),
        ({"graph": "knn"}, "planted:0.1", ["planted network, given"]),
        ({"groups": {"x": ["a"], "y": ["b"]}}, "complete", ["2 groups, given"]),
        ({}, "complete", []),
    ],
)
def test_what_was_told(method: dict[str, Any], network: str, told: list[str]) -> None:
    assert prior_knowledge(method, network) == told


def test_a_warm_up_as_long_as_the_run_is_told_of() -> None:
    assert "warm-up of 100 rounds" in warnings_of({"warmup": 100}, 30, lines(0.6, 0.5), FINE, "accuracy")[0]
    for fine in ({"warmup": 100, "graph": {"on": False}}, {"warmup": 0.5}, {"warmup": 5}):
        assert warnings_of(fine, 30, lines(0.6, 0.5), FINE, "accuracy") == []


def test_one_evaluated_round_is_told_of() -> None:
    found = warnings_of({}, 30, [*lines(0.5), {"round": 2, "accuracy": None}], FINE, "accuracy")
    assert found[0].startswith("one of 30 rounds was evaluated")
    assert warnings_of({}, 1, lines(0.5), FINE, "accuracy") == []


def test_models_that_diverged_are_told_of() -> None:
    broken = {**FINE, "c": Score(10, math.nan, 1), "empty": Score(0, math.nan, 0)}
    (told,) = warnings_of({}, 5, lines(0.5, None), broken, "accuracy")
    assert told == "the models of 1 of 4 clients diverged (c): set training.lr lower"
    assert "grew from 0.5 to 9" in warnings_of({}, 5, lines(0.5, 9.0), FINE, "accuracy")[0]
    assert warnings_of({}, 5, lines(0.5, 2.0), FINE, "accuracy") == []


def test_a_run_says_both_in_its_summary(federation: Federation) -> None:
    found = fedkin.run("ifca", federation, rounds=2, clusters=2, warmup=2)
    assert found.summary["given"] == ["2 groups, given"]
    assert found.summary["warnings"][0].startswith("the warm-up of 2 rounds")
    assert not {"given", "warnings"} & set(fedkin.run("fedavg", federation, rounds=2).summary)


# -- features in a run's records: at the rounds that were asked for, and without changing anything else --------------


def ran(folder: Path, **run: Any) -> Path:
    changes = {"training.rounds": 4, **{f"run.{name}": value for name, value in run.items()}}
    run_experiment(Experiment.of(TABLE).with_changes(**changes), Path(), folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "features").iterdir())


def test_features_are_those_of_the_last_round_unless_asked_and_nothing_else_changes(tmp_path: Path) -> None:
    usual = ran(tmp_path / "usual")
    assert names(usual) == ["round-000004.safetensors"]
    seldom = ran(tmp_path / "seldom", embeddings_every=1, evaluate_every=3)
    assert names(seldom) == ["round-000003.safetensors", "round-000004.safetensors"]
    often = ran(tmp_path / "often", embeddings_every=1)
    assert len(names(often)) == 4
    for name in ("rounds.jsonl", "clients.parquet", "messages.parquet", "rounds.csv", "graphs/round-000004.npz"):
        assert (often / name).read_bytes() == (usual / name).read_bytes(), name
    assert (often / "features" / names(usual)[0]).read_bytes() == (usual / "features" / names(usual)[0]).read_bytes()
