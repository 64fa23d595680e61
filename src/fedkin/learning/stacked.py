"""Local training of many clients as one computation, for nets that are a chain of simple layers.

The weights of K clients are in one tensor [K, out, in], so that a layer is one batched product. Forward and backward
are written out. For layers h_l = act(h_{l-1} W_l^T + b_l), and g_l the gradient of the loss with respect to the input
of act, a step of plain SGD is a product that is added to the weights in place, and no gradient is stored:

    g_{l-1} = (g_l W_l) * act'        W_l <- (1 - lr * decay) W_l - lr * g_l^T h_{l-1}

A proximal term mu / 2 |w - w_0|^2 makes the factor 1 - lr * (decay + mu), and adds lr * mu * w_0. Batches are padded to
the longest one; a padded row has the weight 0 in every sum over samples. A client that has finished leaves the stack.

Each result equals that of `sgd.fit` up to rounding: the same batches, and the same draws of dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from fedkin.codec import Params, Tree
from fedkin.errors import MethodError
from fedkin.federation import Samples
from fedkin.federation.inputs import CODES
from fedkin.federation.samples import prepared
from fedkin.learning.devices import CPU, moved
from fedkin.learning.losses import Batch, CrossEntropy, Loss, Proximal, SquaredError
from fedkin.learning.net import Net, check_fit
from fedkin.learning.stacked_layers import ACTIVATIONS, LAYERS, Layer, Linear, PaddedBatch, PlainSgd, Relu, Step
from fedkin.learning.training import Fitted, Training, mean_loss

# Bytes of weights in one stack on a CPU: more would leave the cache between steps, fewer need too many calls.
_CACHE = 6 << 20


class NotStacked(MethodError):
    """These samples cannot be stacked."""


@dataclass(frozen=True, eq=False)
class StackedFit:
    """One client's part in a stack; class_weights: the weight of a sample of each class."""

    params: Params
    samples: Samples
    extras: Tree
    carry: Tree
    key: int
    class_weights: Sequence[float] | None = None


# -- which nets and losses --------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    """A net as a chain of layers. flat: inputs are flattened first. layers: those of the body, by name."""

    flat: bool
    layers: tuple[tuple[str, nn.Module], ...]
    head: nn.Linear

    def has(self, kind: type[nn.Module]) -> bool:
        """Whether a layer is of this class."""
        return any(type(layer) is kind for _, layer in self.layers)


def why_not(net: Net, loss: Loss, training: Training) -> str:
    """Return why clients cannot be trained in a stack; empty if they can.

    >>> why_not(Net(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), nn.Linear(2, 2)), CrossEntropy(), Training())
    'body.1 is a Softmax'
    """
    inner = loss.loss if type(loss) is Proximal else loss
    if type(inner) not in (CrossEntropy, SquaredError) and (inner is not loss or not getattr(loss, "stackable", False)):
        return f"the loss is a {type(inner).__name__}"
    if training.augment is not None and training.augment.on:
        return "the views of training.augment are random"
    chain = chain_of(net)
    return chain if isinstance(chain, str) else ""


def chain_of(net: Net) -> Chain | str:
    """Return the net as a chain of layers, or why it is not one: every module must be an unchanged module of torch."""
    head, flat, layers = net.module.head, False, list[tuple[str, nn.Module]]()
    if altered := _altered(net):
        return altered
    for name, part in _unfolded("body", net.module.body):
        if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            flat |= not layers  # the output of a layer is flat already
        elif not _stackable(part):
            return f"{name} is a {type(part).__name__}"
        elif type(part) is not nn.Identity and not (type(part) is nn.Dropout and part.p == 0):
            layers.append((name, part))
    if type(head) is not nn.Linear:
        return f"head is a {type(head).__name__}"
    if odd := sorted(_tensors_in([*layers, ("head", head)]) ^ {*net.initial}):
        return f"{odd[0]} is frozen, shared, or in no layer of the chain"
    return Chain(flat, tuple(layers), head)


def _tensors_in(layers: Sequence[tuple[str, nn.Module]]) -> set[str]:
    """Return the names of all parameters and buffers of these layers."""
    return {
        f"{name}.{field}" for name, part in layers for field, _ in (*part.named_parameters(), *part.named_buffers())
    }


def _altered(net: Net) -> str | None:
    """Return what makes torch do more than the forward functions of the modules' classes in float32, or None."""
    if net.precision != "float32":
        return f"run.precision is {net.precision!r}"
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return "torch has a hook for all modules"
    for name, part in net.module.named_modules():
        if any(getattr(part, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre")):
            return f"{name or 'the net'} has a hook"
        if {"forward", "train", "_call_impl"} & vars(part).keys():
            return f"{name or 'the net'} has a method of its own"
    return None


def _unfolded(name: str, part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(part) is not nn.Sequential:
        yield name, part
        return
    for field, child in part._modules.items():  # named_children leaves out modules that occur again
        assert child is not None
        yield from _unfolded(f"{name}.{field}", child)


def _stackable(part: nn.Module) -> bool:
    """Whether this layer has an implementation below."""
    if type(part) is nn.Dropout:
        return part.p < 1
    if type(part) is nn.LayerNorm:
        return len(part.normalized_shape) == 1
    if type(part) is nn.BatchNorm1d:
        return part.momentum is not None
    return type(part) in (nn.Linear, nn.ReLU, nn.Identity, *ACTIVATIONS)


# -- batches ----------------------------------------------------------------------------------------------------------


class _Batches:
    """The batches of all members at all steps; members with more steps come first.

    active: the number of members that still train, by step. counts [K, steps]: samples in each batch.
    """

    def __init__(self, net: Net, training: Training, members: Sequence[StackedFit], device: torch.device) -> None:
        self.members, self.dtype, self.seeds, batches = members, net.dtype, list[int](), list[Any]()
        for member in members:
            draw = np.random.default_rng(member.key)
            self.seeds.append(int(draw.integers(2**63)))  # as `sgd.fit` draws it
            batches.append(list(training.batches(len(member.samples), draw)))
        self.steps = list(map(len, batches))
        rows, self.counts = _padded(batches)
        self.active = [sum(steps > step for steps in self.steps) for step in range(self.counts.shape[1])]
        self.widths = self.counts.max(0).tolist()
        where = torch.from_numpy(rows).to(device)
        self.labels = torch.stack([m.samples.labels(place) for m, place in zip(members, where, strict=True)])
        # The rows of each member's array, step by step.
        in_arrays = [s if m.samples.rows is None else m.samples.rows[s] for m, s in zip(members, where, strict=True)]
        self.rows = [steps.unbind(0) for steps in in_arrays]
        self.numbers = torch.from_numpy(self.counts).to(device, net.dtype)
        self.mask = (torch.arange(rows.shape[2], device=device) < self.numbers[:, :, None]).to(net.dtype)
        self.even = self.mask / self.numbers.clamp(min=1)[:, :, None]
        self.weights = self._class_weights()
        if self.weights is not None:
            weighted = self.mask * self.weights
            total = weighted.sum(2, keepdim=True)
            self.shares = weighted / torch.where(total > 0, total, 1.0)
        x = members[0].samples.x
        assert isinstance(x, Tensor)
        # One buffer for all steps, which stays in the cache.
        self.block = x.new_empty(len(members) * rows.shape[2], *x.shape[1:])

    def _class_weights(self) -> Tensor | None:
        """Return the weight of each sample by its class [K, steps, b]; None if no member has class weights."""
        classes = next((len(m.class_weights) for m in self.members if m.class_weights is not None), 0)
        if not classes:
            return None
        rows = [m.class_weights or (1.0,) * classes for m in self.members]
        table = torch.tensor(rows, dtype=self.dtype, device=self.labels.device)
        return table.gather(1, self.labels.flatten(1)).view(self.labels.shape)

    def at(self, step: int) -> PaddedBatch:
        """Return the batches of a step."""
        active, width = self.active[step], self.widths[step]

        def part(tensor: Tensor) -> Tensor:
            return tensor[:active, step, :width]

        even = share = part(self.even)
        weight = None
        if self.weights is not None:
            share, weight = part(self.shares), part(self.weights)
        x, counts = self._inputs(step, active, width), self.numbers[:active, step]
        return PaddedBatch(x, part(self.labels), counts, part(self.mask), even, share, weight)

    def _inputs(self, step: int, active: int, width: int) -> Tensor:
        block = self.block[: active * width]
        parts = block.view(active, width, *block.shape[1:]).unbind(0)
        for out, member, rows in zip(parts, self.members, self.rows, strict=False):
            assert isinstance(member.samples.x, Tensor)
            torch.index_select(member.samples.x, 0, rows[step][:width], out=out)
        x: Tensor = prepared(block, self.members[0].samples.scale, self.dtype)
        return x.view(active, width, *x.shape[1:])


def _padded(batches: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    """Return the rows of all members' batches [K, steps, b], padded with zeros, and how many are in each [K, steps]."""
    counts = np.zeros((len(batches), max(map(len, batches))), np.int64)
    rows = np.zeros((*counts.shape, max(len(batch) for steps in batches for batch in steps)), np.int64)
    for index, steps in enumerate(batches):
        for step, batch in enumerate(steps):
            rows[index, step, : len(batch)], counts[index, step] = batch, len(batch)
    return rows, counts


def _check(chain: Chain, members: Sequence[StackedFit]) -> None:
    """Raise NotStacked unless each sample is a row of numbers, of the same kind at all members."""
    first = members[0].samples
    for samples in [member.samples for member in members]:
        x, like = samples.x, first.x
        if not isinstance(x, Tensor) or not isinstance(like, Tensor) or (x.dtype in CODES and samples.scale is None):
            raise NotStacked("the inputs are no single array of numbers")
        if x.ndim != 2 and not chain.flat:
            raise NotStacked("the inputs are no rows of numbers, and the net does not begin with nn.Flatten")
        if (x.dtype, x.shape[1:], samples.scale) != (like.dtype, like.shape[1:], first.scale):
            raise NotStacked("the clients' arrays are not of one kind")
        if (samples.y.dtype, samples.y.shape[1:]) != (first.y.dtype, first.y.shape[1:]):
            raise NotStacked("the clients' targets are not of one kind")


# -- losses: the head, and the gradient with respect to the features --------------------------------------------------


class _HeadAndLoss:
    """The head and the loss of a stack: each step gives the gradient of the features, and updates the head."""

    def __init__(self, loss: Loss, head: Linear, members: Sequence[StackedFit], device: torch.device) -> None:
        self.loss, self.head, self.members = loss, head, members
        self.carry: Any = None
        self.extras: Any = None
        if type(loss) not in (CrossEntropy, SquaredError):
            self.extras = moved(_stacked([member.extras for member in members]), device)
            self.carry = moved(_stacked([member.carry for member in members]), device)

    def slope(self, z: Tensor, step: Step, needed: bool) -> tuple[Tensor, Tensor]:
        """Return (the loss of each member [K], the gradient with respect to the features z)."""
        if type(self.loss) is CrossEntropy:
            return self._cross_entropy(z, step, needed)
        if type(self.loss) is SquaredError:
            return self._squared_error(z, step, needed)
        return self._mapped(z, step)

    def _cross_entropy(self, z: Tensor, step: Step, needed: bool) -> tuple[Tensor, Tensor]:
        y, share = step.batch.y[:, None], step.batch.share[:, None]
        # [K, classes, b]: a softmax across rows is many times as fast as one along short rows.
        log_p = F.log_softmax(self.head.turned(z, step), 1)
        values = -(log_p.gather(1, y) * share).sum((1, 2))
        slope = log_p.exp_().mul_(share).scatter_add_(1, y, -share)
        return values, self.head.backward(slope.mT, step, needed)

    def _squared_error(self, z: Tensor, step: Step, needed: bool) -> tuple[Tensor, Tensor]:
        y, share = step.batch.y, step.batch.share
        away = self.head.forward(z, step)
        if y.shape != away.shape:
            raise NotStacked(f"there is no target for each of the net's {away.shape[2]} outputs")
        away -= y.to(z.dtype)
        values = (away.square().sum(2) * share).sum(1)
        return values, self.head.backward(away.mul_(2 * share[:, :, None]), step, needed)

    def _mapped(self, z: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Map the loss over the members by torch.func, on features and head alone."""
        batch = {"x": step.batch.x, "y": step.batch.y, "mask": step.batch.mask}
        if step.batch.weight is not None:
            batch["weight"] = step.batch.weight

        def one(z: Tensor, head: dict[str, Tensor], batch: Any, extras: Any, carry: Any) -> tuple[Tensor, Any]:
            result = self.loss(_Features(z, head), Batch(**batch), extras, carry)  # type: ignore[arg-type]
            return result if isinstance(result, tuple) else (result, carry)

        active = len(z)
        extras, before = (pytree.tree_map(lambda t: t[:active], tree) for tree in (self.extras, self.carry))
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            named = (("weight", self.head.param(step, "weight")), ("bias", self.head.param(step, "bias")))
            head = {name: t.detach().requires_grad_() for name, t in named if t is not None}
            values, carry = vmap(one)(leaf, head, batch, extras, before)
            below, *grads = torch.autograd.grad(values.sum(), [leaf, *head.values()])
        for name, grad in zip(head, grads, strict=True):
            step.add(f"{self.head.name}.{name}", grad)
        self.carry = pytree.tree_map(lambda new, old: torch.cat([new.detach(), old[active:]]), carry, self.carry)
        return values.detach(), below

    def carries(self) -> list[Tree]:
        """Return the last carry of each member."""
        if self.carry is None:
            return [member.carry for member in self.members]
        carry = moved(self.carry, CPU)
        return [pytree.tree_map(lambda t, k=k: t[k].clone(), carry) for k in range(len(self.members))]


class _Features:
    """One member's model as a stackable loss sees it: the features of its batch, and its head."""

    def __init__(self, z: Tensor, head: Mapping[str, Tensor]) -> None:
        self.z, self.weights = z, head

    def features(self, x: Any) -> Tensor:
        return self.z

    def head(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weights["weight"], self.weights.get("bias"))


def _stacked(trees: Sequence[Tree]) -> Any:
    """Return trees of tensors as one, with a leading axis."""
    plain = [pytree.tree_map(torch.as_tensor, dict(tree)) for tree in trees]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *plain)


# -- training ---------------------------------------------------------------------------------------------------------


def fit_stacked(
    net: Net, loss: Loss, training: Training, members: Sequence[StackedFit], device: torch.device = CPU
) -> list[Fitted]:
    """Train all members, whose samples are on `device`; results are on the CPU.

    `why_not` must return "" for these arguments. Raises NotStacked for samples that cannot be stacked.
    """
    chain = chain_of(net)
    assert isinstance(chain, Chain)
    _check(chain, members)
    if chain.has(nn.Dropout) and device != CPU:
        raise NotStacked("a GPU draws dropout from one generator")
    for params in {id(member.params): member.params for member in members}.values():
        check_fit(params, net.initial)
    width = _width(net, loss) if device == CPU else len(members)
    # Clients of similar size are in one stack, so that there is less padding.
    order = sorted(range(len(members)), key=lambda k: -training.steps(len(members[k].samples)))
    fitted: dict[int, Fitted] = {}
    for at in range(0, len(order), width):
        part = order[at : at + width]
        with torch.no_grad():
            done = _fit(net, chain, loss, training, [members[k] for k in part], device)
        fitted.update(zip(part, done, strict=True))
    return [fitted[k] for k in range(len(members))]


def _width(net: Net, loss: Loss) -> int:
    """Return how many members' parameters the processor's cache holds; a proximal term has as many again."""
    size = sum(tensor.nbytes for tensor in net.initial.values())
    return max(1, _CACHE // (2 * size if type(loss) is Proximal else size))


def _fit(
    net: Net, chain: Chain, loss: Loss, training: Training, members: Sequence[StackedFit], device: torch.device
) -> list[Fitted]:
    """Train the members of one stack, in which those with more steps come first."""
    batches = _Batches(net, training, members, device)
    if chain.has(nn.BatchNorm1d) and (batches.counts == 1).any():
        raise NotStacked("batch normalisation refuses a batch of one sample")
    stack = _stack_of([member.params for member in members], net.initial, device)
    mu, start = 0.0, dict[str, Tensor]()
    if isinstance(loss, Proximal):
        like = {name: net.initial[name] for name in net.trainable}
        mu, start = loss.weight, _stack_of([member.extras["start"] for member in members], like, device)
        loss = loss.loss
    plain = training.optimiser == "sgd" and not training.momentum and training.clip is None
    generators = [torch.Generator().manual_seed(seed) for seed in (batches.seeds if chain.has(nn.Dropout) else ())]
    step = (PlainSgd if plain else Step)(training, generators, mu, start)
    layers: list[Layer] = [LAYERS[type(part)](name, part) for name, part in chain.layers]
    for before, layer in pairwise(layers):
        if isinstance(layer, Relu):
            layer.in_place = isinstance(before, Linear)  # a Linear does not need its output again
    ends = _HeadAndLoss(loss, Linear("head", chain.head), members, device)
    totals = _train(stack, batches, layers, ends, step)
    return _results(batches, stack, ends.carries(), totals.to(CPU).tolist())


def _stack_of(trees: Sequence[Params], like: Params, device: torch.device) -> dict[str, Tensor]:
    """Return the members' parameters as tensors [K, ...]; like: the names and types of one member."""
    return {name: torch.stack([tree[name] for tree in trees]).to(device, tensor.dtype) for name, tensor in like.items()}


def _train(
    stack: Mapping[str, Tensor], batches: _Batches, layers: Sequence[Layer], ends: _HeadAndLoss, step: Step
) -> Tensor:
    """Do all steps, which change the stack; return the sum of each member's losses [K]."""
    totals = torch.zeros(len(batches.members), dtype=torch.float64, device=batches.labels.device)
    lowest = next((k for k, layer in enumerate(layers) if list(layer.part.parameters())), len(layers))
    for number, active in enumerate(batches.active):
        if number == 0 or active != batches.active[number - 1]:
            step.params = {name: tensor[:active] for name, tensor in stack.items()}
        step.number, step.batch = number, batches.at(number)
        z = step.batch.x.flatten(2)
        for layer in layers:
            z = layer.forward(z, step)
        for name, start in step.start.items():
            away = (step.params[name] - start[:active]).flatten(1).square().sum(1)
            totals[:active] += away.double() * (step.mu / 2)
        values, slope = ends.slope(z, step, lowest < len(layers))
        totals[:active] += values.double()
        for k in range(len(layers) - 1, lowest - 1, -1):
            slope = layers[k].backward(slope, step, k > lowest)
        step.finish()
    return totals


def _results(
    batches: _Batches, stack: Mapping[str, Tensor], carries: Sequence[Tree], totals: Sequence[float]
) -> list[Fitted]:
    rows = {name: tensor.to(CPU).unbind(0) for name, tensor in stack.items()}
    results = []
    for k, (carry, total, steps) in enumerate(zip(carries, totals, batches.steps, strict=True)):
        mean = mean_loss(total, steps)
        # A copy: one member's part must not keep the memory of the others alive.
        params = {name: parts[k].clone() for name, parts in rows.items()}
        results.append(Fitted(params, carry, mean, steps, int(batches.counts[k].sum())))
    return results
