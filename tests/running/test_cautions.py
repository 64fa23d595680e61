"""What was told to a method, and warnings about a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fedkin
from fedkin.engines import Score
from fedkin.running.summary import cautions, given
from support import small_federation

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
    assert given(method, network) == told


def test_a_warm_up_as_long_as_the_run_is_told_of() -> None:
    assert "warm-up of 100 rounds" in cautions({"warmup": 100}, 30, lines(0.6, 0.5), FINE, "accuracy")[0]
    assert cautions({"warmup": 100, "graph": {"on": False}}, 30, lines(0.6, 0.5), FINE, "accuracy") == []
    assert cautions({"warmup": 0.5}, 30, lines(0.6, 0.5), FINE, "accuracy") == []
    assert cautions({"warmup": 5}, 30, lines(0.6, 0.5), FINE, "accuracy") == []


def test_one_evaluated_round_is_told_of() -> None:
    found = cautions({}, 30, [*lines(0.5), {"round": 2, "accuracy": None}], FINE, "accuracy")
    assert found[0].startswith("one of 30 rounds was evaluated")
    assert cautions({}, 1, lines(0.5), FINE, "accuracy") == []


def test_models_that_diverged_are_told_of() -> None:
    broken = {**FINE, "c": Score(10, math.nan, 1), "empty": Score(0, math.nan, 0)}
    assert cautions({}, 5, lines(0.5, None), broken, "accuracy") == [
        "the models of 1 of 4 clients diverged (c): set training.lr lower"
    ]
    assert "grew from 0.5 to 9" in cautions({}, 5, lines(0.5, 9.0), FINE, "accuracy")[0]
    assert cautions({}, 5, lines(0.5, 2.0), FINE, "accuracy") == []


def test_a_run_says_both_in_its_summary() -> None:
    federation = small_federation()
    plan = {"local_steps": 2, "batch_size": 8, "lr": 0.1}
    found = fedkin.run("ifca", federation, rounds=2, training=plan, clusters=2, warmup=2)
    assert found.summary["given"] == ["2 groups, given"]
    assert found.summary["warnings"][0].startswith("the warm-up of 2 rounds")
    plain = fedkin.run("fedavg", federation, rounds=2, training=plan)
    assert "given" not in plain.summary
    assert "warnings" not in plain.summary
