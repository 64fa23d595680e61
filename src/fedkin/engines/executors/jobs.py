"""Pieces of a client's local work, and who carries them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.codec import Tree
from fedkin.errors import FedkinError, MethodError
from fedkin.federation import Client, Samples
from fedkin.flow import Fit, Fitted, Infer, Params
from fedkin.learning.devices import CPU, Resident
from fedkin.learning.losses import Loss, default_loss
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.sgd import fit, infer, score
from fedkin.learning.training import Training
from fedkin.tasks import Task

__all__ = [
    "Executor",
    "FitJob",
    "InferJob",
    "Job",
    "Modules",
    "OneByOne",
    "ScoreJob",
    "carry_out",
    "job_of",
    "one_thread",
    "samples_of",
]


@dataclass(frozen=True, eq=False)
class FitJob:
    """Train a client's parameters; every random draw comes from `key`."""

    id: str
    params: Params
    loss: Loss
    training: Training
    extras: Tree
    carry: Tree
    key: int
    data: Samples | None = None
    net: Net | None = None
    round: int = 0


@dataclass(frozen=True, eq=False)
class InferJob:
    """Run parameters over a client's training samples."""

    id: str
    params: Params
    what: Literal["logits", "features"] | Callable[..., Tensor]
    data: Samples | None = None
    net: Net | None = None
    round: int = 0


@dataclass(frozen=True, eq=False)
class ScoreJob:
    """Score parameters on the test samples of some clients: [Marks, ...]."""

    ids: tuple[str, ...]
    params: Params
    task: Task
    net: Net | None = None
    round: int = 0


Job = FitJob | InferJob | ScoreJob


class Modules:
    """A scratch module on a device for each net that turns up; the least recently used ones are dropped.

    resident: brings samples to that device.
    """

    def __init__(self, device: torch.device = CPU, keep: int = 16) -> None:
        self.device, self.keep = device, keep
        self.resident = Resident(device)
        self.made: dict[int, tuple[Net, BodyHead]] = {}

    def __call__(self, net: Net) -> BodyHead:
        # The net is held beside its module, so that its id cannot come to name another one.
        pair = self.made.pop(id(net), None) or (net, net.scratch(self.device))
        self.made[id(net)] = pair
        if len(self.made) > self.keep:
            del self.made[next(iter(self.made))]
        return pair[1]


def job_of(request: Any, id: str, training: Training, key: int, net: Net, round: int, task: Task) -> FitJob | InferJob:
    """The job that a client's flow asked for; raises MethodError for anything but Fit and Infer."""
    if getattr(request, "data", None) is not None and len(request.data) == 0:
        raise MethodError(f"{type(request).__name__} with data that hold no samples")
    if isinstance(request, Infer):
        return InferJob(id, request.params, request.what, request.data, request.net or net, round)
    if not isinstance(request, Fit):
        raise MethodError(f"a client's flow yields Fit or Infer, got {type(request).__name__}")
    return FitJob(
        id, request.params, request.loss or default_loss(task), request.training or training, request.extras,
        request.carry, key, request.data, request.net or net, round,
    )  # fmt: skip


def samples_of(job: FitJob | InferJob, federation: Mapping[str, Any]) -> Samples:
    """What the job runs over."""
    samples: Samples = job.data if job.data is not None else federation[job.id].at(job.round).train
    return samples


def carry_out(job: Job, net: Net, modules: Modules, federation: Mapping[str, Any]) -> Any:
    """Do one job in this process, with its own net or `net`: Fitted, Tensor, or a list of Marks."""
    net = job.net or net
    module = modules(net)
    if isinstance(job, ScoreJob):
        tests = (modules.resident(federation[id].at(job.round).test) for id in job.ids)
        return score(net, module, job.params, tests, job.task)
    samples = modules.resident(samples_of(job, federation))
    if isinstance(job, InferJob):
        return infer(net, module, job.params, job.what, samples)
    fitted: Fitted = fit(
        net, module, job.params, job.loss, samples, job.training, job.extras, job.carry, np.random.default_rng(job.key)
    )
    return fitted


class Executor(ABC):
    """Takes jobs and gives back results, in whatever order is quick. A failure comes back as its error."""

    mode: ClassVar[str]

    def __init__(self, net: Net, federation: Mapping[str, Client]) -> None:
        self.net, self.federation = net, federation

    @property
    @abstractmethod
    def room(self) -> int:
        """How many more jobs it wants before results are collected."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Take a job."""

    @abstractmethod
    def collect(self) -> Sequence[tuple[Job, Any]]:
        """Results of some jobs that were submitted, at least one if any is left."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Do all these jobs; raises the first failure."""
        waiting, busy = list(reversed(jobs)), 0
        while waiting or busy:
            while waiting and self.room > 0:
                self.submit(waiting.pop())
                busy += 1
            for job, result in self.collect():
                busy -= 1
                if isinstance(result, FedkinError):
                    raise result
                yield job, result

    @property
    def chosen(self) -> str:
        """The mode that does the work."""
        return self.mode

    @property
    def measured(self) -> dict[str, float]:
        """Seconds of one client's step by mode, where the mode was chosen by measuring."""
        return {}

    def close(self) -> None:  # noqa: B027  (in one process there is nothing to give back)
        """Give back processes and memory."""


class OneByOne(Executor):
    """One job after another in this process: the reference that the other modes must equal."""

    mode: ClassVar[str] = "one-by-one"

    def __init__(self, net: Net, federation: Mapping[str, Client], modules: Modules | None = None) -> None:
        super().__init__(net, federation)
        self.modules = modules or Modules()
        self.jobs: list[Job] = []

    @property
    def room(self) -> int:
        return 1 - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        done = [(job, attempt(job, self.net, self.modules, self.federation)) for job in self.jobs]
        self.jobs = []
        return done


def attempt(job: Job, net: Net, modules: Modules, federation: Mapping[str, Any]) -> Any:
    """`carry_out`, with an error that a user can act on as its result; torch's own say what they say."""
    try:
        return carry_out(job, net, modules, federation)
    except FedkinError as error:
        return error
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        wrapped = MethodError(f"{type(error).__name__} in the net or the loss: {error}")
        wrapped.__cause__ = error
        return wrapped


class one_thread:
    """One OpenMP thread inside: more of them change the bits, and on a busy machine cost rather than help."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
