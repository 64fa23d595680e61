"""Local training of one client: the plain loop, whose results every faster mode must reproduce."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.codec import Params, Tree
from fedkin.errors import MethodError
from fedkin.federation import Samples
from fedkin.learning.devices import CPU, arranged, device_of, drawn, moved, plain, seeded, usual
from fedkin.learning.frozen import Frozen, cached_features
from fedkin.learning.losses import Batch, Loss
from fedkin.learning.net import BodyHead, Net, check_fit
from fedkin.learning.training import Fitted, Training, mean_loss

_LOG = logging.getLogger("fedkin")

# What to compute of a batch: a part of the net's outputs, or a function (model, batch) -> Tensor [batch, ...].
What = Literal["logits", "features"] | Callable[..., Tensor]

# Rows per pass without gradients. 128 rows are about as fast as 512 for dense nets and LeNet, and 1.6 times as fast for
# nets whose feature maps then still fit in a core's cache.
ROWS = 128
_ROWS_ON_A_GPU = 1024


def load(module: BodyHead, params: Params) -> None:
    """Copy these parameters and buffers, which are all that training changes, into the module."""
    tensors = trained(module)
    check_fit(params, tensors)
    last = bool(module.channels_last)
    for name, tensor in tensors.items():
        tensor.data = arranged(params[name].to(device=tensor.device, dtype=tensor.dtype, copy=True), last)


def fit(
    net: Net, module: BodyHead, params: Params, loss: Loss, samples: Samples, training: Training,
    extras: Tree, carry: Tree, rng: np.random.Generator, weights: Sequence[float] | None = None,
) -> Fitted:  # fmt: skip
    """Train `params` on `samples`; batches and dropout are drawn from `rng` alone.

    weights: the weight of a sample of each class. `samples` are on the device of the module; results are on the CPU.
    """
    last = lay_out(net, module, samples)
    load(module, params)
    device = device_of(module)
    extras, carry = moved(extras, device), moved(carry, device)
    module.train()
    constant = module.constants()
    step = stepper(training, list(module.params.values()))
    class_weights = None if weights is None else torch.tensor(weights, dtype=net.dtype, device=device)
    view = training.augment
    values: list[Tensor] = []
    samples_seen = 0
    changed = view is not None and view.on
    with seeded(device=device), cached_features(module.body, samples, net.dtype, changed) as set_batch:
        seed_torch(int(rng.integers(2**63)), device)
        for where in drawn(list(training.batches(len(samples), rng)), device):
            x, y = arranged(samples.inputs(where, net.dtype), last), samples.labels(where)
            if view is not None:
                x = arranged(view(x), last)
            mask = torch.ones(len(where), dtype=net.dtype, device=device)
            batch = Batch(x, y, mask, True, None if class_weights is None else class_weights[y])
            set_batch(batch.x, where)
            try:
                result = loss(module, batch, extras, carry)
            except ValueError as error:
                _raise_for_single_sample(error, len(where), len(samples), training)
                raise
            value, carry = result if isinstance(result, tuple) else (result, carry)
            value.backward()  # type: ignore[no-untyped-call]
            step()
            values.append(value.detach())
            samples_seen += len(where)
    total = float(torch.stack(values).double().sum()) if values else 0.0
    mean = mean_loss(total, len(values))
    _unchanged(module, constant)
    return Fitted(learned(module), plain(moved(carry, CPU)), mean, len(values), samples_seen)


def _raise_for_single_sample(error: ValueError, batch: int, n: int, training: Training) -> None:
    """Raise MethodError in place of batch normalisation's error for a batch of one sample."""
    if "more than 1 value per channel" in str(error) and batch == 1:
        raise MethodError(
            f"batch normalisation needs two samples in a batch, and batches of {training.batch_size} leave one of {n} "
            "samples alone; set another training.batch_size"
        ) from error


def seed_torch(number: int, device: torch.device) -> None:
    """Seed the generators from which a fit draws."""
    if device == CPU:
        torch.default_generator.manual_seed(number)  # torch.manual_seed formats a traceback for each kind of GPU
    else:
        torch.manual_seed(number)


def stepper(training: Training, leaves: Sequence[Tensor]) -> Callable[[], None]:
    """Return the function that updates the parameters by their gradients, and clears the gradients.

    SGD without momentum does not use torch.optim, whose bookkeeping costs more than the step of a small net.
    """
    plain_sgd = training.optimiser == "sgd" and not training.momentum
    optimiser = None if plain_sgd else training.build(leaves)
    for leaf in leaves:
        leaf.grad = None  # an earlier fit that failed may have left a gradient

    @torch.no_grad()
    def step() -> None:
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves, training.clip)
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
            return
        for leaf in leaves:
            if leaf.grad is not None:
                if training.weight_decay:
                    leaf.grad.add_(leaf, alpha=training.weight_decay)
                leaf.add_(leaf.grad, alpha=-training.lr)
                leaf.grad = None

    return step


def infer(net: Net, module: BodyHead, params: Params, what: What, samples: Samples) -> Tensor:
    """Return the outputs of the net for all samples, [n, ...], in evaluation mode, on the CPU."""
    lay_out(net, module, samples)
    load(module, params)
    return outputs(net, module, what, samples)


def outputs(net: Net, module: BodyHead, what: What, samples: Samples) -> Tensor:
    """Return the outputs of the module with its present parameters, as `infer` does.

    The passes are shorter if the GPU's memory is too small.
    """
    many = ROWS if device_of(module) == CPU else _ROWS_ON_A_GPU
    while True:
        try:
            return _passes(net, module, what, samples, many)
        except torch.OutOfMemoryError:
            if many == 1:
                raise
        many //= 2


def _passes(net: Net, module: BodyHead, what: What, samples: Samples, many: int) -> Tensor:
    """Return the outputs, computed for `many` samples at a time."""
    module.eval()
    device = device_of(module)
    last = lay_out(net, module, samples)
    parts = []
    with torch.no_grad(), cached_features(module.body, samples, net.dtype) as set_batch:
        for start in range(0, len(samples), many):
            rows = slice(start, start + many)
            x, y = arranged(samples.inputs(rows, net.dtype), last), samples.labels(rows)
            set_batch(x, rows)
            if what == "logits":
                out = module(x)
            elif what == "features":
                out = module.features(x)
            else:
                out = what(module, Batch(x, y, torch.ones(len(y), dtype=net.dtype, device=device)))
            parts.append(out.to(CPU))
    return torch.cat(parts).contiguous()


def trained(module: BodyHead) -> dict[str, Tensor]:
    """Return the tensors that training changes, in the order of `Net.initial`."""
    named = module.tensors
    # In most nets these are all tensors.
    return named if len(named) == len(module.sent_names) else {name: named[name] for name in module.sent_names}


def learned(module: BodyHead) -> Params:
    """Return the tensors that training changes, in the form in which they are sent and stored."""
    return {name: usual(tensor.detach().to(CPU)) for name, tensor in trained(module).items()}


def _unchanged(module: BodyHead, before: Mapping[str, tuple[int, int]]) -> None:
    """Raise MethodError if a buffer that does not travel has changed, since the next client would use it."""
    now = module.constants()
    for name in before:
        if before[name] != now[name]:
            raise MethodError(
                f"model: training changed the buffer {name!r}, which belongs to a frozen module and stays at home; let "
                "one parameter of that module train, or change the buffer only in modules that do"
            )


# -- layout of images in memory ---------------------------------------------------------------------------------------
# A net with two-dimensional convolutions is computed with channels last (height, width, channels in memory), which is
# faster on a CPU. A net that cannot (its own code calls `view` on a feature map, say) is computed with channels first.
# A pass over two samples decides, not a timing, so that the bits are the same on every run.


def lay_out(net: Net, module: BodyHead, samples: Samples) -> bool:
    """Set the memory layout of this module of the net, once; return whether it is computed with channels last."""
    if module.channels_last is None:
        if not len(samples):
            return False
        on_cpu = device_of(module) == CPU
        if on_cpu and net.channels_last is None:
            decide(net, samples.inputs(torch.tensor([0, len(samples) - 1]), net.dtype))
        _lay(module, on_cpu and bool(net.channels_last))
    return bool(module.channels_last)


def decide(net: Net, x: Any) -> None:
    """Decide the layout of the net by two inputs, and apply it to its frozen tensors, which all its modules share."""
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
    except Exception as error:  # a user's module may raise anything
        _LOG.info(
            "model: convolutions are computed with channels first, which is slower: the net does not take feature maps "
            "with channels last (%s); flatten(1) or reshape in place of view does", " ".join(str(error).split()),
        )  # fmt: skip
        return False
    return True
