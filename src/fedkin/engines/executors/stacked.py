"""The mode "stacked": jobs that differ only in their client run as one batched computation."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.codec import Tree, leaves
from fedkin.engines.executors.jobs import FitJob, Job, Modules, OneByOne, attempt, samples_of
from fedkin.federation import Client
from fedkin.flow import Fitted
from fedkin.learning.dense import Layer, fit_dense, layers_of
from fedkin.learning.devices import CPU
from fedkin.learning.net import Net
from fedkin.learning.stackable import stackable, why_alone
from fedkin.learning.stacked import Member, fit_stacked
from fedkin.untrusted import said

__all__ = ["Stacked"]

_LOG = logging.getLogger("fedkin")
_WIDTH, _WIDTH_ON_A_GPU, _BYTES_ON_A_GPU = 64, 1024, 4 << 30


class Stacked(OneByOne):
    """The executor that stacks fits with equal losses and training settings, and does other jobs one by one.

    A stack has at most `width` fits. If the memory of a GPU does not suffice, a stack is split in halves, and later
    stacks are not larger. Unless it is quiet, one line says why clients are trained one by one after all.
    """

    mode: ClassVar[str] = "stacked"

    def __init__(
        self, net: Net, federation: Mapping[str, Client], modules: Modules | None = None, width: int | None = None,
        quiet: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(net, federation, modules)
        # The results of a stack are in memory twice before they are passed on, on a GPU and on a CPU.
        size = sum(tensor.nbytes for tensor in net.initial.values())
        most = _WIDTH if self.modules.device == CPU else min(_WIDTH_ON_A_GPU, max(1, _BYTES_ON_A_GPU // size))
        self.width = (width or most) if stackable(net) else 1
        self.said = quiet
        if not stackable(net):
            self._say(why_alone(net))

    @property
    def room(self) -> int:
        return self.width - len(self.jobs)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        stacks: dict[Any, list[FitJob]] = {}
        done: list[tuple[Job, Any]] = []
        for job in self.jobs:
            net = job.net or self.net
            if isinstance(job, FitJob) and stackable(net) and not _random(job):
                alike = id(net), job.loss, job.training, _shape(job.extras), _shape(job.carry)
                stacks.setdefault(alike, []).append(job)
            else:
                done.append((job, attempt(job, self.net, self.modules, self.federation)))
        self.jobs = []
        for stack in stacks.values():
            done += self._fit(stack)
        return done

    def _fit(self, stack: list[FitJob]) -> list[tuple[Job, Any]]:
        net = stack[0].net or self.net
        layers = layers_of(net, stack[0].loss)
        if layers is None and len(stack) == 1:
            return [(stack[0], attempt(stack[0], self.net, self.modules, self.federation))]
        try:
            fitted = self._together(net, layers, stack)
            return list(zip(stack, fitted, strict=True))
        except torch.OutOfMemoryError:
            cut = (len(stack) + 1) // 2
            self.width = min(self.width, cut)
        except MemoryError:
            raise
        except Exception as error:  # the net, the loss and the samples are the user's
            cut = 1
            self._say(f"torch cannot map the net or the loss over clients ({type(error).__name__}: {said(error)})")
        # This comes after the handler, whose error keeps the memory of the failed stack alive.
        if 1 < cut < len(stack):
            return self._fit(stack[:cut]) + self._fit(stack[cut:])
        # One by one, an error names its client, and a net or loss that torch cannot map over clients works.
        return [(job, attempt(job, self.net, self.modules, self.federation)) for job in stack]

    def _say(self, why: str) -> None:
        """Log, once, why clients are trained one by one."""
        if not self.said:
            _LOG.warning("run.mode: 'stacked' trains clients one by one: %s", why)
        self.said = True

    def _together(self, net: Net, layers: Sequence[Layer] | None, stack: list[FitJob]) -> list[Fitted]:
        """Do all these jobs as one computation; raises the errors of torch."""
        resident = self.modules.resident
        members = [
            Member(job.params, resident(samples_of(job, self.federation)), job.extras, job.carry, job.key, job.weights)
            for job in stack
        ]
        loss, training = stack[0].loss, stack[0].training
        if layers is not None:
            return fit_dense(net, loss, layers, training, members, self.modules.device)
        return fit_stacked(net, self.modules(net), loss, training, members)


def _random(job: FitJob) -> bool:
    """Whether a loss or the samples' views draw random numbers, which a stack would draw in another order."""
    views = job.training.augment
    return bool(getattr(job.loss, "random", False)) or (views is not None and views.on)


def _shape(tree: Tree) -> Hashable:
    """Return a key that is equal for trees that can be stacked."""
    return tuple(
        (name, tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else (name, repr(leaf))
        for name, leaf in sorted(leaves(tree), key=lambda item: item[0])
    )
