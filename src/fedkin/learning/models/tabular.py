"""Deep nets for rows of numbers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt
from torch import nn

from fedkin.federation import Task
from fedkin.learning.models.mlp import Mlp

__all__ = ["Mlp3", "Mlp8"]


class Mlp8(Mlp):
    """Eight fully connected layers with 512 hidden units, TFL's net for TPT-48.

    init: "he" draws the body's weights from N(0, 2 / inputs), with zero biases (He et al., 2015). With PyTorch's own
    initialisation, a net of this depth gives nearly the same output for all inputs. The head keeps PyTorch's own: with
    "he", its outputs are so large at the start that the first steps diverge. "torch" is PyTorch's own everywhere.
    """

    name: Literal["mlp-8"] = "mlp-8"  # type: ignore[assignment]
    hidden: tuple[PositiveInt, ...] = Field((512,) * 7, min_length=1)
    init: Literal["he", "torch"] = "he"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        body, head = super().build(task)
        if self.init == "he":
            for module in body.modules():
                if isinstance(module, nn.Linear):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                    nn.init.zeros_(module.bias)
        return body, head


class Mlp3(Mlp):
    """Three fully connected layers, TFL's net for eICU; the paper does not give their widths."""

    name: Literal["mlp-3"] = "mlp-3"  # type: ignore[assignment]
    hidden: tuple[PositiveInt, ...] = Field((64, 32), min_length=1)
