"""Named nets: settings that build a (body, head) pair for a task."""

from __future__ import annotations

from fedkin.learning.frozen import Frozen
from fedkin.learning.models.backbones import Adapters, backbone, transformer
from fedkin.learning.models.base import Model
from fedkin.learning.models.cnn import CnnCifar, CnnFedAvg, CnnMnist, LeafCnn, LeNet
from fedkin.learning.models.mixed import Mixed
from fedkin.learning.models.mlp import Linear, Mlp
from fedkin.learning.models.named import NAMED
from fedkin.learning.models.plain import Plain, plain
from fedkin.learning.models.pretrained import Timm, Transformers
from fedkin.learning.models.small import SmallPlain, SmallResidual, SmallSeparable, SmallWide
from fedkin.learning.models.tabular import Mlp3, Mlp8
from fedkin.learning.models.text import TextMean
from fedkin.learning.models.unet import UNet
from fedkin.learning.models.vision import AlexNet, GoogLeNet, ResNet18, ResNet50, ShuffleNetV2

__all__ = [
    "MODELS", "Adapters", "AlexNet", "CnnCifar", "CnnFedAvg", "CnnMnist", "Frozen", "GoogLeNet", "LeNet", "LeafCnn",
    "Linear", "Mixed", "Mlp", "Mlp3", "Mlp8", "Model", "Plain", "ResNet18", "ResNet50", "ShuffleNetV2", "SmallPlain",
    "SmallResidual", "SmallSeparable", "SmallWide", "TextMean", "Timm", "Transformers", "UNet", "backbone", "plain",
    "transformer",
]  # fmt: skip

MODELS: dict[str, type[Model]] = {**NAMED, "mixed": Mixed}
