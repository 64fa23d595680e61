"""Jobs of clients' local work, and the interface of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fedkin.codec import Tree
from fedkin.errors import FedkinError, MethodError
from fedkin.federation import Client, Samples
from fedkin.flow import Fit, Fitted, Infer, Params
from fedkin.learning.devices import CPU, Resident
from fedkin.learning.losses import Loss, Proximal, default_loss
from fedkin.learning.metrics import score
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.private import Private, fit_privately
from fedkin.learning.sgd import What, fit, infer
from fedkin.learning.training import Training
from fedkin.tasks import Task
from fedkin.views import ClientView


@dataclass(eq=False, slots=True)  # not frozen: creation would take three times as long, for each client
class FitJob:
    """A job that trains a client's parameters; every random draw comes from `key`. Treat it as immutable.

    weights: the weight of each class's samples in the loss. private: how each sample is protected, if at all.
    """

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
    weights: tuple[float, ...] | None = None
    private: Private | None = None


@dataclass(frozen=True, eq=False)
class InferJob:
    """A job that runs a client's training samples through the net."""

    id: str
    params: Params
    what: What
    data: Samples | None = None
    net: Net | None = None
    round: int = 0


@dataclass(frozen=True, eq=False)
class ScoreJob:
    """A job that scores parameters on the test samples of some clients; the result is [Score, ...]."""

    ids: tuple[str, ...]
    params: Params
    task: Task
    net: Net | None = None
    round: int = 0


Job = FitJob | InferJob | ScoreJob


class Modules:
    """A scratch module on a device for each of the `keep` nets last used. resident: the samples on that device."""

    def __init__(self, device: torch.device = CPU, keep: int = 16) -> None:
        self.device, self.resident = device, Resident(device)
        self._of = lru_cache(keep)(lambda net: net.scratch(device))

    def __call__(self, net: Net) -> BodyHead:
        module: BodyHead = self._of(net)
        return module


def job_of(request: Any, view: ClientView, key: int) -> FitJob | InferJob:
    """Return the job for a request of a client's flow; raises MethodError for requests other than Fit and Infer."""
    if getattr(request, "data", None) is not None and len(request.data) == 0:
        raise MethodError(f"{type(request).__name__} with data that hold no samples")
    if isinstance(request, Infer):
        return InferJob(view.id, request.params, request.what, request.data, request.net or view.net, view.round)
    if not isinstance(request, Fit):
        raise MethodError(f"a client's flow yields Fit or Infer, got {type(request).__name__}")
    loss, training = request.loss or default_loss(view.task), request.training or view.training
    return FitJob(
        view.id, request.params, loss, training, request.extras, request.carry, key, request.data,
        request.net or view.net, view.round, _weights(loss, training, view),
    )  # fmt: skip


def _weights(loss: Loss, training: Training, view: ClientView) -> tuple[float, ...] | None:
    """Return this fit's class weights by the client's labels; raises MethodError if the loss may ignore weights."""
    honours = getattr(loss, "weighted", None)
    if training.class_weights is None or honours is False:
        return None
    if honours is None:
        raise MethodError(
            f"training.class_weights: the loss {type(loss).__name__} does not say that it weighs samples; leave the "
            "setting out, or average over samples with masked_mean and give the loss `weighted: ClassVar[bool] = True`"
        )
    return training.weights(view.train.labels(), view.task.classes)


def samples_of(job: FitJob | InferJob, federation: Mapping[str, Any]) -> Samples:
    """Return the samples of the job."""
    samples: Samples = job.data if job.data is not None else federation[job.id].at(job.round).train
    return samples


def whose(job: Job) -> str:
    """Return the id of the client to name in errors of this job."""
    return job.ids[0] if isinstance(job, ScoreJob) else job.id


def bare(job: Job) -> Job:
    """Return the job without its net, for another process that has the clients and the net."""
    if isinstance(job, ScoreJob) or job.data is None:
        return replace(job, net=None)
    return replace(job, net=None, data=job.data.own())


def with_own_rows(client: Client) -> Client:
    """Return the client with only its own rows, for another process or machine."""
    changes = tuple(replace(c, train=c.train.own(), test=c.test.own()) for c in client.changes)
    return replace(client, train=client.train.own(), test=client.test.own(), changes=changes)


def carry_out(job: Job, net: Net, modules: Modules, federation: Mapping[str, Any]) -> Any:
    """Do one job in this process, with its own net or `net`; returns Fitted, Tensor, or a list of Score."""
    net = job.net or net
    module = modules(net)
    if isinstance(job, ScoreJob):
        tests = (modules.resident(federation[id].at(job.round).test) for id in job.ids)
        return score(net, module, job.params, tests, job.task)
    samples = modules.resident(samples_of(job, federation))
    if isinstance(job, InferJob):
        return infer(net, module, job.params, job.what, samples)
    if job.private is not None:
        return fit_privately(
            net, module, job.params, job.loss, samples, job.training, job.extras, job.private,
            job.private.draws(job.key),
        )  # fmt: skip
    fitted: Fitted = fit(
        net, module, job.params, job.loss, samples, job.training, job.extras, job.carry,
        np.random.default_rng(job.key), job.weights,
    )  # fmt: skip
    return fitted


class TrainingPath(NamedTuple):
    """How a net was trained with a loss: "stacked", "one by one", or "in processes"; and why not stacked."""

    net: str
    loss: str
    path: str
    why: str = ""


class Executor(ABC):
    """An executor takes jobs and returns results in any order; the result of a failed job is its error."""

    mode: ClassVar[str]
    parts: int = 1  # into about how many jobs the scoring of one model is split

    def __init__(self, net: Net, federation: Mapping[str, Client]) -> None:
        self.net, self.federation = net, federation
        self._paths: dict[tuple[Net, str, str, str], TrainingPath] = {}

    @property
    @abstractmethod
    def room(self) -> int:
        """The number of further jobs to submit before results are collected."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Submit a job."""

    @abstractmethod
    def collect(self) -> Sequence[tuple[Job, Any]]:
        """Return results of some submitted jobs, at least one if there are any."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Do all these jobs; the result of a job that fails is its error."""
        waiting, busy = list(reversed(jobs)), 0
        while waiting or busy:
            while waiting and self.room > 0:
                self.submit(waiting.pop())
                busy += 1
            for job, result in self.collect():
                busy -= 1
                yield job, result

    @property
    def training_paths(self) -> list[TrainingPath]:
        """The different training paths so far, in the order of their first use."""
        return list(dict.fromkeys(self._paths.values()))

    def note(self, job: Job, path: str, why: str = "") -> None:
        """Note how a fit was done."""
        if not isinstance(job, FitJob):
            return
        net, loss = job.net or self.net, job.loss
        at = net, _title(loss), path, why
        if at not in self._paths:
            body = f"{type(net.module.body).__name__}, {net.parameters():,} parameters"
            self._paths[at] = TrainingPath(body, _title(loss), path, why)

    def close(self) -> None:  # noqa: B027  (in one process there is nothing to release)
        """Release processes and memory."""


def _title(loss: Loss) -> str:
    name = type(loss).__name__
    return f"{name} of {_title(loss.loss)}" if isinstance(loss, Proximal) else name


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
        done = [(job, self._alone(job, "run.mode is 'one-by-one'")) for job in self.jobs]
        self.jobs = []
        return done

    def _alone(self, job: Job, why: str) -> Any:
        """Run `run_or_error`. why: the reason why a fit is not stacked."""
        self.note(job, "one by one", why)
        return run_or_error(job, self.net, self.modules, self.federation)


def run_or_error(job: Job, net: Net, modules: Modules, federation: Mapping[str, Any]) -> Any:
    """Run `carry_out`; the result of a job that fails is an error that a user can act on, with its cause."""
    try:
        return carry_out(job, net, modules, federation)
    except FedkinError as error:
        return error
    except MemoryError:
        raise
    except Exception as error:  # the net, the loss and the samples are the user's
        wrapped = MethodError(f"{type(error).__name__} in the net or the loss: {error}")
        wrapped.__cause__ = error
        return wrapped
