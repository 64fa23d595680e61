"""Label skew by Dirichlet draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import Dirichlet
from fedkin.errors import ConfigError
from fedkin.federation import Federation

Make = Callable[..., Dataset]


def table(federation: Federation, split: str = "train", classes: int = 10) -> np.ndarray:
    """[clients, classes] how many samples of each class."""
    own = [getattr(client, split).labels().numpy() for client in federation.values()]
    return np.stack([np.bincount(labels, minlength=classes) for labels in own])


@given(
    clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-4, 0.05, 0.5, 5, 1e6]),
    least=st.integers(1, 8),
    sizes=st.sampled_from(["drawn", "equal"]),
    seed=st.integers(0, 1000),
)
def test_any(
    labelled: Make, clients: int, alpha: float, least: int, sizes: Literal["drawn", "equal"], seed: int
) -> None:
    assume(clients * least <= 200)
    federation = Dirichlet(clients=clients, alpha=alpha, min_size=least, sizes=sizes).build(labelled(20, 10), seed)
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert len(rows.unique()) == len(rows)  # type: ignore[no-untyped-call]
    assert len(federation) == clients
    assert min(federation.sizes.values()) >= least
    if sizes == "drawn":
        assert len(rows) == 200, "all samples are dealt out"
    else:
        assert set(federation.sizes.values()) == {200 // clients}
    owned, tested = table(federation), table(federation, "test")
    assert (tested[owned == 0] == 0).all()
    assert tested.sum(axis=0).tolist() == [10 if count else 0 for count in owned.sum(axis=0)]


def test_shares_are_those_of_the_distribution(labelled: Make) -> None:
    """Two clients: the first's share of a class is Beta(alpha, alpha), of variance 1 / (4 (2 alpha + 1))."""
    shares = [
        table(Dirichlet(clients=2, alpha=0.8).build(labelled(1000, 1, classes=20), seed), classes=20)[0] / 1000
        for seed in range(40)
    ]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.var(shares) == pytest.approx(1 / (4 * 2.6), rel=0.1)


def test_filling_up_leaves_the_others_alone(labelled: Make) -> None:
    """Clients between the least and the level of the largest keep exactly what they have."""
    dataset = labelled(100, 10)
    before = Dirichlet(clients=50, alpha=0.5, min_size=1).build(dataset, 3)
    after = Dirichlet(clients=50, alpha=0.5, min_size=10).build(dataset, 3)
    assert min(before.sizes.values()) > 1, "nobody is filled up yet"
    level = max(after.sizes.values())
    kept = 0
    for id, client in before.items():
        rows, now = client.train.rows, after[id].train.rows
        assert rows is not None
        assert now is not None
        if client.size < 10:
            assert set(rows.tolist()) <= set(now.tolist())
            assert len(now) == 10
        elif client.size < level - 1:
            assert rows.tolist() == now.tolist()
            kept += 1
        else:
            assert set(now.tolist()) <= set(rows.tolist())
            assert len(now) in (level - 1, level)
    assert kept > 5


def test_own_draws_of_test_samples(labelled: Make) -> None:
    federation = Dirichlet(clients=40, alpha=0.5, test_per_client=8).build(labelled(100, 30), 0)
    assert {len(client.test) for client in federation.values()} == {8}
    rows = [row for c in federation.values() if c.test.rows is not None for row in c.test.rows.tolist()]
    assert len(set(rows)) < len(rows) == 320
    owned, tested = table(federation), table(federation, "test")
    assert np.abs(tested / 8 - owned / owned.sum(axis=1, keepdims=True)).max() < 1 / 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": 201}, "201 clients with at least 1 training samples each are more than the 200 of labels; at mos"),
        ({"clients": 21, "min_size": 10}, "at most 20 clients, or a smaller min_size"),
        ({"clients": 10**12}, "scenario.clients: 1000000000000 clients"),
        ({"alpha": 1e-4, "clients": 5, "test_per_client": 11}, r"scenario.test_per_client: .* has 10; take fewer"),
    ],
)
def test_impossible(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Dirichlet(**settings).build(labelled(20, 10), 0)
