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

import math
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
from fedkin.learning.training import Fitted, Training

_aten = torch.ops.aten
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
    return type(part) in (nn.Linear, nn.ReLU, nn.Identity, *_ACTIVATIONS)


# -- layers: [K, b, d] -> [K, b, d'] ----------------------------------------------------------------------------------


class _Layer:
    """A layer. `backward` gets the gradient with respect to the output, and returns that with respect to the input.

    It passes the gradients of its own parameters to the step. In padded rows the gradient is 0.
    """

    def __init__(self, name: str, part: Any) -> None:
        self.name, self.part = name, part

    def param(self, step: _Step, name: str) -> Tensor | None:
        """Return a parameter or buffer of this layer, [K, ...]; None if it has none of this name."""
        return step.params.get(f"{self.name}.{name}")

    def forward(self, x: Tensor, step: _Step) -> Tensor:
        raise NotImplementedError

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        """needed: whether the gradient with respect to the input is used; if not, return anything."""
        raise NotImplementedError


class _Linear(_Layer):
    def forward(self, x: Tensor, step: _Step) -> Tensor:
        self.x = x
        weight, bias = step.params[f"{self.name}.weight"], self.param(step, "bias")
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    def turned(self, x: Tensor, step: _Step) -> Tensor:
        """Return the transpose of the result of `forward`, [K, out, b]."""
        self.x = x
        weight, bias = step.params[f"{self.name}.weight"], self.param(step, "bias")
        return torch.bmm(weight, x.mT) if bias is None else torch.baddbmm(bias[:, :, None], weight, x.mT)

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        # The update may change the weights, so the gradient with respect to the input comes first.
        below = torch.bmm(slope, step.params[f"{self.name}.weight"]) if needed else slope
        step.product(f"{self.name}.weight", slope.mT, self.x)
        if self.part.bias is not None:
            step.add(f"{self.name}.bias", slope.sum(1))
        return below


class _Relu(_Layer):
    in_place = False  # whether it may overwrite its input

    def forward(self, x: Tensor, step: _Step) -> Tensor:
        self.y = torch.relu_(x) if self.in_place else torch.relu(x)
        return self.y

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        return _aten.threshold_backward(slope, self.y, 0) if needed else slope


class _RowByRow(_Layer):
    """A layer that treats each row alone, differentiated by autograd: activations, and LayerNorm."""

    def forward(self, x: Tensor, step: _Step) -> Tensor:
        names = [name for name, _ in self.part.named_parameters()]
        with torch.enable_grad():
            self.x = x.detach().requires_grad_()
            self.leaves = {name: step.params[f"{self.name}.{name}"].detach().requires_grad_() for name in names}
            if isinstance(self.part, nn.LayerNorm):
                normal = F.layer_norm(self.x, self.part.normalized_shape, eps=self.part.eps)
                self.y = _scaled(normal, self.leaves.get("weight"), self.leaves.get("bias"))
            else:
                self.y = self.part(self.x.clone() if getattr(self.part, "inplace", False) else self.x)
        return self.y.detach()

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        below, *grads = torch.autograd.grad(self.y, [self.x, *self.leaves.values()], slope)
        for name, grad in zip(self.leaves, grads, strict=True):
            step.add(f"{self.name}.{name}", grad)
        return below


class _Dropout(_Layer):
    """Dropout with the draws that torch makes for one client after another, from a generator for each."""

    def forward(self, x: Tensor, step: _Step) -> Tensor:
        self.mask = torch.zeros_like(x, memory_format=torch.contiguous_format)
        for row, generator, count in zip(self.mask, step.generators, step.counts.tolist(), strict=False):
            row[: int(count)].bernoulli_(1 - self.part.p, generator=generator)
        self.mask.div_(1 - self.part.p)
        return x * self.mask

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        return slope * self.mask if needed else slope


class _BatchNorm(_Layer):
    """y = n w + b, where each column of n has mean 0 and variance 1 over a client's batch; with running statistics."""

    def forward(self, x: Tensor, step: _Step) -> Tensor:
        self.even = step.even[:, None]
        mean = torch.bmm(self.even, x)
        away = x - mean
        # After one product, rounding leaves a mean for numbers far from 0, but `backward` needs sums of n that are 0.
        away -= torch.bmm(self.even, away)
        variance = torch.bmm(self.even, away * away)
        if self.part.track_running_stats:
            counts = step.counts[:, None]
            step.params[f"{self.name}.running_mean"].lerp_(mean[:, 0], self.part.momentum)
            unbiased = variance[:, 0] * (counts / (counts - 1))
            step.params[f"{self.name}.running_var"].lerp_(unbiased, self.part.momentum)
            step.params[f"{self.name}.num_batches_tracked"].add_(1)
        self.scale = torch.rsqrt(variance + self.part.eps)
        self.n = away.mul_(self.scale)
        return _scaled(self.n, self.param(step, "weight"), self.param(step, "bias"))

    def backward(self, slope: Tensor, step: _Step, needed: bool) -> Tensor:
        # The gradients of bias and weight are sums that the gradient with respect to the input needs too.
        total, along = slope.sum(1, keepdim=True), (slope * self.n).sum(1, keepdim=True)
        weight, below = self.param(step, "weight"), slope
        if needed:
            factor = self.scale if weight is None else self.scale * weight[:, None]
            common = torch.addcmul(total, self.n, along).mul_(self.even.mT)
            below = torch.sub(slope, common, out=common).mul_(factor)
        if weight is not None:
            step.add(f"{self.name}.weight", along[:, 0])
            step.add(f"{self.name}.bias", total[:, 0])
        return below


def _scaled(n: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return n w + b with weight w and bias b [K, d]; either may be None."""
    if weight is None:
        return n
    return n * weight[:, None] if bias is None else torch.addcmul(bias[:, None], n, weight[:, None])


_ACTIVATIONS = (nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU)
_LAYERS: dict[type[nn.Module], type[_Layer]] = {
    nn.Linear: _Linear, nn.ReLU: _Relu, nn.Dropout: _Dropout, nn.BatchNorm1d: _BatchNorm,
    **dict.fromkeys((nn.LayerNorm, *_ACTIVATIONS), _RowByRow),
}  # fmt: skip


# -- steps of the optimiser -------------------------------------------------------------------------------------------


class _Step:
    """A step of the K members that still train; takes gradients: momentum, Adam and clipping as in torch.optim.

    params: the members' parameters by name. number: of the step, from 0. even [K, b]: 1 / count for samples and 0 for
    padding. counts [K]: numbers of samples. mu: the weight of a proximal term; start: the parameters to which this term
    pulls.
    """

    params: dict[str, Tensor]
    number: int
    even: Tensor
    counts: Tensor

    def __init__(
        self, training: Training, generators: Sequence[torch.Generator], mu: float, start: Mapping[str, Tensor]
    ) -> None:
        self.training, self.generators, self.mu, self.start = training, generators, mu, start
        self.grads: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] = {}  # momentum, or Adam's moments
        self.second: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Take the gradient left @ right of a weight."""
        self.grads[name] = torch.bmm(left, right)

    def add(self, name: str, grad: Tensor) -> None:
        """Take the gradient of another parameter."""
        self.grads[name] = grad

    def finish(self) -> None:
        """End the step."""
        t, params = self.training, self.params
        for name, start in self.start.items():
            self.grads[name].add_(params[name] - start[: len(params[name])], alpha=self.mu)
        if t.clip is not None:
            norms = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in self.grads.values()])
            scale = (t.clip / (norms.norm(dim=0) + 1e-6)).clamp(max=1.0)
            for grad in self.grads.values():
                grad.mul_(scale.reshape(-1, *[1] * (grad.ndim - 1)))
        for name, grad in self.grads.items():
            param = params[name]
            if t.weight_decay:
                grad = grad.add_(param, alpha=t.weight_decay)
            if t.optimiser == "adam":
                self._adam(name, param, grad)
                continue
            if t.momentum:
                moving = self.first.setdefault(name, torch.zeros_like(param))[: len(param)]
                grad = moving.mul_(t.momentum).add_(grad)
            param.sub_(grad, alpha=t.lr)

    def _adam(self, name: str, param: Tensor, grad: Tensor) -> None:
        (one, two), lr = self.training.betas, self.training.lr
        first = self.first.setdefault(name, torch.zeros_like(param))[: len(param)].lerp_(grad, 1 - one)
        second = self.second.setdefault(name, torch.zeros_like(param))[: len(param)]
        second.mul_(two).addcmul_(grad, grad, value=1 - two)
        count = self.number + 1
        root = second.sqrt().div_(math.sqrt(1 - two**count)).add_(1e-8)
        param.addcdiv_(first, root, value=-lr / (1 - one**count))


class _PlainSgd(_Step):
    """SGD without momentum, which changes the parameters at once, and stores no gradient."""

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        self.params[name].baddbmm_(left, right, beta=self.keep, alpha=-self.training.lr)

    def add(self, name: str, grad: Tensor) -> None:
        param = self.params[name]
        if self.keep != 1:
            param *= self.keep
        param.sub_(grad, alpha=self.training.lr)

    def finish(self) -> None:
        for name, start in self.start.items():
            param = self.params[name]
            param.add_(start[: len(param)], alpha=self.training.lr * self.mu)

    @property
    def keep(self) -> float:
        """The factor of the parameters in a step."""
        return 1 - self.training.lr * (self.training.weight_decay + self.mu)


# -- batches ----------------------------------------------------------------------------------------------------------


class _Batches:
    """The batches of all members at all steps; members with more steps come first.

    labels [K, steps, b, ...]. counts [K, steps]: samples in each batch. even [K, steps, b]: 1 / count, 0 for padding.
    share: the weight of each sample in the mean over its batch, with class weights.
    """

    def __init__(self, net: Net, training: Training, members: Sequence[StackedFit], device: torch.device) -> None:
        self.members, self.dtype, self.seeds, batches = members, net.dtype, list[int](), list[Any]()
        for member in members:
            draw = np.random.default_rng(member.key)
            self.seeds.append(int(draw.integers(2**63)))  # as `sgd.fit` draws it
            batches.append(list(training.batches(len(member.samples), draw)))
        self.steps = list(map(len, batches))
        rows, counts = _padded(batches)
        self.counts = counts
        self.active = [sum(steps > step for steps in self.steps) for step in range(counts.shape[1])]
        self.widths = counts.max(0).tolist()
        where = torch.from_numpy(rows).to(device)
        self.labels = torch.stack([m.samples.labels(place) for m, place in zip(members, where, strict=True)])
        # The rows of each member's array, step by step.
        in_arrays = [s if m.samples.rows is None else m.samples.rows[s] for m, s in zip(members, where, strict=True)]
        self.rows = [steps.unbind(0) for steps in in_arrays]
        self.numbers = torch.from_numpy(counts).to(device, net.dtype)
        self.mask = (torch.arange(rows.shape[2], device=device) < self.numbers[:, :, None]).to(net.dtype)
        self.even = self.mask / self.numbers.clamp(min=1)[:, :, None]
        self.weights = self._class_weights()
        self.share = self.even if self.weights is None else self._normalised_weights(self.weights)
        x = members[0].samples.x
        assert isinstance(x, Tensor)
        # One buffer for all steps, which stays in the cache.
        self.block = x.new_empty(len(members) * rows.shape[2], *x.shape[1:])

    def _normalised_weights(self, weights: Tensor) -> Tensor:
        """Weights scaled to sum to 1 in each batch; 0 stays 0."""
        weighted = self.mask * weights
        total = weighted.sum(2, keepdim=True)
        return weighted / torch.where(total > 0, total, 1.0)

    def inputs(self, step: int) -> Tensor:
        """Return the inputs of a step, [K, b, ...]."""
        active, width = self.active[step], self.widths[step]
        block = self.block[: active * width]
        parts = block.view(active, width, *block.shape[1:]).unbind(0)
        for out, member, rows in zip(parts, self.members, self.rows, strict=False):
            assert isinstance(member.samples.x, Tensor)
            torch.index_select(member.samples.x, 0, rows[step][:width], out=out)
        x: Tensor = prepared(block, self.members[0].samples.scale, self.dtype)
        return x.view(active, width, *x.shape[1:])

    def at(self, tensor: Tensor, step: int) -> Tensor:
        """Return the part of a tensor [K, steps, b, ...] for a step."""
        return tensor[: self.active[step], step, : self.widths[step]]

    def _class_weights(self) -> Tensor | None:
        """Return the weight of each sample by its class [K, steps, b]; None if no member has class weights."""
        classes = next((len(m.class_weights) for m in self.members if m.class_weights is not None), 0)
        if not classes:
            return None
        rows = [m.class_weights or (1.0,) * classes for m in self.members]
        table = torch.tensor(rows, dtype=self.dtype, device=self.labels.device)
        return table.gather(1, self.labels.flatten(1)).view(self.labels.shape)


def _padded(batches: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    """Return the rows of all members' batches [K, steps, b], padded with zeros, and how many are in each [K, steps]."""
    counts = np.zeros((len(batches), max(map(len, batches))), np.int64)
    rows = np.zeros((*counts.shape, max(len(batch) for steps in batches for batch in steps)), np.int64)
    for place, steps in enumerate(batches):
        for step, batch in enumerate(steps):
            rows[place, step, : len(batch)], counts[place, step] = batch, len(batch)
    return rows, counts


def _check(chain: Chain, members: Sequence[StackedFit]) -> None:
    """Raise NotStacked unless each sample is a row of numbers, of the same kind at all members."""
    first = members[0].samples
    for member in members:
        member_samples = member.samples
        x, like = member_samples.x, first.x
        if not isinstance(x, Tensor) or not isinstance(like, Tensor):
            raise NotStacked("the inputs are no single array of numbers")
        if x.dtype in CODES and member_samples.scale is None:
            raise NotStacked("the inputs are no single array of numbers")
        if x.ndim != 2 and not chain.flat:
            raise NotStacked("the inputs are no rows of numbers, and the net does not begin with nn.Flatten")
        if (x.dtype, x.shape[1:], member_samples.scale) != (like.dtype, like.shape[1:], first.scale):
            raise NotStacked("the clients' arrays are not of one kind")
        if (member_samples.y.dtype, member_samples.y.shape[1:]) != (first.y.dtype, first.y.shape[1:]):
            raise NotStacked("the clients' targets are not of one kind")


# -- losses: the head, and the gradient with respect to the features --------------------------------------------------


class _HeadAndLoss:
    """The head and the loss of a stack: each step gives the gradient of the features, and updates the head."""

    def __init__(self, loss: Loss, head: _Linear, batches: _Batches) -> None:
        self.loss, self.head, self.batches = loss, head, batches
        self.carry: Any = None
        self.extras: Any = None
        if type(loss) not in (CrossEntropy, SquaredError):
            self.extras, self.carry = (
                moved(_stacked([getattr(m, part) for m in batches.members]), batches.labels.device)
                for part in ("extras", "carry")
            )

    def slope(self, z: Tensor, x: Tensor, step: _Step, needed: bool) -> tuple[Tensor, Tensor]:
        """Return (the loss of each member [K], the gradient with respect to the features z)."""
        if type(self.loss) is CrossEntropy:
            return self._cross_entropy(z, step, needed)
        if type(self.loss) is SquaredError:
            return self._squared_error(z, step, needed)
        return self._mapped(z, x, step)

    def _cross_entropy(self, z: Tensor, step: _Step, needed: bool) -> tuple[Tensor, Tensor]:
        y, share = (self.batches.at(t, step.number)[:, None] for t in (self.batches.labels, self.batches.share))
        # [K, classes, b]: a softmax across rows is many times as fast as one along short rows.
        log_p = F.log_softmax(self.head.turned(z, step), 1)
        values = -(log_p.gather(1, y) * share).sum((1, 2))
        slope = log_p.exp_().mul_(share).scatter_add_(1, y, -share)
        return values, self.head.backward(slope.mT, step, needed)

    def _squared_error(self, z: Tensor, step: _Step, needed: bool) -> tuple[Tensor, Tensor]:
        y, share = (self.batches.at(t, step.number) for t in (self.batches.labels, self.batches.share))
        away = self.head.forward(z, step)
        if y.shape != away.shape:
            raise NotStacked(f"there is no target for each of the net's {away.shape[2]} outputs")
        away -= y.to(z.dtype)
        values = (away.square().sum(2) * share).sum(1)
        return values, self.head.backward(away.mul_(2 * share[:, :, None]), step, needed)

    def _mapped(self, z: Tensor, x: Tensor, step: _Step) -> tuple[Tensor, Tensor]:
        """Map the loss over the members by torch.func, on features and head alone."""
        b, number = self.batches, step.number
        batch = {"x": x, "y": b.at(b.labels, number), "mask": b.at(b.mask, number)}
        if b.weights is not None:
            batch["weight"] = b.at(b.weights, number)

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
            return [member.carry for member in self.batches.members]
        carry = moved(self.carry, CPU)
        return [pytree.tree_map(lambda t, k=k: t[k].clone(), carry) for k in range(len(self.batches.members))]


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
    step = _optimiser_of(training, batches.seeds if chain.has(nn.Dropout) else (), mu, start)
    ends = _HeadAndLoss(loss, _Linear("head", chain.head), batches)
    totals = _train(stack, batches, _layers_of(chain), ends, step)
    return _results(batches, stack, ends.carries(), totals.to(CPU).tolist())


def _stack_of(trees: Sequence[Params], like: Params, device: torch.device) -> dict[str, Tensor]:
    """Return the members' parameters as tensors [K, ...]; like: the names and types of one member."""
    return {name: torch.stack([tree[name] for tree in trees]).to(device, tensor.dtype) for name, tensor in like.items()}


def _train(
    stack: Mapping[str, Tensor], batches: _Batches, layers: Sequence[_Layer], ends: _HeadAndLoss, step: _Step
) -> Tensor:
    """Do all steps, which change the stack; return the sum of each member's losses [K]."""
    totals = torch.zeros(len(batches.members), dtype=torch.float64, device=batches.labels.device)
    lowest = next((k for k, layer in enumerate(layers) if list(layer.part.parameters())), len(layers))
    for number, active in enumerate(batches.active):
        if number == 0 or active != batches.active[number - 1]:
            step.params = {name: tensor[:active] for name, tensor in stack.items()}
        step.number, step.even = number, batches.at(batches.even, number)
        step.counts = batches.numbers[:active, number]
        inputs = batches.inputs(number)
        z = inputs.flatten(2)
        for layer in layers:
            z = layer.forward(z, step)
        for name, start in step.start.items():
            away = (step.params[name] - start[:active]).flatten(1).square().sum(1)
            totals[:active] += away.double() * (step.mu / 2)
        values, slope = ends.slope(z, inputs, step, lowest < len(layers))
        totals[:active] += values.double()
        for k in range(len(layers) - 1, lowest - 1, -1):
            slope = layers[k].backward(slope, step, k > lowest)
        step.finish()
    return totals


def _optimiser_of(training: Training, seeds: Sequence[int], mu: float, start: Mapping[str, Tensor]) -> _Step:
    plain = training.optimiser == "sgd" and not training.momentum and training.clip is None
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return (_PlainSgd if plain else _Step)(training, generators, mu, start)


def _layers_of(chain: Chain) -> list[_Layer]:
    layers = [_LAYERS[type(part)](name, part) for name, part in chain.layers]
    for before, layer in pairwise(layers):
        if isinstance(layer, _Relu):
            layer.in_place = isinstance(before, _Linear)  # a Linear does not need its output again
    return layers


def _results(
    batches: _Batches, stack: Mapping[str, Tensor], carries: Sequence[Tree], totals: Sequence[float]
) -> list[Fitted]:
    rows = {name: tensor.to(CPU).unbind(0) for name, tensor in stack.items()}
    results = []
    for k, (carry, total, steps) in enumerate(zip(carries, totals, batches.steps, strict=True)):
        if not math.isfinite(total):
            how = "lower training.lr or set training.clip"
            raise MethodError(f"the training loss became {total / steps} after {steps} steps; {how}")
        # A copy: one member's part must not keep the memory of the others alive.
        params = {name: parts[k].clone() for name, parts in rows.items()}
        results.append(Fitted(params, carry, total / steps, steps, int(batches.counts[k].sum())))
    return results
