"""The nets that an experiment can name; "mixed" gives each client one of them."""

from __future__ import annotations

from fedkin.learning.models.base import Model
from fedkin.learning.models.cnn import CnnCifar, CnnFedAvg, CnnMnist, LeafCnn, LeNet
from fedkin.learning.models.mlp import Linear, Mlp
from fedkin.learning.models.pretrained import Timm, Transformers
from fedkin.learning.models.small import SmallPlain, SmallResidual, SmallSeparable, SmallWide
from fedkin.learning.models.tabular import Mlp3, Mlp8
from fedkin.learning.models.text import TextMean
from fedkin.learning.models.unet import UNet
from fedkin.learning.models.vision import AlexNet, GoogLeNet, ResNet18, ResNet50, ShuffleNetV2

__all__ = ["NAMED"]

NAMED: dict[str, type[Model]] = {
    "linear": Linear,
    "mlp": Mlp,
    "cnn-mnist": CnnMnist,
    "cnn-cifar": CnnCifar,
    "cnn-fedavg": CnnFedAvg,
    "mlp-3": Mlp3,
    "mlp-8": Mlp8,
    "text-mean": TextMean,
    "unet": UNet,
    "lenet": LeNet,
    "leaf-cnn": LeafCnn,
    "small-plain": SmallPlain,
    "small-residual": SmallResidual,
    "small-separable": SmallSeparable,
    "small-wide": SmallWide,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "shufflenet-v2": ShuffleNetV2,
    "googlenet": GoogLeNet,
    "alexnet": AlexNet,
    "transformers": Transformers,
    "timm": Timm,
}
