"""Nets for texts as padded token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.base import Model

__all__ = ["MeanOfWords", "TextMean"]

_IDS, _MASK = "input_ids", "attention_mask"


class MeanOfWords(nn.Module):
    """Token ids [n, length] to the mean [n, width] of their vectors, without those that are padding.

    Of a dict it takes `input_ids`, and `attention_mask` if that is there. A text that is all padding becomes 0.
    """

    def __init__(self, words: int, width: int, padding: int) -> None:
        super().__init__()
        self.words, self.padding = words, padding
        self.vectors = nn.Embedding(words, width)

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        ids = x if isinstance(x, Tensor) else x[_IDS]
        kept = ids != self.padding
        if not isinstance(x, Tensor) and _MASK in x:
            kept = x[_MASK] != 0
        weight = kept.unsqueeze(-1).to(self.vectors.weight.dtype)
        # Every id has a vector, whatever its size.
        found: Tensor = self.vectors(torch.remainder(ids, self.words)) * weight
        return found.sum(-2) / weight.sum(-2).clamp_min(1.0)


class TextMean(Model):
    """Texts as token ids [length]: the mean of the words' vectors, Linear `width`, ReLU | head. Order is of no account.

    words: how many different vectors there are; ids from there on share them, by their remainder. width: of a vector,
    and of the feature. padding: the id that fills texts up, which counts for nothing. Inputs are one array of whole
    numbers, or a dict with `input_ids` and perhaps `attention_mask`.
    """

    name: Literal["text-mean"] = "text-mean"
    words: int = Field(32_768, ge=2)
    width: int = Field(32, ge=1)
    padding: int = 0

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        shapes = dict(task.shapes)
        known = {"x"} if "x" in shapes else {_IDS, _MASK} if _IDS in shapes else set()
        ids = set(shapes) <= known & set(task.codes) and all(len(shape) == 1 for shape in shapes.values())
        if not ids:
            there = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ConfigError(
                f"model.name: {self.name!r} needs token ids [length] as whole numbers (or a dict of {_IDS} and "
                f"{_MASK}), the task's inputs are {there}{'' if task.codes else ' of numbers'}"
            )
        body = nn.Sequential(
            MeanOfWords(self.words, self.width, self.padding), nn.Linear(self.width, self.width), nn.ReLU()
        )
        return body, nn.Linear(self.width, task.outputs)
