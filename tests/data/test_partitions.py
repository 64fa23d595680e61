"""A federation's clients as partitions of a Flower app."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from fedkin.data import federate
from fedkin.data.partitions import Partitions
from fedkin.errors import ConfigError, DataError


def test_a_number_stands_for_a_client_by_the_order_of_ids() -> None:
    federation = federate("digits", "dirichlet", clients=5, alpha=0.3, seed=2)
    partitions = Partitions(federation)
    assert partitions.ids == ("c00", "c01", "c02", "c03", "c04")
    for number, id in enumerate(partitions.ids):
        one, client = partitions[number], federation[id]
        assert one.id == id
        assert one.train_x.dtype == np.float32
        for x, y, samples in ((one.train_x, one.train_y, client.train), (one.test_x, one.test_y, client.test)):
            np.testing.assert_array_equal(x, samples.inputs(slice(None)).numpy())
            np.testing.assert_array_equal(y, samples.labels().numpy())


@pytest.mark.parametrize("number", [-1, 3, "1", True, 1.0])
def test_another_number_is_refused(number: Any) -> None:
    partitions = Partitions(federate("digits", "iid", clients=3))
    with pytest.raises(DataError, match="expected a whole number from 0 to 2"):
        partitions[number]


def test_clients_that_take_no_part_have_none_and_those_that_change_are_refused() -> None:
    unseen = Partitions(federate("digits", "iid", clients=4, unseen="c02"))
    assert unseen.ids == ("c00", "c01", "c03")
    drifting = federate("digits", "drift", of={"name": "grouped-classes", "clients": 10}, drifting=2)
    with pytest.raises(ConfigError, match="comes later or changes"):
        Partitions(drifting)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")
def test_they_are_datasets_of_hugging_face_too() -> None:
    partitions = Partitions(federate("digits", "iid", clients=3))
    made, arrays = partitions.dataset(1), partitions[1]
    assert set(made) == {"train", "test"}
    np.testing.assert_array_equal(made["train"]["x"][:], arrays.train_x)
    np.testing.assert_array_equal(made["test"]["y"][:], arrays.test_y)
