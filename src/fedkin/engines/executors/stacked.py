"""The mode "stacked": jobs that differ only in their client run as one batched computation."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedkin.codec import Tree, leaves
from fedkin.engines.executors.jobs import FitJob, Job, Modules, OneByOne, samples_of
from fedkin.engines.executors.ways import MAPPED, WRITTEN, WRITTEN_BUT_LOSS
from fedkin.errors import MethodError
from fedkin.federation import Client
from fedkin.flow import Fitted
from fedkin.learning.batches import Member
from fedkin.learning.dense import fit_dense
from fedkin.learning.devices import CPU
from fedkin.learning.ends import is_written, takes_rows
from fedkin.learning.losses import Loss
from fedkin.learning.net import Net
from fedkin.learning.stackable import stackable, why_alone
from fedkin.learning.stacked import fit_stacked
from fedkin.learning.written import LossNotWritten, NotWritten, Program, program_of
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
        together = stackable(net) or any(isinstance(program_of(net, rows), Program) for rows in (False, True))
        self.width = (width or most) if together else 1
        self.said = quiet
        # Losses with which a net is not trained by written-out steps, and why.
        self.refused: WeakKeyDictionary[Net, dict[Loss, str]] = WeakKeyDictionary()
        if not together:
            self._say(why_alone(net))

    @property
    def room(self) -> int:
        return self.width - len(self.jobs)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        stacks: dict[Any, list[FitJob]] = {}
        done: list[tuple[Job, Any]] = []
        known: dict[tuple[int, int, int], str] = {}
        for job in self.jobs:
            net = job.net or self.net
            why = ""
            if isinstance(job, FitJob):
                at = id(net), id(job.loss), id(job.training)  # the jobs keep these alive
                if at not in known:
                    known[at] = self.why_alone(net, job)
                why = known[at]
            if isinstance(job, FitJob) and not why:
                alike = id(net), job.loss, job.training, _shape(job.extras), _shape(job.carry)
                stacks.setdefault(alike, []).append(job)
            else:
                done.append((job, self._alone(job, why)))
        self.jobs = []
        for stack in stacks.values():
            done += self._fit(stack)
        return done

    def _program(self, net: Net, loss: Loss) -> Program | str:
        """The net's layers, if `fit_dense` may be able to train them with this loss, or why it is not."""
        program = program_of(net, takes_rows(loss))
        return program if isinstance(program, str) else self.refused.get(net, {}).get(loss, program)

    def why_alone(self, net: Net, job: FitJob) -> str:
        """Return why this fit cannot be in a stack; empty if it can."""
        program = self._program(net, job.loss)
        if why := _draws(job.loss):
            if not is_written(job.loss):
                return why
            if isinstance(program, str) or self.modules.device != CPU:
                return f"{why}, and {program if isinstance(program, str) else 'a GPU has its own generator'}"
        views = job.training.augment
        if views is not None and views.on:
            return "the views of training.augment are random"
        return f"{why_alone(net)}, and {program}" if isinstance(program, str) and not stackable(net) else ""

    def _fit(self, stack: list[FitJob]) -> list[tuple[Job, Any]]:
        net = stack[0].net or self.net
        return self._by(net, self._program(net, stack[0].loss), stack)

    def _by(self, net: Net, program: Program | str, stack: list[FitJob]) -> list[tuple[Job, Any]]:
        """Do these jobs by written-out steps, or else, if the net can be stacked at all, mapped by torch."""
        loss = stack[0].loss
        why = program if isinstance(program, str) else ""
        if why and (reason := _draws(loss) or why_alone(net)):
            return [(job, self._alone(job, f"{reason}, and {why}")) for job in stack]
        if len(stack) == 1 and (why or not is_written(loss)):
            return [(job, self._alone(job, "no other client in its stack")) for job in stack]
        try:
            fitted = self._together(net, program, stack)
            self.noted.note(net, loss, MAPPED if why else WRITTEN if is_written(loss) else WRITTEN_BUT_LOSS, why)
            return list(zip(stack, fitted, strict=True))
        except NotWritten as error:
            program = why = str(error)
            if isinstance(error, LossNotWritten):
                self.refused.setdefault(net, {})[loss] = why
            if reason := _draws(loss) or why_alone(net):
                self._say(f"{reason}, and {why}")
            cut = 0
        except torch.OutOfMemoryError:
            cut = (len(stack) + 1) // 2
            self.width = min(self.width, cut)
        except MemoryError:
            raise
        except MethodError as error:
            cut, why = 1, said(error)
            self._say(why)
        except Exception as error:  # the net, the loss and the samples are the user's
            cut, why = 1, f"torch cannot map the net or the loss over clients ({type(error).__name__}: {said(error)})"
            self._say(why)
        # This comes after the handler, whose error keeps the memory of the failed stack alive.
        if not cut:
            return self._by(net, program, stack)
        if 1 < cut < len(stack):
            return self._fit(stack[:cut]) + self._fit(stack[cut:])
        # One by one, an error names its client, and a net or loss that torch cannot map over clients works.
        return [(job, self._alone(job, why)) for job in stack]

    def _say(self, why: str) -> None:
        """Log, once, why clients are trained one by one."""
        if not self.said:
            _LOG.warning("run.mode: 'stacked' trains clients one by one: %s", why)
        self.said = True

    def _together(self, net: Net, program: Program | str, stack: list[FitJob]) -> list[Fitted]:
        """Do all these jobs as one computation; raises the errors of torch."""
        resident = self.modules.resident
        members = [
            Member(job.params, resident(samples_of(job, self.federation)), job.extras, job.carry, job.key, job.weights)
            for job in stack
        ]
        loss, training = stack[0].loss, stack[0].training
        if isinstance(program, Program):
            return fit_dense(net, loss, program, training, members, self.modules.device)
        return fit_stacked(net, self.modules(net), loss, training, members)


def _draws(loss: Loss) -> str:
    """Return that the loss draws random numbers; empty if it does not. Written out, it draws those of each client."""
    return f"the loss {type(loss).__name__} draws random numbers" if getattr(loss, "random", False) else ""


def _shape(tree: Tree) -> Hashable:
    """Return a key that is equal for trees that can be stacked."""
    if not tree:
        return ()
    return tuple(
        (name, tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else (name, repr(leaf))
        for name, leaf in sorted(leaves(tree), key=lambda item: item[0])
    )
