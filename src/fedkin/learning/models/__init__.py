"""Named nets: settings that build a (body, head) pair for a task."""

from __future__ import annotations

from fedkin.learning.models.base import Model
from fedkin.learning.models.cnn import CnnCifar, CnnMnist, LeafCnn, LeNet
from fedkin.learning.models.mlp import Linear, Mlp

__all__ = ["MODELS", "CnnCifar", "CnnMnist", "LeNet", "LeafCnn", "Linear", "Mlp", "Model"]

MODELS: dict[str, type[Model]] = {
    "linear": Linear,
    "mlp": Mlp,
    "cnn-mnist": CnnMnist,
    "cnn-cifar": CnnCifar,
    "lenet": LeNet,
    "leaf-cnn": LeafCnn,
}
