"""FedBN: all parameters are shared, except those of normalisation layers.

Li, Jiang, Zhang, Kamp, Dou. FedBN: federated learning on non-IID features via local batch normalization. ICLR 2021.
"""

from __future__ import annotations

from torch import nn

from fedkin.forms import Weights
from fedkin.learning.net import Net
from fedkin.methods.blocks.partial import PartialModel

_KINDS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def without_normalisation(net: Net) -> list[str]:
    """Names of parameters and buffers outside normalisation layers (recognised by class), in the net's order."""
    own = tuple(f"{name}." for name, module in net.module.named_modules() if isinstance(module, _KINDS))
    return [name for name in net.initial if not name.startswith(own)] if own else list(net.initial)


class FedBN(PartialModel):
    """FedAvg of all parameters but those of normalisation layers, whose weights and statistics stay at each client.

    Without such layers it is FedAvg. A client that never trained has the initial normalisation layers.
    """

    name = "fedbn"
    title = "FedBN"
    paper = "Li et al., ICLR 2021"
    travels = "the model without normalisation layers, down and up"
    sent = Weights(part=without_normalisation)
