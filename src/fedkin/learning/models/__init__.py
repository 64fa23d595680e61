"""Named nets: settings that build a (body, head) pair for a task."""

from fedkin.learning.frozen import Frozen
from fedkin.learning.models.custom import Plain, pair_of, plain
from fedkin.learning.models.named import MODELS, Mixed
from fedkin.learning.models.nets import (
    CnnCifar,
    CnnFedAvg,
    CnnMnist,
    LeafCnn,
    LeNet,
    Linear,
    Mlp,
    Mlp3,
    Mlp8,
    Model,
    SmallPlain,
    SmallResidual,
    SmallSeparable,
    SmallWide,
    TextMean,
    UNet,
)  # fmt: skip
from fedkin.learning.models.pretrained import Adapters, backbone, transformer
from fedkin.learning.models.vision import AlexNet, GoogLeNet, ResNet18, ResNet50, ShuffleNetV2

__all__ = [
    "MODELS", "Adapters", "AlexNet", "CnnCifar", "CnnFedAvg", "CnnMnist", "Frozen", "GoogLeNet", "LeNet", "LeafCnn",
    "Linear", "Mixed", "Mlp", "Mlp3", "Mlp8", "Model", "Plain", "ResNet18", "ResNet50", "ShuffleNetV2", "SmallPlain",
    "SmallResidual", "SmallSeparable", "SmallWide", "TextMean", "UNet", "backbone", "pair_of",
    "plain", "transformer",
]  # fmt: skip
