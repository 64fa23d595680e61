"""Local training of many clients as one batched computation, equal to `learning.sgd` for one client at a time.

Parameters get a leading client dimension [K, ...]; a loss written for one client is mapped over it by
torch.func.vmap, under ordinary autograd, so that matrix products become batched and convolutions grouped.
Clients with fewer samples are padded: a padded sample has mask 0. A client that has finished leaves the stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from fedkin.codec import Tree
from fedkin.errors import MethodError
from fedkin.learning.batches import Batches, Member, Plan
from fedkin.learning.devices import CPU, device_of, moved
from fedkin.learning.losses import Batch, Loss
from fedkin.learning.net import BodyHead, Net, check_fit
from fedkin.learning.training import Fitted, Training

__all__ = ["Optimiser", "fit_stacked", "put", "results", "stack_of", "stacked"]

# Bytes of weights in one stack on a CPU, and members at least. Fewer need too many calls of vmap, which cost more than
# weights that leave the cache (784-200 with a skip connection, 20 members at once 271 ms, 9 at once 352 ms).
_CACHE, _LEAST = 16 << 20, 4


def fit_stacked(net: Net, module: BodyHead, loss: Loss, training: Training, members: Sequence[Member]) -> list[Fitted]:
    """Train all members; each result equals `sgd.fit` of that member up to rounding.

    Samples are on the device of the module; results are on the CPU.
    """
    size = sum(t.nbytes for t in net.initial.values())
    width = max(_LEAST, _CACHE // size) if device_of(module) == CPU else len(members)
    # Clients of similar size are in one stack, so that there is less padding.
    order = sorted(range(len(members)), key=lambda k: -len(members[k].samples))
    fitted: dict[int, Fitted] = {}
    for start in range(0, len(order), width):
        part = order[start : start + width]
        made = _fit(net, module, loss, training, [members[k] for k in part])
        fitted.update(zip(part, made, strict=True))
    return [fitted[k] for k in range(len(members))]


def _fit(net: Net, module: BodyHead, loss: Loss, training: Training, members: Sequence[Member]) -> list[Fitted]:
    """Train the members of one stack."""
    plan = Plan(training, members)
    device = device_of(module)
    ordered = [members[k] for k in plan.order]
    stack = stack_of(net, ordered, device)
    optimiser: Optimiser | None = None
    batches = Batches(net, ordered, plan, device, reuse=True)
    extras = moved(stacked([m.extras for m in ordered]), device)
    carry = moved(stacked([m.carry for m in ordered]), device)
    totals = torch.zeros(len(members), dtype=torch.float64, device=device)
    module.train()
    fixed = {name: (id(buffer), buffer._version) for name, buffer in module.named_buffers()}
    active = 0
    for step in range(plan.steps[0]):
        if plan.active(step) != active:
            active = plan.active(step)
            # The gradient of a slice of the whole stack would be as large as the stack, and mostly zeros.
            own = {name: tensor[:active].detach() for name, tensor in stack.items()}
            free = [own[name].requires_grad_() for name in net.trainable]
            here = pytree.tree_map(lambda t, count=active: t[:count], extras)
        before = pytree.tree_map(lambda t, count=active: t[:count], carry)
        values, new = _values(module, loss, own, batches.at(step), here, before)
        grads = torch.autograd.grad(values.sum(), free)
        if optimiser is None:
            _lay_out(stack, dict(zip(net.trainable, grads, strict=True)))
            optimiser, active = Optimiser(training, {name: stack[name] for name in net.trainable}), 0
        optimiser.step(grads, len(values))
        if pytree.tree_leaves(new):
            batches.space = None  # the carry may hold the batch
        carry = new if len(values) == len(members) else pytree.tree_map(put(len(values)), new, carry)
        totals[: len(values)] += values.detach().double()
    moved_on = [n for n, buffer in module.named_buffers() if fixed[n] != (id(buffer), buffer._version)]
    if moved_on:
        raise MethodError(f"model: training changed the buffer {moved_on[0]!r}, which all clients of a stack share")
    carry = moved(carry, CPU)
    told = [pytree.tree_map(lambda tensor, place=place: tensor[place].detach().clone(), carry) for place in plan.places]
    return results(plan, {name: tensor.contiguous() for name, tensor in stack.items()}, told, totals)


def _lay_out(stack: dict[str, Tensor], grads: Mapping[str, Tensor]) -> None:
    """Store weights of linear layers as their gradients are: a step across two layouts takes several times as long."""
    for name, grad in grads.items():
        if grad.ndim == 3 and not grad.is_contiguous() and grad.mT.is_contiguous():
            stack[name] = stack[name].mT.contiguous().mT


def stack_of(net: Net, members: Sequence[Member], device: torch.device) -> dict[str, Tensor]:
    """Stack the parameters of the members on the device, [K, ...] each; MethodError if some do not fit the net."""
    for params in {id(member.params): member.params for member in members}.values():
        check_fit(params, net.initial)
    return {
        name: torch.stack([m.params[name] for m in members]).to(device, like.dtype)
        for name, like in net.initial.items()
    }


def _values(
    module: BodyHead, loss: Loss, params: dict[str, Tensor], batch: Batch, extras: Any, carry: Any
) -> tuple[Tensor, Any]:
    """Return the loss of each member [K], and the new carries."""

    def one(params: dict[str, Tensor], batch: dict[str, Any], extras: Any, carry: Any) -> tuple[Tensor, Any]:
        result = loss(_Bound(module, params), Batch(**batch), extras, carry)  # type: ignore[arg-type]
        return result if isinstance(result, tuple) else (result, carry)

    mapped = {"x": batch.x, "y": batch.y, "mask": batch.mask}
    if batch.weight is not None:
        mapped["weight"] = batch.weight
    values, new = vmap(one)(params, mapped, extras, carry)
    return values, new


class _Bound:
    """A BodyHead with the parameters of one member, as a loss sees it."""

    def __init__(self, module: BodyHead, params: dict[str, Tensor]) -> None:
        self.module = module
        self.params = {name: params[name] for name in module.params}
        self.parts = {
            part: {name.removeprefix(f"{part}."): t for name, t in params.items() if name.startswith(f"{part}.")}
            for part, _ in module.named_children()
        }

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module.body, self.parts["body"], (x,))
        return out

    def head(self, z: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module.head, self.parts["head"], (z,))
        return out

    def __getattr__(self, name: str) -> Any:
        """Return a module other than body and head, as a function of its inputs."""
        part = getattr(self.__dict__["module"], name)
        if not isinstance(part, nn.Module):
            return part
        return lambda *inputs: functional_call(part, self.parts[name], inputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Optimiser:
    """SGD and Adam as in torch.optim, for a stack; the first `active` members take a step."""

    def __init__(self, training: Training, params: dict[str, Tensor]) -> None:
        self.training = training
        self.params = [tensor.detach() for tensor in params.values()]
        self.slots: list[list[Tensor]] = []
        self.count = 0

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], active: int) -> None:
        """Take one step."""
        t = self.training
        grads, params = self._clipped(grads), [p[:active] for p in self.params]
        if t.weight_decay:
            grads = torch._foreach_add(grads, params, alpha=t.weight_decay)
        self.count += 1
        if t.optimiser == "adam":
            self._adam(params, grads, active)
            return
        if t.momentum:
            if not self.slots:
                self.slots = [[torch.zeros_like(p) for p in self.params]]
            moving = [m[:active] for m in self.slots[0]]
            torch._foreach_mul_(moving, t.momentum if self.count > 1 else 0.0)
            torch._foreach_add_(moving, grads)
            grads = moving
        torch._foreach_add_(params, grads, alpha=-t.lr)

    def _adam(self, params: list[Tensor], grads: Sequence[Tensor], active: int) -> None:
        t = self.training
        if not self.slots:
            self.slots = [[torch.zeros_like(p) for p in self.params] for _ in range(2)]
        first, second = ([m[:active] for m in slot] for slot in self.slots)
        torch._foreach_lerp_(first, list(grads), 1 - t.betas[0])
        torch._foreach_mul_(second, t.betas[1])
        torch._foreach_addcmul_(second, list(grads), list(grads), 1 - t.betas[1])
        one, two = (1 - beta**self.count for beta in t.betas)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, math.sqrt(two))
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(params, first, root, value=-t.lr / one)

    def _clipped(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradient of each member, scaled down where its norm exceeds the limit."""
        if self.training.clip is None:
            return list(grads)
        norm = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads]).norm(dim=0)
        scale = (self.training.clip / (norm + 1e-6)).clamp(max=1.0)
        return [grad * scale.reshape(-1, *[1] * (grad.ndim - 1)) for grad in grads]


def stacked(trees: Sequence[Tree]) -> Any:
    """Stack trees of tensors into one tree of tensors with a leading client dimension."""
    plain = [pytree.tree_map(torch.as_tensor, dict(tree)) for tree in trees]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *plain)


def put(active: int) -> Any:
    """Return a function that replaces the first rows of old [K, ...] by new [active, ...]."""
    return lambda new, old: torch.cat([new, old[active:]])


def results(plan: Plan, stack: dict[str, Tensor], carry: Sequence[Tree], totals: Tensor) -> list[Fitted]:
    """Return the result of each member, in the order of the members; `carry` is already in that order."""
    made = []
    sums, seen = totals.to(CPU).tolist(), plan.seen
    rows = {name: tensor.detach().to(CPU).unbind(0) for name, tensor in stack.items()}
    # The part of one member must not keep the memory of the others alive.
    alone = len(plan.places) == 1
    for own, place in zip(carry, plan.places, strict=True):
        steps = plan.steps[place]
        mean = sums[place] / max(steps, 1)
        if not math.isfinite(mean):
            raise MethodError(
                f"the training loss became {mean} after {steps} steps; lower training.lr or set training.clip"
            )
        params = {name: parts[place] if alone else parts[place].clone() for name, parts in rows.items()}
        made.append(Fitted(params, own, mean, steps, seen[place]))
    return made
