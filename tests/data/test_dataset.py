"""Dataset and Part, and the ids of clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.base import shuffled_ids
from fedkin.errors import DataError
from fedkin.federation import Scale, Task


def test_by_class() -> None:
    part = Part(torch.zeros(6, 2), torch.tensor([2, 0, 2, 4, 0, 2]))
    assert [rows.tolist() for rows in part.by_class(6)] == [[1, 4], [], [0, 2, 5], [], [3], []]


def test_white() -> None:
    def of(x: torch.Tensor, scale: Scale | None) -> float:
        return Dataset("a", Part(x, torch.zeros(2, dtype=torch.int64)), Part(x[:0], torch.zeros(0)), TASK, scale).white

    byte = torch.tensor([[3], [9]], dtype=torch.uint8)
    assert of(byte, Scale(divide=16.0)) == 16
    assert of(byte, None) == 9
    assert of(byte.float(), Scale(divide=2.0)) == 9


TASK = Task(2, (1,))


def test_refuses_parts_that_do_not_fit() -> None:
    x, y = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(DataError, match="samples and labels differ in number: 3 and 2"):
        Part(x, y[:2])
    with pytest.raises(DataError, match="samples and clients differ in number: 3 and 1"):
        Part(x, y, np.array(["a"]))
    with pytest.raises(DataError, match=r"mine: test inputs have shape \(4,\), the task's is \(1,\)"):
        Dataset("mine", Part(x, y), Part(torch.zeros(3, 4), y), TASK)


@given(st.integers(1, 300), st.integers(0, 3))
def test_ids(count: int, seed: int) -> None:
    ids = shuffled_ids(count, seed)
    assert ids == shuffled_ids(count, seed)
    numbers = [int(id[1:]) for id in ids]
    assert sorted(numbers) == list(range(count))
    assert len({len(id) for id in ids}) == 1, "they sort as their numbers do"
    assert count == 1 or all(number != place for place, number in enumerate(numbers))
    assert count < 10 or ids != shuffled_ids(count, seed + 1)
