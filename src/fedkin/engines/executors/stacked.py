"""The mode "fast": clients are trained together where their net and loss allow it (`fedkin.learning.stacked`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.codec import Tree, leaves
from fedkin.engines.executors.jobs import FitJob, Job, Modules, OneByOne, samples_of
from fedkin.engines.failures import words_of
from fedkin.federation import Client
from fedkin.learning.devices import CPU
from fedkin.learning.net import Net
from fedkin.learning.stacked import StackedFit, fit_stacked, why_not

_WIDTH, _WIDTH_ON_A_GPU, _BYTES_ON_A_GPU = 64, 1024, 4 << 30


class Fast(OneByOne):
    """The executor that stacks fits with equal losses and training settings, and does all other jobs one by one.

    `learning.stacked.why_not` decides by the net and the loss alone. If the memory of a GPU does not suffice, a stack
    is split in halves.
    """

    mode: ClassVar[str] = "fast"

    def __init__(self, net: Net, federation: Mapping[str, Client], modules: Modules | None = None) -> None:
        super().__init__(net, federation, modules)
        # The results of a stack are in memory twice before they are passed on.
        size = sum(tensor.nbytes for tensor in net.initial.values())
        on_cpu = self.modules.device == CPU
        self.width = _WIDTH if on_cpu else min(_WIDTH_ON_A_GPU, max(1, _BYTES_ON_A_GPU // size))

    @property
    def room(self) -> int:
        return self.width - len(self.jobs)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        stacks: dict[Any, list[FitJob]] = {}
        done: list[tuple[Job, Any]] = []
        reasons: dict[tuple[int, int, int], str] = {}
        for job in self.jobs:
            if not isinstance(job, FitJob):
                done.append((job, self._alone(job, "")))
                continue
            if job.private is not None:
                done.append((job, self._alone(job, "each sample's gradient is clipped")))
                continue
            net = job.net or self.net
            at = id(net), id(job.loss), id(job.training)  # the jobs keep these alive
            if at not in reasons:
                reasons[at] = why_not(net, job.loss, job.training)
            if reasons[at]:
                done.append((job, self._alone(job, reasons[at])))
            else:
                alike = id(net), job.loss, job.training, _shape(job.extras), _shape(job.carry)
                stacks.setdefault(alike, []).append(job)
        self.jobs = []
        for stack in stacks.values():
            done += self._together(stack)
        return done

    def _together(self, stack: list[FitJob]) -> list[tuple[Job, Any]]:
        """Do these jobs as one computation; if it fails, one by one, so that an error names its client."""
        first = stack[0]
        members = [
            StackedFit(job.params, self.modules.resident(samples_of(job, self.federation)), job.extras, job.carry,
                       job.key, job.weights)
            for job in stack
        ]  # fmt: skip
        try:
            fitted = fit_stacked(first.net or self.net, first.loss, first.training, members, self.modules.device)
        except torch.OutOfMemoryError:
            fitted, why = [], ""
        except MemoryError:
            raise
        except Exception as error:  # NotStacked, training that diverges, or an error in a user's loss or samples
            fitted, why = [], words_of(error)
        if fitted:
            self.note(first, "stacked")
            return list(zip(stack, fitted, strict=True))
        # Retry only after the handlers: inside of them the error keeps the memory of the failed stack alive.
        half = len(stack) // 2
        if not why and half:
            return self._together(stack[:half]) + self._together(stack[half:])
        return [(job, self._alone(job, why)) for job in stack]


def _shape(tree: Tree) -> Hashable:
    """Return a key that is equal for trees that can be stacked."""
    return tuple(
        (name, tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else (name, repr(leaf))
        for name, leaf in sorted(leaves(tree), key=lambda item: item[0])
    )
