"""Shards of sorted labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import Shards
from fedkin.errors import ConfigError

Make = Callable[..., Dataset]


def test_mcmahans_mnist(labelled: Make) -> None:
    """100 clients, two shards of 300: two classes at most when shards do not cross labels."""
    federation = Shards().build(labelled(6000, 1000), 0)
    assert set(federation.sizes.values()) == {600}
    assert Counter(len(client.about["classes"]) for client in federation.values()).keys() == {1, 2}
    for client in federation.values():
        assert {count % 300 for count in Counter(client.train.labels().tolist()).values()} == {0}
    assert federation.planted is None


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 1000))
def test_any(labelled: Make, clients: int, shards: int, seed: int) -> None:
    dataset = labelled(17, 10)
    assume(clients * shards <= 170)
    federation = Shards(clients=clients, shards=shards).build(dataset, seed)
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert sorted(rows.tolist()) == list(range(170))
    low, high = 170 // (clients * shards), -(-170 // (clients * shards))
    assert {c.size for c in federation.values()} <= set(range(shards * low, shards * high + 1))
    most_in_a_shard = 1 + -(-(high - 1) // 17)
    for client in federation.values():
        classes = sorted(set(client.train.labels().tolist()))
        assert client.about["classes"] == classes
        assert len(classes) <= shards * most_in_a_shard
        assert set(client.test.labels().tolist()) <= set(classes)
    tested = [row for c in federation.values() if c.test.rows is not None for row in c.test.rows.tolist()]
    assert sorted(tested) == list(range(100))


def test_own_draws_of_test_samples(labelled: Make) -> None:
    federation = Shards(clients=10, test_per_client=6).build(labelled(50, 10), 0)
    for client in federation.values():
        mine = np.bincount(client.test.labels().numpy(), minlength=10)
        assert mine.sum() == 6
        assert np.flatnonzero(mine).tolist() == client.about["classes"]


def test_too_many(labelled: Make) -> None:
    with pytest.raises(ConfigError, match=r"101 clients with 2 shards each are more than the 200 .* at most 100"):
        Shards(clients=101).build(labelled(20, 10), 0)
