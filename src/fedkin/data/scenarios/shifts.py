"""Groups of clients that have the same classes, but permuted labels or rotated images."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt, field_validator
from torch import Tensor

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Scenario, shuffled_ids
from fedkin.data.scenarios.dealing import deal, groups_of_clients
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.federation.arrays import Ints
from fedkin.keys import rng

Angle = Literal[0, 90, 180, 270]


class LabelSwap(Scenario):
    """All clients have all classes, but each group of clients has its own permutation of the labels.

    Each split is shuffled and cut into equal parts, one per client; the clients are spread evenly over `groups`. The
    first group, "swap0", keeps its labels. how = "pairs": group g swaps classes 2g - 2 and 2g - 1; "shift": class c
    becomes (c + g) mod C; "random": the group has its own random permutation. Training and test samples
    are treated alike. train_per_client, test_per_client: the number of samples of each client (default: all
    there are). `Client.about["labels"]` lists the client's labels of class 0, 1, ...

    >>> from fedkin.data import federate
    >>> fed = federate("digits", LabelSwap(clients=6, groups=3), seed=0)
    >>> sorted(fed.planted.values())
    ['swap0', 'swap0', 'swap1', 'swap1', 'swap2', 'swap2']
    >>> next(client.about["labels"] for client in fed.values() if client.group == "swap2")
    [0, 1, 3, 2, 4, 5, 6, 7, 8, 9]
    """

    name: Literal["label-swap"] = "label-swap"
    clients: PositiveInt = 20
    groups: PositiveInt = 4
    how: Literal["pairs", "shift", "random"] = "pairs"
    train_per_client: PositiveInt | None = None
    test_per_client: PositiveInt | None = None

    planted: ClassVar[str] = 'the permutation of labels: "swap0", "swap1", ...'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError for more groups than clients, or than possible permutations."""
        member = groups_of_clients(self.clients, self.groups, "groups")
        self._check(dataset)
        renamed = self._permutations(dataset.task.classes, seed)
        parts = []
        for split, each in zip(SPLITS, (self.train_per_client, self.test_per_client), strict=True):
            part, rows = dataset.part(split), deal(dataset, split, self.clients, each, seed)
            labels = [torch.from_numpy(names)[part.y] for names in renamed]
            parts.append([
                replace(dataset.samples(split, own), y=labels[group]) for group, own in zip(member, rows, strict=True)
            ])  # fmt: skip
        return self.assembled(
            dataset, seed, *parts, groups=[f"swap{group}" for group in member],
            about=[{"labels": renamed[group].tolist()} for group in member],
        )  # fmt: skip

    def _check(self, dataset: Dataset) -> None:
        total = len(dataset.train.by_class(dataset.task.classes))
        # Beyond 20 classes there are more permutations than clients.
        most = {"pairs": total // 2 + 1, "shift": total, "random": math.factorial(min(total, 20))}[self.how]
        if self.groups > most:
            have = f'with how = "{self.how}" the {total} classes of {dataset.name} give at most {most}'
            raise ConfigError(f"scenario.groups: {self.groups}, but {have}")

    def _permutations(self, total: int, seed: int) -> list[Ints]:
        """Each group's labels of class 0, 1, ..; all different, the first one the identity."""
        same = np.arange(total)
        if self.how == "shift":
            return [(same + group) % total for group in range(self.groups)]
        if self.how == "pairs":
            permutations = [same.copy() for _ in range(self.groups)]
            for group in range(1, self.groups):
                permutations[group][[2 * group - 2, 2 * group - 1]] = 2 * group - 1, 2 * group - 2
            return permutations
        draw = rng(seed, self.name, "permutations")
        distinct = {tuple(same.tolist()): same}
        while len(distinct) < self.groups:
            drawn = draw.permutation(total)
            distinct.setdefault(tuple(drawn.tolist()), drawn)
        return list(distinct.values())


class RotatedMasked(Scenario):
    """Clients have all classes, with images rotated by one of a few angles and covered by the client's own mask.

    Each split is shuffled and cut into equal parts, one per client; the clients are spread evenly over
    `rotations` (degrees, counter-clockwise). A client's mask is a grid of cells of mask_size x mask_size
    pixels over the rotated image; each cell is white with probability `mask_rate`, the same cells in all its
    training and test images; at least one stays clear. train_per_client, test_per_client: the number of
    samples of each client (default: all there are). `Client.about["rotation"]` is the client's angle.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", RotatedMasked(clients=4), seed=0)
    >>> sorted((client.group, client.about["rotation"]) for client in fed.values())
    [('rot0', 0), ('rot180', 180), ('rot270', 270), ('rot90', 90)]
    """

    name: Literal["rotated-masked"] = "rotated-masked"
    clients: PositiveInt = 40
    rotations: tuple[Angle, ...] = Field((0, 90, 180, 270), min_length=1)
    mask_size: PositiveInt = 2
    mask_rate: float = Field(0.15, ge=0, lt=1)
    train_per_client: PositiveInt | None = None
    test_per_client: PositiveInt | None = None

    planted: ClassVar[str] = 'the rotation: "rot0", "rot90", "rot180", "rot270"'

    @field_validator("rotations")
    @classmethod
    def _distinct(cls, rotations: tuple[Angle, ...]) -> tuple[Angle, ...]:
        if len(set(rotations)) < len(rotations):
            raise ValueError("each rotation may be named once")
        return rotations

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError for settings that do not fit the images, or without images."""
        height, width = self._sides(dataset)
        sizes = (self.train_per_client, self.test_per_client)
        dealt = [deal(dataset, split, self.clients, size, seed) for split, size in zip(SPLITS, sizes, strict=True)]
        ids = shuffled_ids(self.clients, seed)
        parts = np.array_split(np.arange(self.clients), len(self.rotations))
        angles: list[int] = [angle for angle, part in zip(self.rotations, parts, strict=True) for _ in part]
        masks = [self._mask(height, width, seed, id) for id in ids]
        samples = (_shifted(dataset, split, rows, angles, masks) for split, rows in zip(SPLITS, dealt, strict=True))
        return self.assembled(
            dataset, seed, *samples, groups=[f"rot{angle}" for angle in angles],
            about=[{"rotation": angle} for angle in angles],
        )  # fmt: skip

    def _sides(self, dataset: Dataset) -> tuple[int, int]:
        shape = dataset.task.numbers("scenario.name: 'rotated-masked'")
        if len(shape) not in (2, 3):
            got = f"inputs of {dataset.name} are {list(shape)}"
            raise ConfigError(f"scenario.name: {self.name} turns images [C, H, W] or [H, W]; {got}")
        height, width = shape[-2:]
        have = f"images of {dataset.name} are {height} x {width}"
        if height != width and not {0, 180}.issuperset(self.rotations):
            raise ConfigError(f"scenario.rotations: {have}; only 0 and 180 keep that shape")
        if self.mask_size > min(height, width):
            at_most = f"at most {min(height, width)}"
            raise ConfigError(f"scenario.mask_size: {self.mask_size} pixels, but {have}; {at_most}")
        return height, width

    def _mask(self, height: int, width: int, seed: int, id: str) -> Tensor:
        """Which pixels are white: [height, width] bool."""
        rows, columns = -(-height // self.mask_size), -(-width // self.mask_size)
        draw = rng(seed, self.name, "mask", id)
        cells = draw.random((rows, columns)) < self.mask_rate
        # A client without a single visible pixel could learn nothing.
        if cells.all():
            cells[draw.integers(rows), draw.integers(columns)] = False
        pixels = cells.repeat(self.mask_size, axis=0).repeat(self.mask_size, axis=1)
        return torch.from_numpy(pixels[:height, :width].copy())


def _shifted(
    dataset: Dataset, split: Split, parts: list[Ints], angles: list[int], masks: list[Tensor]
) -> list[Samples]:
    """Every client's rotated and masked samples, as rows of one shared tensor."""
    whole = dataset.samples(split, np.concatenate(parts)).own()
    x = whole.x
    assert isinstance(x, Tensor)
    samples = []
    start = 0
    for rows, angle, mask in zip(parts, angles, masks, strict=True):
        stop = start + len(rows)
        rotated = torch.rot90(x[start:stop], angle // 90, dims=(-2, -1))
        x[start:stop] = rotated.masked_fill(mask, dataset.white)
        samples.append(whole.take(torch.arange(start, stop)))
        start = stop
    return samples
