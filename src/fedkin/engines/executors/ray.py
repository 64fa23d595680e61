"""Local work on a Ray cluster, where actors hold shards of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from fedkin.engines.executors.auto import cores
from fedkin.engines.executors.jobs import Executor, Job, Modules, ScoreJob, attempt
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Client, Federation
from fedkin.learning.net import Net

__all__ = ["Shards", "own_rows"]

_AHEAD = 2  # number of jobs at each actor: one running and one waiting
# A lost actor is made again from its shard, and its jobs are repeated. Jobs depend on their content alone, so the
# numbers do not change.
_RESTARTS = 3


class _Shard:
    """An actor with the samples of some clients, which does one job at a time on one thread."""

    def __init__(self, clients: dict[str, Client], net: Net) -> None:
        torch.set_num_threads(1)
        self.clients, self.net, self.modules = clients, net, Modules()

    def do(self, job: Job) -> Any:
        """Return the result of the job, or the error that a user can act on."""
        return attempt(job, self.net, self.modules, self.clients)


@dataclass
class _Parts:
    """A job at several actors, and its results so far."""

    job: Job
    open: int
    results: dict[str, Any] = field(default_factory=dict)


class Shards(Executor):
    """Ray actors, each with an equal part of the clients; a job goes to the actor that has its client."""

    mode: ClassVar[str] = "ray"
    parts = 16  # every actor gets work, with few copies of the model

    def __init__(self, net: Net, federation: Federation, workers: int) -> None:
        super().__init__(net, federation)
        self.ray = _ray()
        self.started = not self.ray.is_initialized()
        if self.started:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        ids = sorted(federation)
        count = max(1, min(workers or _cluster_cores(self.ray), len(ids)))
        self.home = {id: number % count for number, id in enumerate(ids)}
        actor = self.ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS, num_cpus=1)(_Shard)
        # These stay alive as long as the actors, since an actor that is made again reads them again.
        self.kept = [self.ray.put(net)]
        for number in range(count):
            self.kept.append(self.ray.put({id: own_rows(federation[id]) for id in ids if self.home[id] == number}))
        self.actors = [actor.remote(shard, self.kept[0]) for shard in self.kept[1:]]
        self.open: dict[Any, tuple[_Parts, tuple[str, ...]]] = {}

    @property
    def room(self) -> int:
        return _AHEAD * len(self.actors) - len(self.open)

    def submit(self, job: Job) -> None:
        if job.net is self.net:
            job = replace(job, net=None)
        ids = job.ids if isinstance(job, ScoreJob) else (job.id,)
        homes = sorted({self.home[id] for id in ids})
        parts = _Parts(job, len(homes))
        for number in homes:
            here = tuple(id for id in ids if self.home[id] == number)
            piece = replace(job, ids=here) if isinstance(job, ScoreJob) else job
            self.open[self.actors[number].do.remote(piece)] = parts, here

    def collect(self) -> Sequence[tuple[Job, Any]]:
        done: list[tuple[Job, Any]] = []
        while self.open and not done:
            ready, _ = self.ray.wait(list(self.open), num_returns=1)
            for reference in ready:
                parts, ids = self.open.pop(reference)
                done += self._gathered(parts, ids, self._value(reference, ids))
        return done

    def _value(self, reference: Any, ids: tuple[str, ...]) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:
            raise RunError(
                f"the Ray actor with client {ids[0]!r} was lost more than {_RESTARTS} times ({type(error).__name__}): "
                "go on from the checkpoint with --resume"
            ) from None

    def _gathered(self, parts: _Parts, ids: tuple[str, ...], value: Any) -> list[tuple[Job, Any]]:
        """Return the job with its result once all its parts have results."""
        parts.open -= 1
        if not isinstance(parts.job, ScoreJob) or isinstance(value, Exception):
            return [(parts.job, value)]
        parts.results |= dict(zip(ids, value, strict=True))
        return [] if parts.open else [(parts.job, [parts.results[id] for id in parts.job.ids])]

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []
        if self.started:
            self.ray.shutdown()


def own_rows(client: Client) -> Client:
    """Return the client with only its own rows, for another process or machine."""
    changes = tuple(replace(c, train=c.train.own(), test=c.test.own()) for c in client.changes)
    return replace(client, train=client.train.own(), test=client.test.own(), changes=changes)


def _cluster_cores(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", cores()))


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("run.engine = 'ray' needs Ray: pip install 'fedkin[ray]'") from None
    return ray
