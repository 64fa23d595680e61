"""Local training of one client: the plain loop, which every faster mode must equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.codec import Params, Tree
from fedkin.errors import MethodError
from fedkin.federation import Samples
from fedkin.learning.descent import descent, direct
from fedkin.learning.devices import CPU, arranged, device_of, drawn, moved, plain, usual
from fedkin.learning.frozen import recalled
from fedkin.learning.layout import batch_of, settled
from fedkin.learning.losses import Batch, Loss
from fedkin.learning.net import BodyHead, Net, check_fit
from fedkin.learning.seeded import seeded
from fedkin.learning.training import Fitted, Training

__all__ = ["ROWS", "arranged", "fit", "infer", "load", "outputs"]

# Rows per pass without gradients. 128 rows are about as fast as 512 for dense nets and LeNet, and 1.6 times as fast for
# nets whose feature maps then still fit in a core's cache (benchmarks/inference.py).
ROWS = 128
_ROWS_ON_A_GPU = 1024


def load(module: BodyHead, params: Params) -> None:
    """Copy these parameters and buffers into the module: all that training changes. The rest is in the module.

    They get the layout of the module; if that is not known yet, `settled` lays them out.
    """
    own = _held(module)
    check_fit(params, own)
    last = bool(module.last)
    for name, tensor in own.items():
        tensor.data = arranged(params[name].to(device=tensor.device, dtype=tensor.dtype, copy=True), last)


def fit(
    net: Net, module: BodyHead, params: Params, loss: Loss, samples: Samples, training: Training,
    extras: Tree, carry: Tree, rng: np.random.Generator, weights: Sequence[float] | None = None,
) -> Fitted:  # fmt: skip
    """Train `params` on `samples`; batches and dropout are drawn from `rng` alone.

    weights: what a sample of each class counts. `samples` are on the device of the module; results are on the CPU.
    """
    last = settled(net, module, samples)
    load(module, params)
    device = device_of(module)
    extras, carry = moved(extras, device), moved(carry, device)
    module.train()
    trained = dict(module.named_parameters())
    leaves = [trained[name] for name in net.trainable]
    descend = descent(training, leaves)
    constant = module.constants()
    counts = None if weights is None else torch.tensor(weights, dtype=net.dtype, device=device)
    view = training.augment
    values: list[Tensor] = []
    masks: dict[int, Tensor] = {}
    seen = 0
    changed = view is not None and view.on
    with (
        seeded(device=device),
        recalled(module.body, samples, net.dtype, changed) as recall,
        direct(module, loss, training),
        module.guarded() as guard,
    ):
        torch.manual_seed(int(rng.integers(2**63)))
        for where in drawn(list(training.batches(len(samples), rng)), device):
            size = len(where)
            if size not in masks or masks[size]._version:  # a loss may change it in place
                masks[size] = torch.ones(size, dtype=net.dtype, device=device)
            y = samples.labels(where)
            weight = None if counts is None else counts[y]
            if view is None:
                x = batch_of(samples, where, net.dtype, last)
            else:
                x = arranged(view(samples.inputs(where, net.dtype)), last)
            batch = Batch(x, y, masks[size], True, weight)
            recall(batch.x, where)
            with guard():
                result = loss(module, batch, extras, carry)
            value, carry = result if isinstance(result, tuple) else (result, carry)
            value.backward()  # type: ignore[no-untyped-call]
            descend()
            values.append(value.detach())
            seen += size
    steps = len(values)
    total = torch.stack(values).double().sum() if values else 0.0
    mean = float(total) / max(steps, 1)
    if not math.isfinite(mean):
        raise MethodError(
            f"the training loss became {mean} after {steps} steps; lower training.lr or set training.clip"
        )
    _unchanged(module, constant)
    learned = {name: usual(tensor.detach().to(CPU)) for name, tensor in _held(module).items()}
    return Fitted(learned, plain(moved(carry, CPU)), mean, steps, seen)


def infer(
    net: Net, module: BodyHead, params: Params, what: Literal["logits", "features"] | Callable[..., Tensor],
    samples: Samples,
) -> Tensor:  # fmt: skip
    """Return the outputs of the net for all samples, [n, ...], in evaluation mode, on the CPU."""
    settled(net, module, samples)
    load(module, params)
    return outputs(net, module, what, samples)


def outputs(
    net: Net, module: BodyHead, what: Literal["logits", "features"] | Callable[..., Tensor], samples: Samples
) -> Tensor:
    """Do `infer` with a module that has the parameters; in shorter passes if the GPU's memory does not suffice."""
    many = ROWS if device_of(module) == CPU else _ROWS_ON_A_GPU
    while True:
        try:
            return _passes(net, module, what, samples, many)
        except torch.OutOfMemoryError:
            if many == 1:
                raise
        many //= 2


def _passes(
    net: Net, module: BodyHead, what: Literal["logits", "features"] | Callable[..., Tensor], samples: Samples, many: int
) -> Tensor:
    """Return the outputs, computed for `many` samples at a time."""
    module.eval()
    device = device_of(module)
    last = settled(net, module, samples)
    parts = []
    with torch.no_grad(), recalled(module.body, samples, net.dtype) as recall, module.guarded() as guard:
        for start in range(0, len(samples), many):
            rows = slice(start, start + many)
            x, y = arranged(samples.inputs(rows, net.dtype), last), samples.labels(rows)
            recall(x, rows)
            if what == "logits":
                out = module(x)
            elif what == "features":
                out = module.features(x)
            else:
                with guard():
                    out = what(module, Batch(x, y, torch.ones(len(y), dtype=net.dtype, device=device)))
            parts.append(out.to(CPU))
    return torch.cat(parts).contiguous()


def _held(module: BodyHead) -> dict[str, Tensor]:
    """Return the tensors that training changes, in the order of `Net.initial`."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    # In most nets these are all tensors.
    return named if len(named) == len(module.travels) else {name: named[name] for name in module.travels}


def _unchanged(module: BodyHead, before: Mapping[str, tuple[int, int]]) -> None:
    """Raise MethodError if a buffer that does not travel has changed, since the next client would use it."""
    now = module.constants()
    for name in before:
        if before[name] != now[name]:
            raise MethodError(
                f"model: training changed the buffer {name!r}, which belongs to a frozen module and stays at home; let "
                "one parameter of that module train, or change the buffer only in modules that do"
            )
