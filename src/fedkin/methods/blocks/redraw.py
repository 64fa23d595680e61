"""Another random start for a net."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedkin.learning.net import Net
from fedkin.learning.seeded import seeded

__all__ = ["redrawn"]


def redrawn(net: Net, seed: int) -> dict[str, Tensor]:
    """The net's initial parameters with the trainable ones drawn anew from `seed`.

    Modules with `reset_parameters` draw as they did when they were made. Parameters of other modules are shuffled
    entry by entry, which keeps their scale. Buffers and frozen parameters stay.
    """
    module = copy.deepcopy(net.module)
    with seeded(seed), torch.no_grad():
        for part in module.modules():
            own = list(part.parameters(recurse=False))
            trained = [parameter for parameter in own if parameter.requires_grad]
            if own and not trained:
                continue
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
            else:
                for parameter in trained:
                    parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].reshape(parameter.shape))
    drawn = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    return {name: drawn[name] if name in net.trainable else tensor for name, tensor in net.initial.items()}
