"""The mode "auto": it measures a few steps of each mode on the first jobs, and chooses the fastest mode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from fedkin.engines.executors.jobs import Executor, FitJob, Job, Modules, OneByOne, attempt, samples_of
from fedkin.engines.executors.stacked import Stacked
from fedkin.engines.executors.ways import ALONE, BY_KERNELS, Way, Ways
from fedkin.engines.executors.workers import Workers
from fedkin.federation import Client
from fedkin.learning.devices import CPU
from fedkin.learning.net import Net

__all__ = ["Auto", "cores"]

_SAMPLE = 16  # number of jobs for the measurement
_ALONE = 4  # of them one by one: one alone would find its data and weights in the caches each time
_ROUNDS = 3  # number of repetitions, of which the fastest is taken
_STEPS = 4  # that are measured together, so that what a Fit costs besides its steps is shared as in a whole one
_LONG = 0.1  # seconds of a run from which its steps are measured one at a time
# Seconds for copying a job to another process and back, which matter for short jobs.
_HANDOVER = 1e-3


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Auto(Executor):
    """The executor that measures on the first jobs, then passes all jobs to the fastest one; on a GPU no processes."""

    mode: ClassVar[str] = "auto"

    def __init__(self, net: Net, federation: Mapping[str, Client], workers: int, device: torch.device = CPU) -> None:
        super().__init__(net, federation)
        self.count = workers if device == CPU else 1
        self.modules = Modules(device)
        self.held: list[Job] = []
        self.inner: Executor | None = None
        self.seconds: dict[str, float] = {}
        self.tried = Ways()  # those of the stacks that were measured

    @property
    def room(self) -> int:
        return self.inner.room if self.inner is not None else _SAMPLE - len(self.held)

    def submit(self, job: Job) -> None:
        if self.inner is not None:
            self.inner.submit(job)
        else:
            self.held.append(job)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        if self.inner is None:
            if not any(isinstance(job, FitJob) for job in self.held):
                # Jobs without a step of training cannot be measured. They are the same in every mode.
                held, self.held = self.held, []
                return [(job, attempt(job, self.net, self.modules, self.federation)) for job in held]
            self.inner = self._choose()
        while self.held and self.inner.room > 0:
            self.inner.submit(self.held.pop(0))
        return self.inner.collect()

    @property
    def parts(self) -> int:  # type: ignore[override]
        return 1 if self.inner is None else self.inner.parts

    @property
    def chosen(self) -> str:
        return self.mode if self.inner is None else self.inner.mode

    @property
    def measured(self) -> dict[str, float]:
        return self.seconds

    @property
    def ways(self) -> list[Way]:
        if self.inner is None or self.inner.mode == "stacked":
            return [] if self.inner is None else self.inner.ways
        return [each._replace(why=self._why(each)) for each in self.inner.ways]

    def _why(self, alone: Way) -> str:
        """Return why this net is not stacked."""
        met = [each for each in self.tried() if (each.net, each.loss) == (alone.net, alone.loss)]
        if not met:
            return "not among the first jobs, which were measured"
        if all(each.way in (ALONE, BY_KERNELS) for each in met):
            return "; ".join(each.why for each in met)
        stacked = " or ".join(f"{each.way}{each.why and f' ({each.why})'}" for each in met)
        return f"measured steps were quicker than {stacked}"

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()

    def _choose(self) -> Executor:
        self._measure([job for job in self.held if isinstance(job, FitJob)])
        best = min(self.seconds, key=lambda mode: self.seconds[mode])
        if best == "workers":
            return Workers(self.net, self.federation, self.count)
        kind = Stacked if best == "stacked" else OneByOne
        return kind(self.net, self.federation, self.modules)

    def _measure(self, fits: list[FitJob]) -> None:
        """Measure seconds per client and step in each mode that can do these jobs."""
        first = fits[0]
        steps = first.training.steps(len(samples_of(first, self.federation)))
        few = fits[:_ALONE]

        def alone(count: int) -> None:
            for job in few:
                attempt(_cut(job, count), self.net, self.modules, self.federation)

        self.seconds["one-by-one"] = self._quickest(alone, steps) / len(few)
        stack = Stacked(self.net, self.federation, self.modules, quiet=True)
        self.tried = stack.noted
        if stack.width > 1 and len(fits) > 1:

            def together(count: int) -> None:
                for job in fits:
                    stack.submit(_cut(job, count))
                stack.collect()

            self.seconds["stacked"] = self._quickest(together, steps) / len(fits)
        else:
            for job in fits:
                net = job.net or self.net
                self.tried.note(net, job.loss, ALONE, stack.why_alone(net, job) or "only one client trains")
        if self.count > 1 and len(self.federation) > 1:
            self.seconds["workers"] = self.seconds["one-by-one"] / self.count + _HANDOVER / steps

    def _quickest(self, work: Callable[[int], object], steps: int) -> float:
        """Return the seconds of a step of this work, which takes a number of steps of each client: the least of a few.

        It is the time of this thread's processor where that does all the work, else other programs would decide.
        """
        lone = self.modules.device == CPU and torch.get_num_threads() == 1
        clock = time.thread_time if lone else time.perf_counter

        def spent(count: int) -> float:
            start = clock()
            work(count)
            return (clock() - start) / count

        work(1)
        found = spent(1)
        count = 1 if found > _LONG else min(steps, _STEPS)
        return min([found] * (count == 1) + [spent(count) for _ in range(_ROUNDS - (count == 1))])


def _cut(job: FitJob, steps: int) -> FitJob:
    """The job with so many steps."""
    return replace(job, training=job.training.model_copy(update={"local_steps": steps, "local_epochs": None}))
