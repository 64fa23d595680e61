"""The layout of images in memory, in which a net is computed.

A net with two-dimensional convolutions is computed with channels last (height, width, channels in memory), which is
faster on a CPU. This is a rule, not a measurement, so that the bits are the same on every run. A net that cannot (its
own code calls `view` on a feature map, say) is computed with channels first: passes over two samples tell, forward and
backward, in training and in evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.federation import Samples
from fedkin.federation.samples import prepared
from fedkin.learning.computing import check_kernels
from fedkin.learning.devices import CPU, arranged, device_of
from fedkin.learning.frozen import Frozen
from fedkin.learning.kernels import Trunk, trunk_in
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.seeded import seeded
from fedkin.learning.whole import made_up
from fedkin.learning.written import altered
from fedkin.tasks import Task

__all__ = ["batch_of", "decide", "settled"]

_LOG = logging.getLogger("fedkin")


def settled(net: Net, module: BodyHead, samples: Samples) -> bool:
    """Return whether this module of the net is computed with channels last, and lay it out so.

    If need be, two of these samples decide it.
    """
    if module.last is None:
        if not len(samples):
            return False
        on_cpu = device_of(module) == CPU
        if on_cpu and net.last is None:
            _decide(net, samples.inputs(torch.tensor([0, len(samples) - 1]), net.dtype))
        _lay(module, on_cpu and bool(net.last))
        module.trunk = _trunk(net, module) if on_cpu else None
        if module.trunk is not None:
            module.trunk.last = bool(module.last)
    return bool(module.last)


def decide(net: Net, task: Task) -> None:
    """Decide the layout of the net, by two made-up inputs of the task if need be."""
    if net.last is None:
        _decide(net, made_up(task, net.dtype))


def _decide(net: Net, x: Any) -> None:
    """Decide the layout of the net, and lay its frozen tensors out so."""
    trunk = _trunk(net, net.module)
    if trunk is None and net.computing.kernels == "numba":
        _LOG.info(
            "model: run.kernels = 'numba' has no effect: the body does not begin with a small Conv2d, MaxPool2d(2) and "
            "ReLU in an nn.Sequential"
        )
    own = set() if trunk is None else {id(tensor) for tensor in trunk.weights}
    left = any(t.ndim == 4 and id(t) not in own for t in _tensors(net.module))
    net.last = net.computing.channels_last and left and (
        _plain(net.module) or _fits(net, x)
    )  # fmt: skip
    for tensor in net.frozen.values():
        tensor.data = arranged(tensor.data, net.last)


def _trunk(net: Net, module: BodyHead) -> Trunk | None:
    """Return what computes the beginning of this module's body in place of torch."""
    check_kernels(net.computing.kernels)
    wanted = net.computing.kernels == "numba" and net.dtype == torch.float32
    return trunk_in(module.body) if wanted else None


def _lay(module: BodyHead, last: bool) -> None:
    """Lay the module's tensors out so, also those that were loaded before."""
    module.last = last
    for part in module.modules():
        if isinstance(part, Frozen):
            part.channels_last = last
    for tensor in _tensors(module):
        own = tensor.data
        laid = arranged(own, last)
        if laid is not own:
            tensor.data = laid


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _plain(module: BodyHead) -> bool:
    """Whether all parts are layers of torch as torch wrote them, none of which depends on the layout."""
    return not any(altered(part) for part in module.modules()) and all(
        type(part).__module__.startswith("torch.nn.modules.") for part in module.modules() if part is not module
    )


def _fits(net: Net, x: Any) -> bool:
    """Whether the net runs with channels last; also True if it does not run with channels first either."""
    failed = _failure(net, x, last=True)
    if failed is None or _failure(net, x, last=False) is not None:
        return True
    _LOG.info(
        "model: convolutions are computed with channels first, which is slower: the net does not take feature maps "
        "with channels last (%s); flatten(1) or reshape in place of view does", " ".join(str(failed).split()),
    )  # fmt: skip
    return False


def _failure(net: Net, x: Any, last: bool) -> Exception | None:
    """Return the error of passes forward and backward, in training and in evaluation."""
    module = net.scratch()
    _lay(module, last)
    try:
        with seeded(), torch.enable_grad():
            for training in (True, False):
                out = module.train(training)(arranged(x, last))
                if isinstance(out, Tensor) and out.requires_grad:
                    out.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a module of the user's does
        return error
    return None


def batch_of(samples: Samples, rows: Tensor, dtype: torch.dtype, last: bool) -> Any:
    """Return the inputs of these rows; with channels last they are gathered straight into that layout.

    Their strides are those that `arranged` gives, since torch chooses its convolution by them.
    """
    x, own = samples.x, samples.rows
    if not (last and isinstance(x, Tensor) and x.ndim == 4 and x.device == CPU and _one_layout(x)):
        return arranged(samples.inputs(rows, dtype), last)
    where = rows if own is None else own[rows]
    if bool((where < 0).any()):  # rows from the end, which index_select does not know
        return arranged(samples.inputs(rows, dtype), last)
    block = torch.empty((len(where), *x.shape[1:]), dtype=x.dtype, memory_format=torch.channels_last)
    torch.index_select(x, 0, where, out=block)
    return arranged(prepared(block, samples.scale, dtype), last)


def _one_layout(x: Tensor) -> bool:
    """Whether images in one layout are not also in the other, with other strides of axes of length 1."""
    return x.shape[1] > 1 and x.shape[2] * x.shape[3] > 1
