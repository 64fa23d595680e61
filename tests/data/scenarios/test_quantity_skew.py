"""Clients of unlike sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import QuantitySkew
from fedkin.errors import ConfigError

Make = Callable[..., Dataset]


@given(
    clients=st.integers(1, 100),
    law=st.sampled_from(["dirichlet", "power"]),
    alpha=st.sampled_from([1e-3, 0.5, 2, 500]),
    least=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_any(
    labelled: Make, clients: int, law: Literal["dirichlet", "power"], alpha: float, least: int, seed: int
) -> None:
    assume(clients * least <= 300)
    federation = QuantitySkew(clients=clients, law=law, alpha=alpha, min_size=least).build(labelled(30, 10), seed)
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert sorted(rows.tolist()) == list(range(300)), "every sample exactly once"
    assert min(federation.sizes.values()) >= least
    tests = [len(client.test) for client in federation.values()]
    assert sum(tests) == 100
    assert max(tests) - min(tests) <= 1
    assert set((federation.planted or {}).values()) == {"all"}


def test_power_law(labelled: Make) -> None:
    sizes = list(QuantitySkew(clients=50, law="power", alpha=1.2).build(labelled(5000, 10), 0).sizes.values())
    ranked = np.sort(sizes)[::-1]
    fit = stats.linregress(np.log(1 + np.arange(50)), np.log(ranked))
    assert fit.slope == pytest.approx(-1.2, abs=0.01)
    assert sizes != sorted(sizes, reverse=True), "the order of clients does not tell the size"


def test_dirichlet_law(labelled: Make) -> None:
    """The variance of a share is (1/n) (1 - 1/n) / (n alpha + 1)."""
    shares = [
        np.array(list(QuantitySkew(clients=10, alpha=0.7).build(labelled(1000, 10), seed).sizes.values())) / 10000
        for seed in range(100)
    ]
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / 8, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": 31, "min_size": 10}, "scenario.clients: 31 clients with at least 10 .* at most 30 clients"),
        ({"clients": 101}, "101 clients cannot share the 100 test samples"),
        ({"clients": 30, "test_per_client": 4}, "test_per_client: 30 clients x 4 are more than the 100"),
    ],
)
def test_impossible(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        QuantitySkew(**settings).build(labelled(30, 10), 0)
