"""Nets of fully connected layers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from pydantic import Field, PositiveInt
from torch import nn

from fedkin.federation import Task
from fedkin.learning.models.base import Model

__all__ = ["Linear", "Mlp"]


class Mlp(Model):
    """Flatten, then one Linear and ReLU per entry of `hidden`; the last hidden layer is the feature."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = Field((200,), min_length=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        widths = [math.prod(task.numbers(f"model.name: {self.name!r}")), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
        return nn.Sequential(*layers), nn.Linear(widths[-1], task.outputs)


class Linear(Model):
    """Multinomial logistic regression: the body only flattens, and the head is one Linear."""

    name: Literal["linear"] = "linear"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        return nn.Flatten(), nn.Linear(math.prod(task.numbers(f"model.name: {self.name!r}")), task.outputs)
