"""Figures of a round against numpy and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.engines import Score, Traffic
from fedkin.graph import Graph
from fedkin.records import metrics
from fedkin.tasks import Task

TASK = Task(10, (4,))


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=40))
def test_accuracy_against_numpy(clients: list[tuple[int, float]]) -> None:
    scores = {f"c{k}": Score(n, 1.0, round(share * n)) for k, (n, share) in enumerate(clients)}
    shares = np.array([score.right / score.n for score in scores.values()])
    found = metrics.figures(scores, TASK)
    assert found["mean"] == pytest.approx(shares.mean())
    assert found["std"] == pytest.approx(shares.std())
    assert found["variance"] == pytest.approx((100 * shares).var(), abs=1e-9)
    for share, name in ((0.1, "worst10"), (0.2, "worst20")):
        count = max(1, math.ceil(round(share * len(shares), 9)))
        assert found[name] == pytest.approx(np.sort(shares)[:count].mean())
    total = sum(score.n for score in scores.values())
    pooled = sum(score.right for score in scores.values()) / total
    assert found["pooled"] == pytest.approx(pooled)
    assert found["stderr"] == pytest.approx(math.sqrt(pooled * (1 - pooled) / total))


def test_clients_without_test_samples_are_left_out_and_counted() -> None:
    assert metrics.figures({"a": Score(4, 0.5, 2), "b": Score(0, math.nan, 0)}, TASK)["clients"] == 1
    assert metrics.figures({"b": Score(0, math.nan, 0)}, TASK) == {"clients": 0}


def test_traffic_both_ways() -> None:
    messages = [Traffic(1, "server", "a", "train", 100, 20), Traffic(1, "a", "server", "train", 60, 10),
                Traffic(1, "a", "b", "share", 7, 1)]  # fmt: skip
    assert metrics.traffic(messages) == {
        "bytes": {"up": 67, "down": 107},
        "floats": {"up": 11, "down": 21},
        "messages": {"up": 2, "down": 2},
    }


def test_groups_are_counted_by_their_verdict() -> None:
    labels = {"a": 0, "b": 0, "c": 1, "d": 2}
    graph = Graph(tuple(labels), np.zeros((4, 4)), groups=labels)
    assert "verdicts" not in metrics.groups(graph, None)
    each = replace(graph, values={"verdict": np.array(["same", "same", "alone", "alone"])})
    assert metrics.groups(each, None)["verdicts"] == {"alone": 2, "same": 1}


def test_groups_against_the_planted_ones() -> None:
    weights = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=float)
    graph = Graph(("d", "a", "c", "b"), weights, groups={"d": 0, "a": 0, "c": 1, "b": 1})
    planted = {"a": "x", "b": "y", "c": "y", "d": "x", "unsampled": "x"}
    found = metrics.groups(graph, planted)
    assert found == {"found": 2, "modularity": pytest.approx(0.5), "ari": 1.0, "nmi": pytest.approx(1.0)}
    crossed = metrics.groups(graph, {"a": "x", "b": "x", "c": "y", "d": "y"})
    assert crossed["ari"] == pytest.approx(-0.5)
    assert metrics.groups(graph, None)["ari"] is None
    assert metrics.groups(None, planted) == {}
