"""The layout of images in memory, in which a net is computed.

A net with two-dimensional convolutions is computed with channels last (height, width, channels in memory), which is
faster on a CPU. A net that cannot (its own code calls `view` on a feature map, say) is computed with channels first: a
pass over two samples tells, forward and backward. No timing decides, so that the bits are the same on every run.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.learning.devices import CPU, arranged, device_of
from fedkin.learning.frozen import Frozen
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.torch_rng import seeded

__all__ = ["decide", "lay_out"]

_LOG = logging.getLogger("fedkin")


def lay_out(net: Net, module: BodyHead, samples: Samples) -> bool:
    """Lay this module of the net out, once, and return whether it is computed with channels last."""
    if module.channels_last is None:
        if not len(samples):
            return False
        on_cpu = device_of(module) == CPU
        if on_cpu and net.channels_last is None:
            decide(net, samples.inputs(torch.tensor([0, len(samples) - 1]), net.dtype))
        _lay(module, on_cpu and bool(net.channels_last))
    return bool(module.channels_last)


def decide(net: Net, x: Any) -> None:
    """Decide the layout of the net by two inputs, and lay out its frozen tensors, which all its modules share."""
    convolves = any(tensor.ndim == 4 for tensor in (*net.module.parameters(), *net.module.buffers()))
    net.channels_last = convolves and _runs(net, x)
    for tensor in net.frozen.values():
        tensor.data = arranged(tensor.data, net.channels_last)


def _lay(module: BodyHead, last: bool) -> None:
    module.channels_last = last
    for part in module.modules():
        if isinstance(part, Frozen):
            part.channels_last = last
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = arranged(tensor.data, last)


def _runs(net: Net, x: Any) -> bool:
    """Whether the net can be computed with channels last."""
    module = net.scratch()
    _lay(module, True)
    try:
        with seeded(), torch.enable_grad():
            for training in (True, False):
                out = module.train(training)(arranged(x))
                if isinstance(out, Tensor) and out.requires_grad:
                    out.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a module of the user's does
        _LOG.info(
            "model: convolutions are computed with channels first, which is slower: the net does not take feature maps "
            "with channels last (%s); flatten(1) or reshape in place of view does", " ".join(str(error).split()),
        )  # fmt: skip
        return False
    return True
