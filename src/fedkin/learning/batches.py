"""The members of a stack, their batches at each step, and the gathering of these batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedkin.codec import Params, Tree
from fedkin.federation import Samples
from fedkin.federation.inputs import joined, parts
from fedkin.federation.samples import prepared
from fedkin.learning.devices import CPU
from fedkin.learning.losses import Batch
from fedkin.learning.net import Net
from fedkin.learning.training import Training

__all__ = ["Batches", "Member", "Plan"]


@dataclass(frozen=True, eq=False)
class Member:
    """One client's part in a stack. weights: what a sample of each class counts."""

    params: Params
    samples: Samples
    extras: Tree
    carry: Tree
    key: int
    weights: Sequence[float] | None = None


class Plan:
    """The batches of each member at each step; members with more steps come first in the stack.

    order: the member at each place of the stack. places: the place of each member. rows [K, steps, b]: row numbers of
    each batch, padded with row 0. counts [K, steps]: number of rows in each batch. seeds: of each place, what the
    mode "one-by-one" seeds dropout with. seen: the number of samples that each place trains on.
    views: how often a batch has its samples, the views of all samples below those before.
    """

    def __init__(self, training: Training, members: Sequence[Member], views: int = 1) -> None:
        drawn, seeds = [], []
        for member in members:
            rng = np.random.default_rng(member.key)
            seeds.append(int(rng.integers(2**63)))
            batches = training.batches(len(member.samples), rng)
            drawn.append(list(batches) if views == 1 else [np.tile(batch, views) for batch in batches])
        self.order = sorted(range(len(members)), key=lambda k: -len(drawn[k]))
        self.places = sorted(range(len(members)), key=lambda place: self.order[place])
        self.steps = [len(drawn[k]) for k in self.order]
        self.seeds = [seeds[k] for k in self.order]
        width = max(len(batch) for batches in drawn for batch in batches)
        self.rows = np.zeros((len(members), self.steps[0], width), np.int64)
        self.counts = np.zeros((len(members), self.steps[0]), np.int64)
        for place, k in enumerate(self.order):
            for step, batch in enumerate(drawn[k]):
                self.rows[place, step, : len(batch)] = batch
                self.counts[place, step] = len(batch)
        self.seen = (self.counts.sum(1) // views).tolist()

    def active(self, step: int) -> int:
        """Return the number of members that still train at this step; these are the first ones of the stack."""
        return sum(steps > step for steps in self.steps)


class Batches:
    """The batches of a plan; if all members share one array, a step is a single gather from it.

    If each has its own, rows are gathered straight into their places in the batch.

    labels, masks: those of all steps, [K, steps, b]; weights: those of the samples, if any member has class weights.
    reuse: gather every step into the same memory, which then stays in the cache. It is for callers that keep no batch.
    """

    def __init__(
        self, net: Net, members: Sequence[Member], plan: Plan, device: torch.device = CPU, reuse: bool = False
    ) -> None:
        samples: Sequence[Samples] = [member.samples for member in members]
        if device != CPU:
            samples = _gathered(samples)
        self.net, self.samples, self.plan = net, samples, plan
        rows, counts = (torch.from_numpy(array).to(device) for array in (plan.rows, plan.counts))
        self.masks = (torch.arange(rows.shape[2], device=device) < counts[..., None]).to(net.dtype)
        self.widths = plan.counts.max(0).tolist()
        first = samples[0]
        self.shared = all(
            s.x is first.x and s.y is first.y and s.scale == first.scale and s.rows is not None for s in samples
        )
        if self.shared:
            rows = torch.stack([s.rows[own] for s, own in zip(samples, rows, strict=True) if s.rows is not None])
            self.labels = first.y[rows]
        else:
            self.labels = torch.stack([s.labels(own) for s, own in zip(samples, rows, strict=True)])
        self.weights = _weights(members, self.labels, net.dtype)
        # Steps come first, so that the rows of one step are contiguous.
        self.rows = rows.transpose(0, 1).contiguous().unbind(0)
        self.space: Tensor | None = None
        if reuse and isinstance(first.x, Tensor) and (self.shared or _alike(samples)):
            self.space = first.x.new_empty(self.rows[0].numel(), *first.x.shape[1:])
            if not self.shared:
                # Each member's row numbers in its own array, step by step.
                own = (r if s.rows is None else s.rows[r] for s, r in zip(samples, rows, strict=True))
                self.own = [where.unbind(0) for where in own]

    def at(self, step: int) -> Batch:
        """Return one batch per active member, padded to the longest: x [K, b, ...], y [K, b], mask [K, b]."""
        active, width = self.plan.active(step), self.widths[step]
        here = slice(active), step, slice(width)
        weight = None if self.weights is None else self.weights[here]
        return Batch(self.inputs(step), self.labels[here], self.masks[here], weight=weight)

    def inputs(self, step: int) -> Any:
        """Return the inputs of `at`."""
        where = self.rows[step]
        shape = self.plan.active(step), self.widths[step]
        if where.shape != shape:
            where = where[: shape[0], : shape[1]]
        if not self.shared:
            if self.space is not None:
                return self._prepared(self._own_rows(step, shape), shape)
            pairs = zip(self.samples, where, strict=False)
            return pytree.tree_map(
                lambda *each: torch.stack(each), *[s.inputs(rows, self.net.dtype) for s, rows in pairs]
            )
        first, flat = self.samples[0], where.reshape(-1)
        if not isinstance(first.x, Tensor):
            taken = prepared({name: part[flat] for name, part in first.x.items()}, first.scale, self.net.dtype)
            return {name: part.view(*shape, *part.shape[1:]) for name, part in taken.items()}
        out = self.space if self.space is None or len(self.space) == len(flat) else self.space[: len(flat)]
        return self._prepared(torch.index_select(first.x, 0, flat, out=out), shape)

    def _prepared(self, stored: Tensor, shape: tuple[int, int]) -> Tensor:
        x: Tensor = prepared(stored, self.samples[0].scale, self.net.dtype)
        return x.view(*shape, *x.shape[1:])

    def _own_rows(self, step: int, shape: tuple[int, int]) -> Tensor:
        """Return the stored values of a step, each member's from its own array: [K * b, ...]."""
        assert self.space is not None
        block = self.space[: shape[0] * shape[1]]
        for place, out in enumerate(block.view(*shape, *block.shape[1:]).unbind(0)):
            where = self.own[place][step]
            where = where if len(where) == shape[1] else where[: shape[1]]
            torch.index_select(self.samples[place].x, 0, where, out=out)  # type: ignore[arg-type]
        return block


def _alike(samples: Sequence[Samples]) -> bool:
    """Whether all arrays have the same kind of rows."""
    first = samples[0]
    return all(
        isinstance(s.x, Tensor) and isinstance(first.x, Tensor) and s.scale == first.scale
        and s.x.dtype == first.x.dtype and s.x.shape[1:] == first.x.shape[1:] for s in samples
    )  # fmt: skip


def _weights(members: Sequence[Member], labels: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What each sample counts [K, steps, b]: 1 at members without class weights; None if no member has them."""
    classes = next((len(member.weights) for member in members if member.weights is not None), 0)
    if not classes:
        return None
    table = torch.tensor([member.weights or (1.0,) * classes for member in members], dtype=dtype, device=labels.device)
    return table.gather(1, labels.flatten(1)).view(labels.shape)


def _gathered(samples: Sequence[Samples]) -> Sequence[Samples]:
    """Copy samples that have separate arrays into one array, so that a step is one gather for all members."""
    kinds = {
        (tuple((name, x.shape[1:], x.dtype) for name, x in parts(s.x).items()), s.y.shape[1:], s.y.dtype, s.scale)
        for s in samples
    }
    if len(kinds) > 1 or len({id(s.x) for s in samples}) == 1:
        return samples
    x = joined([s.own().x for s in samples])
    y = torch.cat([s.labels() for s in samples])
    every = torch.arange(len(y), device=y.device)
    ends = accumulate(map(len, samples), initial=0)
    return [Samples(x, y, every[start:end], samples[0].scale) for start, end in pairwise(ends)]
