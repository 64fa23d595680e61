"""Scores of one model on the test samples of many clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.federation import Samples
from fedkin.learning.devices import CPU
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.scoring import NO_MARKS, Marks, marks_of
from fedkin.learning.sgd import load, outputs
from fedkin.tasks import Task

__all__ = ["score"]

_TOGETHER = 1 << 16  # outputs that are scored together: each call of torch costs more than the few of one client


def score(net: Net, module: BodyHead, params: Params, parts: Iterable[Samples], task: Task) -> list[Marks]:
    """Score the model on each of these sets of samples; an empty set gives NO_MARKS.

    Samples are on the device of the module. Each set passes through the net alone, so that its figures do not depend on
    the others.
    """
    load(module, params)
    marks: list[Marks] = []
    waiting: list[tuple[Tensor, Tensor]] = []
    for samples in parts:
        if not len(samples):
            marks += [*_scored(task, waiting), NO_MARKS]
            waiting = []
            continue
        waiting.append((outputs(net, module, "logits", samples), samples.labels().to(CPU)))
        if sum(one.numel() for one, _ in waiting) > _TOGETHER:
            marks += _scored(task, waiting)
            waiting = []
    return [*marks, *_scored(task, waiting)]


def _scored(task: Task, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Marks]:
    """Yield the marks of these outputs and targets of sets of samples."""
    if pairs:
        many, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
        yield from marks_of(task, many, targets, [len(one) for one, _ in pairs])
