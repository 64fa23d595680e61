"""Rotated & Masked MNIST (SFMTL-Graph, 2025), on any square images."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario, deal, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples
from fedkin.keys import rng

__all__ = ["RotatedMasked"]

Angle = Literal[0, 90, 180, 270]


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
    clients: int = Field(40, ge=1)
    rotations: tuple[Angle, ...] = Field((0, 90, 180, 270), min_length=1)
    mask_size: int = Field(2, ge=1)
    mask_rate: float = Field(0.15, ge=0, lt=1)
    train_per_client: int | None = Field(None, ge=1)
    test_per_client: int | None = Field(None, ge=1)

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
        train_rows = deal(dataset, "train", self.clients, self.train_per_client, seed)
        test_rows = deal(dataset, "test", self.clients, self.test_per_client, seed)
        ids = shuffled_ids(self.clients, seed)
        angles = [int(angle) for angle in np.repeat(self.rotations, self._spread())]
        masks = [self._mask(height, width, seed, id) for id in ids]
        train = _turned(dataset, "train", train_rows, angles, masks)
        test = _turned(dataset, "test", test_rows, angles, masks)
        clients = [
            Client(id, own, tested, f"rot{angle}", {"rotation": angle})
            for id, own, tested, angle in zip(ids, train, test, angles, strict=True)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _sides(self, dataset: Dataset) -> tuple[int, int]:
        shape = dataset.task.numbers("scenario.name: 'rotated-masked'")
        if len(shape) not in (2, 3):
            raise ConfigError(
                f"scenario.name: {self.name} turns images [C, H, W] or [H, W]; inputs of {dataset.name} "
                f"are {list(shape)}"
            )
        height, width = shape[-2:]
        if height != width and not {0, 180}.issuperset(self.rotations):
            raise ConfigError(
                f"scenario.rotations: images of {dataset.name} are {height} x {width}; only 0 and 180 keep that shape"
            )
        if self.mask_size > min(height, width):
            raise ConfigError(
                f"scenario.mask_size: {self.mask_size} pixels, but images of {dataset.name} are {height} x "
                f"{width}; at most {min(height, width)}"
            )
        return height, width

    def _spread(self) -> list[int]:
        """How many clients each rotation gets."""
        whole, rest = divmod(self.clients, len(self.rotations))
        return [whole + (number < rest) for number in range(len(self.rotations))]

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


def _turned(dataset: Dataset, split: Split, parts: list[Rows], angles: list[int], masks: list[Tensor]) -> list[Samples]:
    """Every client's samples, as rows of one shared tensor."""
    part = dataset.part(split)
    order = torch.from_numpy(np.concatenate(parts))
    x, y = part.x[order], part.y[order]
    made = []
    start = 0
    for rows, angle, mask in zip(parts, angles, masks, strict=True):
        stop = start + len(rows)
        turned = torch.rot90(x[start:stop], angle // 90, dims=(-2, -1))
        x[start:stop] = turned.masked_fill(mask, dataset.white)
        made.append(Samples(x, y, torch.arange(start, stop), dataset.scale))
        start = stop
    return made
