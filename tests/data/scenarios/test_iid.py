"""Equal random parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import Iid
from fedkin.errors import ConfigError

Toy = Callable[..., Dataset]


def test_parts(toy: Toy) -> None:
    federation = Iid(clients=7).build(toy(200, 100), 0)
    assert sorted(federation.sizes.values()) == [28, 28, 28, 29, 29, 29, 29]
    assert sorted(len(client.test) for client in federation.values()) == [14] * 5 + [15] * 2
    assert set((federation.planted or {}).values()) == {"all"}
    labels = torch.cat([client.train.labels() for client in federation.values()])
    assert torch.bincount(labels).tolist() == [20] * 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"clients": 201},
            "scenario.clients: 201 clients cannot share the 200 train samples of toy; at most 200",
        ),
        (
            {"clients": 101},
            "scenario.clients: 101 clients cannot share the 100 test samples of toy; at most 100",
        ),
        ({"clients": 10**12}, "scenario.clients: 1000000000000 clients cannot share"),
        (
            {"clients": 4, "train_per_client": 51},
            "train_per_client: 4 clients x 51 are more than the 200 .* 50",
        ),
        (
            {"clients": 4, "test_per_client": 26},
            "test_per_client: 4 clients x 26 are more than the 100 .* 25",
        ),
    ],
)
def test_too_few_samples(toy: Toy, settings: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Iid(**settings).build(toy(200, 100), 0)
