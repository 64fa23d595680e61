"""Local work as tasks on a Ray cluster, which copies samples to its nodes and repeats the tasks of a lost node."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from fedkin.engines.executors.jobs import Executor, Job, Modules, ScoreJob, bare, run_or_error, whose, with_own_rows
from fedkin.errors import IN_PYTHON, ConfigError, RunError, imported
from fedkin.federation import Client, Federation
from fedkin.learning.net import Net
from fedkin.untrusted import error_text, escaped

_LOG = logging.getLogger("fedkin")
_PATIENCE = 60  # seconds of waiting for cores before a warning
_LOOK = 2  # seconds between two checks that a node is left
_AHEAD = 2  # jobs for each core: one running and one waiting
# Jobs depend on their content alone, so that numbers do not change if a job is repeated elsewhere.
_REPEATS = 3


class RayTasks(Executor):
    """The executor whose jobs are tasks on the cluster at RAY_ADDRESS, or on one that it starts on this machine.

    Samples and nets are in Ray's object store, from which each node gets them once. workers: the most jobs at a time
    (0: as many as the cluster has cores for).
    """

    mode: ClassVar[str] = "ray"
    parts = 16  # every core gets work, with few copies of the model

    def __init__(self, net: Net, federation: Federation, workers: int) -> None:
        super().__init__(net, federation)
        self.ray, self.workers = imported("ray", "run.engine = 'ray'", "ray"), workers
        self.started = not self.ray.is_initialized()
        if self.started:
            self._join()
        self.task = self.ray.remote(max_retries=_REPEATS, num_cpus=1)(_work)
        self.clients = {id: self.ray.put(with_own_rows(client)) for id, client in federation.items()}
        self.nets: dict[Net, Any] = {}
        self.jobs: dict[Any, Job] = {}

    def _join(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise ConfigError(
                f"run.engine = 'ray': no Ray cluster answers at RAY_ADDRESS={address!r} ({error_text(error)}): start "
                "one by `ray start --head`, correct RAY_ADDRESS, or unset it for a cluster on this machine alone; if "
                "the cluster asks for a token, set RAY_AUTH_MODE=token"
                if address
                else f"run.engine = 'ray': Ray cannot be started ({error_text(error)})"
            ) from None

    def _cores(self) -> int:
        """Return the number of cores of all nodes; raises RunError if there is none."""
        cores = sum(int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"])
        if not cores:
            raise RunError(
                "no node with a core is left in the Ray cluster: start one (`ray start --address=HOST:6379`), and go on"
                f" from the checkpoint with --resume{IN_PYTHON}"
            )
        return cores

    @property
    def room(self) -> int:
        return (self.workers or _AHEAD * self._cores()) - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.note(job, "in processes", "run.engine is 'ray'")
        net = job.net or self.net
        if net not in self.nets:
            self.nets[net] = self.ray.put(net)
        ids = job.ids if isinstance(job, ScoreJob) else (job.id,)
        # Ray does not resolve references in a list, so that a process that has the net does not read it again.
        reference = self.task.remote(bare(job), [self.nets[net]], ids, *(self.clients[each] for each in ids))
        self.jobs[reference] = job

    def collect(self) -> Sequence[tuple[Job, Any]]:
        done: list[tuple[Job, Any]] = []
        for reference in self._ready():
            job = self.jobs.pop(reference)
            try:
                done.append((job, self.ray.get(reference)))
            except self.ray.exceptions.RayError as error:
                raise self._failed(job, error) from None
        return done

    def _ready(self) -> list[Any]:
        """Wait until a job is done, and return the references of all jobs that are done."""
        waited, references = 0, list(self.jobs)
        while True:
            ready: list[Any]
            ready, _ = self.ray.wait(references, num_returns=len(references), timeout=0)
            ready = ready or self.ray.wait(references, num_returns=1, timeout=_LOOK)[0]
            if ready or not references:
                return ready
            self._cores()
            waited += _LOOK
            if waited == _PATIENCE:
                _LOG.warning("waiting for the Ray cluster: its cores are taken, or a job takes long")

    def _failed(self, job: Job, error: Exception) -> RunError:
        """Return the error to raise if Ray could not do a job."""
        errors = self.ray.exceptions
        if isinstance(error, (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)):
            return RunError(
                f"Ray: the work of client {whose(job)!r} was lost more than {_REPEATS} times ({error_text(error)}); if "
                f"memory ran out, start nodes with fewer cores; go on from the checkpoint with --resume{IN_PYTHON}"
            )
        # Ray puts a traceback after its own errors, and before errors that a task raised.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return RunError(
            f"Ray node {getattr(error, 'ip', None) or 'unknown'}: {escaped(lines[-1], 300)}; every node needs the same "
            "Python, fedkin and files of your own as this machine"
        )

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        for reference in self.jobs:
            self.ray.cancel(reference, force=True)
        self.jobs, self.clients, self.nets = {}, {}, {}
        if self.started:
            self.ray.shutdown()


# -- in a process of the cluster ---------------------------------------------------------------------------------------

_KEPT = 16
_NETS: dict[str, Net] = {}
_MODULES = Modules()


def _work(job: Job, net: list[Any], ids: Sequence[str], *clients: Client) -> Any:
    """Return the result of a job, or the error that a user can act on."""
    import ray

    torch.set_num_threads(1)
    name = net[0].hex()
    if name not in _NETS:
        _NETS[name] = ray.get(net[0])
        if len(_NETS) > _KEPT:  # the oldest is of an earlier run
            del _NETS[next(iter(_NETS))]
    here = dict(zip(ids, clients, strict=True))
    return run_or_error(job, _NETS[name], _MODULES, here)
