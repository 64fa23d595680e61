"""Groups whose labels are permuted, and whose images are turned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.shifts import LabelSwap, RotatedMasked
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Scale, Task
from fedkin.settings import parse

# -- Concept shift between groups ----------------------------------------------------------------------------------


Make = Callable[..., Dataset]


@given(
    how=st.sampled_from(["pairs", "shift", "random"]),
    groups=st.integers(1, 6),
    more=st.integers(0, 9),
    seed=st.integers(0, 1000),
)
def test_any(labelled: Make, how: Literal["pairs", "shift", "random"], groups: int, more: int, seed: int) -> None:
    dataset = labelled(20, 10)
    federation = LabelSwap(clients=groups + more, groups=groups, how=how).build(dataset, seed)
    members = Counter((federation.planted or {}).values())
    assert sorted(members) == [f"swap{g}" for g in range(groups)]
    assert max(members.values()) - min(members.values()) <= 1
    names = {client.group: client.about["labels"] for client in federation.values()}
    assert len({tuple(own) for own in names.values()}) == groups, "no two groups call things alike"
    assert names["swap0"] == list(range(10))
    for client in federation.values():
        own = names[client.group]
        assert client.about["labels"] == own
        assert sorted(own) == list(range(10))
        for samples, part in ((client.train, dataset.train), (client.test, dataset.test)):
            assert samples.x is part.x
            assert samples.rows is not None
            assert samples.labels().tolist() == [own[label] for label in part.y[samples.rows].tolist()]
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert sorted(rows.tolist()) == list(range(200))


def test_pairs_and_shift(labelled: Make) -> None:
    def names(how: Literal["pairs", "shift"]) -> list[list[int]]:
        made = LabelSwap(clients=6, groups=6, how=how).build(labelled(20, 10), 0)
        return [client.about["labels"] for client in sorted(made.values(), key=lambda c: str(c.group))]

    assert names("pairs")[1] == [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert names("pairs")[5] == [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]
    assert names("shift")[2] == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


# -- Rotations, masks, and who gets which --------------------------------------------------------------------------


def images(count: int = 40, shape: tuple[int, ...] = (2, 6, 6)) -> Dataset:
    """Random images of bytes 1..99, every one different, where white is 200."""
    x = torch.from_numpy(np.random.default_rng(0).integers(1, 100, (count, *shape)).astype(np.uint8))
    y = torch.arange(count) % 5
    return Dataset("images", Part(x, y), Part(x + 100, y), Task(5, shape), Scale(divide=200.0))


def stored(samples: Samples) -> torch.Tensor:
    assert isinstance(samples.x, torch.Tensor)
    return samples.x if samples.rows is None else samples.x[samples.rows]


@given(clients=st.integers(1, 30), count=st.integers(1, 4), seed=st.integers(0, 99))
def test_groups_are_even(clients: int, count: int, seed: int) -> None:
    rotations = (270, 0, 180, 90)[:count]
    federation = RotatedMasked(clients=clients, rotations=rotations).build(images(), seed)
    groups = Counter((federation.planted or {}).values())
    assert set(groups) == {f"rot{angle}" for angle in rotations[:clients]}
    assert max(groups.values()) - min(groups.values()) <= 1
    for client in federation.values():
        assert client.group == f"rot{client.about['rotation']}"
    assert max(federation.sizes.values()) - min(federation.sizes.values()) <= 1
    assert sum(federation.sizes.values()) == 40


def test_rotation_is_counter_clockwise() -> None:
    """Every client's images, turned back, are images of the data set."""
    dataset = images()
    federation = RotatedMasked(clients=8, mask_rate=0).build(dataset, 1)
    for part, split in ((dataset.train, "train"), (dataset.test, "test")):
        labels = {image.numpy().tobytes(): int(label) for image, label in zip(part.x, part.y, strict=True)}
        for client in federation.values():
            samples, turns = getattr(client, split), client.about["rotation"] // 90
            for image, label in zip(stored(samples).numpy(), samples.labels().tolist(), strict=True):
                assert labels[np.rot90(image, -turns, axes=(1, 2)).tobytes()] == label


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_mask_is_a_grid_of_cells(size: int) -> None:
    scenario = RotatedMasked(clients=10, rotations=(0,), mask_size=size, mask_rate=0.5)
    federation = scenario.build(images(), 0)
    masks = []
    for client in federation.values():
        train, test = stored(client.train) == 200, stored(client.test) == 200
        mask = train[0, 0]
        assert bool((train == mask).all()), "the same for all training images and channels"
        assert bool((test == mask).all()), "and for its test images"
        cells = mask[::size, ::size].repeat_interleave(size, 0).repeat_interleave(size, 1)[:6, :6]
        assert torch.equal(cells, mask)
        assert not bool(mask.all())
        masks.append(tuple(mask.flatten().tolist()))
    if size < 6:
        assert len(set(masks)) > 3, "clients have masks of their own"


def test_mask_rate() -> None:
    shape = (1, 40, 40)
    x = torch.zeros(50, *shape, dtype=torch.uint8)
    part = Part(x, torch.arange(50) % 2)
    dataset = Dataset("black", part, part, Task(2, shape), Scale())
    for rate in (0.0, 0.15, 0.7):
        federation = RotatedMasked(clients=50, mask_rate=rate).build(dataset, 0)
        white = [float((stored(client.train) == 255).float().mean()) for client in federation.values()]
        # 50 clients x 400 cells: the standard error is below 0.0036.
        assert abs(np.mean(white) - rate) < 0.011
        assert RotatedMasked().mask_rate == 0.15


@pytest.mark.parametrize(
    ("settings", "shape", "said"),
    [
        ({}, (1, 4, 7), "scenario.rotations: images of images are 4 x 7; only 0 and 180 keep that shape"),
        ({}, (9,), r"scenario.name: rotated-masked turns images .*; inputs of images are \[9\]"),
        ({"mask_size": 7}, (1, 6, 6), "scenario.mask_size: 7 pixels, .* are 6 x 6; at most 6"),
        ({"clients": 10**12}, (1, 6, 6), "scenario.clients: 1000000000000 clients cannot share the 40 train samples"),
        ({"rotations": [0, 45]}, (1, 6, 6), r"scenario\.rotations\.1: .*0, 90, 180 or 270; got 45"),
        ({"rotations": [0, 0]}, (1, 6, 6), r"rotations: each rotation may be named once; got \[0, 0\]"),
        ({"rotations": []}, (1, 6, 6), "scenario.rotations: "),
        ({"mask_rate": 1.0}, (1, 6, 6), r"scenario\.mask_rate: .* less than 1; got 1\.0"),
        ({"mask_size": 0}, (1, 6, 6), "scenario.mask_size: "), ({"clients": 0}, (1, 6, 6), "scenario.clients: "),
    ],
)  # fmt: skip
def test_impossible_of_rotated_masked(settings: dict[str, Any], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(RotatedMasked, settings, "scenario").build(images(shape=shape), 0)
