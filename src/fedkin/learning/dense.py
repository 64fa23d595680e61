"""Local training of many clients in fully connected nets, without autograd through the net.

For layers h_l = act(h_{l-1} W_l^T + b_l) and mean cross-entropy, with g_L = (softmax(h_L) - onehot(y)) * mask / count
(with class weights, mask * weight over their sum) and g_{l-1} = (g_l W_l) * act'(h_{l-1}), a step of SGD is one matrix
product into the weights themselves, and no gradient is stored:

    W_l <- (1 - lr * wd) W_l - lr * g_l^T h_{l-1}        b_l <- (1 - lr * wd) b_l - lr * sum g_l

A proximal term mu / 2 |w - w_0|^2 makes the factor 1 - lr * (wd + mu) and adds lr * mu * w_0.

Clients are stacked [K, out, in]. A stack is small enough for its weights to stay in a core's cache between steps.
`learning.written` says which nets these are, `learning.layers` has their layers, `learning.ends` the losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.federation.inputs import CODES
from fedkin.learning.batches import Batches, Member, Plan
from fedkin.learning.devices import CPU
from fedkin.learning.ends import Given, bytes_of, end_of, is_written, views_of
from fedkin.learning.layers import Now, Sink
from fedkin.learning.losses import Loss, Proximal
from fedkin.learning.net import Net
from fedkin.learning.stacked import Optimiser, results, stack_of
from fedkin.learning.training import Fitted, Training
from fedkin.learning.written import LossNotWritten, NotWritten, Program

__all__ = ["fit_dense"]

# Bytes of weights in one stack: more would not stay in the cache between steps, fewer need too many calls
# (measured for 784-200-10: 1 client at a time 69 ms a round, 3 at a time 59 ms, 9 at a time 56 ms).
_CACHE = 6 << 20
# Bytes that the ends of one stack may need beside the net: contrasts grow with the square of the batch.
_ENDS = 128 << 20


def fit_dense(
    net: Net, loss: Loss, program: Program, training: Training, members: Sequence[Member],
    device: torch.device = CPU,
) -> list[Fitted]:  # fmt: skip
    """Train all members, whose samples are on `device`; each result equals `sgd.fit` of that member up to rounding.

    Raises NotWritten if the loss or the samples need another way.
    """
    if (program.draws or getattr(loss, "random", False)) and device != CPU:
        raise NotWritten("a GPU draws from a generator of its own")
    for member in members:
        _check(program, member.samples)
    pull = loss.weight if type(loss) is Proximal else None
    if pull is not None and program.extra:
        raise LossNotWritten("its proximal term pulls modules beside body and head")
    size = sum(t.numel() * t.element_size() for t in net.initial.values())
    width = max(1, _CACHE // size if pull is None else _CACHE // (2 * size)) if device == CPU else len(members)
    parts = _parts(loss, program, training, members, width)
    plans = [Plan(training, [members[k] for k in part], views_of(loss)) for part in parts]
    if program.batched and any((plan.counts == 1).any() for plan in plans):
        raise NotWritten("batch normalisation refuses a batch of one sample")
    fitted: dict[int, Fitted] = {}
    with torch.no_grad():
        for part, plan in zip(parts, plans, strict=True):
            made = _chunk(net, loss, pull, program, training, [members[k] for k in part], plan, device)
            fitted.update(zip(part, made, strict=True))
    return [fitted[k] for k in range(len(members))]


def _parts(
    loss: Loss, program: Program, training: Training, members: Sequence[Member], width: int
) -> list[list[int]]:  # fmt: skip
    """Return who is in each stack, at most `width`, and fewer where their ends would need more than `_ENDS`."""
    # Clients of similar size are in one stack, so that there is less padding.
    left = sorted(range(len(members)), key=lambda k: -len(members[k].samples))
    made = []
    while left:
        rows = len(members[left[0]].samples)
        rows = rows if training.batch_size == "all" else min(rows, training.batch_size)
        each = bytes_of(loss, program, rows * views_of(loss))
        most = width if not each else max(1, min(width, _ENDS // each))
        made.append(left[:most])
        left = left[most:]
    return made


def _check(program: Program, samples: Samples) -> None:
    """Raise NotWritten unless the net gets a row of numbers for each sample."""
    x = samples.x
    if not isinstance(x, Tensor) or (x.dtype in CODES and samples.scale is None):
        raise NotWritten("the inputs are no single array of numbers")
    if x.ndim != 2 and not program.flat:
        raise NotWritten("the inputs are no rows of numbers, and the net does not begin with nn.Flatten")


def _chunk(
    net: Net, loss: Loss, pull: float | None, program: Program, training: Training, members: Sequence[Member],
    plan: Plan, device: torch.device,
) -> list[Fitted]:  # fmt: skip
    """Train the members of one stack."""
    ordered = [members[k] for k in plan.order]
    stack = stack_of(net, ordered, device)
    layers, head = program.layers()
    totals = torch.zeros(len(members), dtype=torch.float64, device=device)
    # Another loss may keep its batch, in a carry.
    batches = Batches(net, ordered, plan, device, reuse=is_written(loss))
    # The loss inside a proximal one gets neither extras nor carry.
    seen = ordered if pull is None else [replace(m, extras={}, carry={}) for m in ordered]
    end = end_of(loss, Given(head, program, batches, seen, totals))
    # Those of other modules that the loss does not use have no gradient.
    trained = {*end.names, *(name for layer in (*layers, head) for name in layer.names)}
    free = {name: stack[name] for name in net.trainable if name in trained}
    centre = None if pull is None else _Centre(pull, free, ordered)
    # Momentum, Adam and clipping need the gradient itself; plain SGD adds it directly to the weights.
    plain = training.optimiser == "sgd" and not training.momentum and training.clip is None
    kept = _Gradients()
    keep = 1 - training.lr * (training.weight_decay + (pull or 0.0))
    sink: Sink = _Descent(training.lr, keep) if plain else kept
    optimiser = None if plain else Optimiser(training, free)
    lowest = next((number for number, layer in enumerate(layers) if layer.names), len(layers))
    moments = _Moments(program, plan, batches, is_written(loss) and getattr(loss, "random", False))
    active = 0
    for step in range(plan.steps[0]):
        inputs = batches.inputs(step)
        if len(inputs) != active:
            active = len(inputs)
            for layer in (*layers, head):
                layer.bind(stack, active)
            end.bind(stack, active)
        now = moments.at(step, *inputs.shape[:2])
        x = (inputs := end.seen(inputs, now)).flatten(2)
        for layer in layers:
            x = layer.forward(x, now)
        if centre is not None:
            totals[:active] += centre.values(active)
        slope = end.slope(step, x, inputs, now, sink, lowest < len(layers))
        for number in range(len(layers) - 1, lowest - 1, -1):
            slope = layers[number].backward(slope, sink, number > lowest)
        if optimiser is not None:
            if centre is not None:
                centre.add_to(kept.grads)
            optimiser.step([kept.grads[name] for name in free], active)
        elif centre is not None:
            centre.draw(training.lr, active)
    end.finish()
    return results(plan, stack, [m.carry for m in members] if centre else end.carries(plan.places), totals)


class _Descent:
    """Plain SGD: the matrix product that is the gradient is added to the weights, and a gradient is never stored."""

    def __init__(self, lr: float, keep: float) -> None:
        self.lr, self.keep = lr, keep
        self.ones = torch.ones(())

    def product(self, name: str, weight: Tensor, left: Tensor, right: Tensor) -> None:
        weight.baddbmm_(left.transpose(1, 2), right, beta=self.keep, alpha=-self.lr)

    def total(self, name: str, bias: Tensor, rows: Tensor) -> None:
        if self.ones.shape != (len(rows), 1, rows.shape[1]):
            self.ones = rows.new_ones(1, 1, 1).expand(len(rows), 1, rows.shape[1])
        bias.baddbmm_(self.ones, rows, beta=self.keep, alpha=-self.lr)

    def more(self, name: str, param: Tensor, grad: Tensor) -> None:
        param.sub_(grad, alpha=self.lr)

    def whole(self, name: str, param: Tensor, grad: Tensor) -> None:
        param.mul_(self.keep).sub_(grad, alpha=self.lr)


class _Gradients:
    """The stacked gradient of every parameter."""

    def __init__(self) -> None:
        self.grads: dict[str, Tensor] = {}

    def product(self, name: str, weight: Tensor, left: Tensor, right: Tensor) -> None:
        self.grads[name] = torch.bmm(left.transpose(1, 2), right)

    def total(self, name: str, bias: Tensor, rows: Tensor) -> None:
        self.grads[name] = rows.sum(1)

    def more(self, name: str, param: Tensor, grad: Tensor) -> None:
        self.grads[name].add_(grad)

    def whole(self, name: str, param: Tensor, grad: Tensor) -> None:
        self.grads[name] = grad


class _Moments:
    """What layers and the end need to know of each step; without draws and batch normalisation they need nothing.

    random: the loss draws.
    """

    def __init__(self, program: Program, plan: Plan, batches: Batches, random: bool) -> None:
        self.needed = program.draws or program.batched or random
        nothing = batches.masks[:0, 0]
        self.nothing = Now(nothing, (), nothing, ())
        if self.needed:
            whole = batches.masks.sum(2)
            self.shares, self.whole = batches.masks / whole.clamp(min=1)[:, :, None], whole
            self.counts = plan.counts.T.tolist()
            self.generators = (
                [torch.Generator().manual_seed(seed) for seed in plan.seeds] if program.draws or random else []
            )

    def at(self, step: int, active: int, width: int) -> Now:
        if not self.needed:
            return self.nothing
        share, whole = self.shares[:active, step, :width], self.whole[:active, step]
        return Now(share, self.counts[step][:active], whole, self.generators)


class _Centre:
    """The proximal term weight / 2 |w - w_0|^2 of the stacked parameters w of the first `active` members."""

    def __init__(self, weight: float, stack: dict[str, Tensor], members: Sequence[Member]) -> None:
        self.weight, self.stack = weight, stack
        self.start = {name: torch.stack([m.extras["start"][name] for m in members]).to(t) for name, t in stack.items()}

    def values(self, active: int) -> Tensor:
        """Return the term of each member: [active]."""
        away = (t[:active] - self.start[name][:active] for name, t in self.stack.items())
        return sum((gap.flatten(1).square_().sum(1).double() for gap in away), torch.tensor(0.0)) * (self.weight / 2)

    def draw(self, lr: float, active: int) -> None:
        """Take the part of the term's step that the factor on w does not contain."""
        for name, t in self.stack.items():
            t[:active].add_(self.start[name][:active], alpha=lr * self.weight)

    def add_to(self, grads: dict[str, Tensor]) -> None:
        """Add the gradient of the term to the gradient of the loss."""
        for name, grad in grads.items():
            own = slice(len(grad))
            grad.add_(self.stack[name][own] - self.start[name][own], alpha=self.weight)
