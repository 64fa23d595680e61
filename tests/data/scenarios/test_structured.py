"""FLT's scenario 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import Structured, skewed_sizes
from fedkin.errors import ConfigError
from fedkin.settings import parse

Make = Callable[..., Dataset]


@pytest.mark.parametrize(("total", "count"), [(12000, 240), (4800, 240), (12000, 480), (6000, 60)])
def test_sizes_solve_the_equation(total: int, count: int) -> None:
    half, squares = total / 2 / count, np.arange(count, dtype=float) ** 2
    x = brentq(lambda x: (half + np.exp(x * squares)).sum() - total, -1e-3, np.log(total) / squares[-1], xtol=1e-15)
    exact = half + np.exp(x * squares)
    sizes = skewed_sizes(total, count)
    # Rounding down loses half a sample a client, which a slightly larger x makes good.
    assert np.abs(sizes - exact).max() < 1 + 0.05 * exact.max()
    assert np.abs(sizes - exact).mean() < 1


def test_the_papers_federation(labelled: Make) -> None:
    """EMNIST balanced: 47 classes of 2,400, ten clusters of five classes, the last of two, 240 clients each."""
    federation = Structured(clients=2400, clusters=10).build(labelled(2400, 400, classes=47), 0)
    assert len(federation) == 2400
    groups = Counter((federation.planted or {}).values())
    assert set(groups.values()) == {240}
    assert sorted(len(group.split("+")) for group in groups) == [2] + [5] * 9
    assert sum(federation.sizes.values()) == 47 * 2400
    of = {group: sum(c.size for c in federation.values() if c.group == group) for group in groups}
    assert Counter(of.values()) == {12000: 9, 4800: 1}
    assert min(federation.sizes.values()) == 11
    for client in federation.values():
        assert set(client.train.labels().tolist()) <= set(client.about["classes"])
        assert len(client.test) == 400 * len(client.about["classes"])
    assert len({id(client.test) for client in federation.values()}) == 10, "one test set for each cluster"


@given(
    clients=st.integers(2, 60),
    seed=st.integers(0, 1000),
    clusters=st.one_of(st.sampled_from([1, 2, 4, 5]), st.just(((3, 1), (8,)))),
    per_class=st.one_of(st.none(), st.integers(40, 300)),
)
def test_any(labelled: Make, clients: int, seed: int, clusters: Any, per_class: int | None) -> None:
    scenario = Structured(clients=max(clients, 5), clusters=clusters, per_class=per_class)
    federation = scenario.build(labelled(200, 10), seed)
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert len(rows.unique()) == len(rows)  # type: ignore[no-untyped-call]
    labels = Counter(label for c in federation.values() for label in c.train.labels().tolist())
    owned = range(10) if isinstance(clusters, int) else (1, 3, 8)
    assert labels == dict.fromkeys(owned, min(200, per_class or 200))
    members = Counter((federation.planted or {}).values())
    assert max(members.values()) - min(members.values()) <= 1
    for group, count in members.items():
        sizes = sorted(c.size for c in federation.values() if c.group == group)
        assert sizes == skewed_sizes(sum(sizes), count).tolist()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clusters": 7}, "scenario.clusters: 7 clusters of 2 classes need more than the 10 of labels"),
        ({"clusters": 11}, "scenario.clusters: 11 clusters"),
        ({"clusters": [[0], [10]]}, "scenario.clusters: labels has no class 10"),
        ({"clients": 4}, "scenario.clients: 4 clients for 5 clusters; at least 5"),
        ({"clients": 250}, "50 clients share the 40 training samples of classes 0\\+1, and the smallest would get 0"),
        ({"clients": 50, "min_size": 4}, "smallest would get 3; expected at least 4 .min_size.: take fewer clients"),
        ({"per_class": 2, "clients": 30}, "6 clients share the 4 training samples"),
    ],
)
def test_impossible(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Structured, settings, "scenario").build(labelled(20, 5), 0)
