"""The mode "workers": processes of one thread each, with tensors in mapped memory and small messages over pipes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedkin.engines.executors.jobs import Executor, FitJob, Job, ScoreJob
from fedkin.engines.executors.mapped import (
    Arena,
    Lent,
    SharedClients,
    lend,
    place,
    room_for,
    take,
)  # fmt: skip
from fedkin.engines.executors.orders import Done, Letter, Order, apart, whose
from fedkin.engines.executors.packed import PackedNet, pack
from fedkin.engines.executors.scratch import Scratch
from fedkin.engines.executors.starting import begin, check_script, clean_context, ended, leave_if_imported
from fedkin.engines.executors.worker import serve
from fedkin.errors import RunError
from fedkin.federation import Client, Samples
from fedkin.flow import Fitted
from fedkin.learning.net import Net

__all__ = ["Workers"]

_CLIENTS = "clients"  # the file with the names and places of all samples
_AHEAD = 2  # number of jobs at each worker: one running and one waiting, so that no worker is idle


class _Nets:
    """The nets of all jobs, each in one file for all workers."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net, self.folder = net, folder
        # Nets are stored, so that no other net can get the same id.
        self.known: dict[int, tuple[int, PackedNet, Net]] = {}

    def __call__(self, net: Net | None) -> tuple[int, PackedNet]:
        """Return (the number of this net, or of the run's own, and its place)."""
        net = net or self.net
        if id(net) not in self.known:
            number = len(self.known)
            self.known[id(net)] = number, pack(net, self.folder / f"net-{number}"), net
        return self.known[id(net)][:2]


class _Worker:
    """One worker process, as seen from its parent."""

    def __init__(self, number: int, clients: SharedClients, nets: _Nets, folder: Path) -> None:
        self.number, self.folder, self.clients, self.nets = number, folder, clients, nets
        context = clean_context()
        self.pipe, theirs = context.Pipe()
        self.process = begin(context, f"worker {number}", serve, theirs, str(folder / _CLIENTS))
        theirs.close()
        self.arenas: dict[int, Arena] = {}
        self.jobs: dict[int, Job] = {}
        self.made = 0
        self.has: set[int] = set()

    def ready(self) -> None:
        """Wait until the process has mapped all samples; raises RunError if it ends before."""
        try:
            wait([self.pipe, self.process.sentinel])
            self.pipe.recv()
        except (EOFError, ConnectionError):
            raise ended(f"worker {self.number}", self.process, "started") from None

    def send(self, job: Job) -> None:
        """Copy the tensors of the job into a free slot, and send the order to the worker."""
        slot = next(slot for slot in range(_AHEAD) if slot not in self.jobs)
        tree, bare = apart(job)
        data = self._data(job)
        if isinstance(data, Lent) and data.rows is not None:
            # Rows go into the slot too: many rows could fill the pipe on both sides, which is a deadlock.
            tree, data = {**tree, "rows": torch.from_numpy(data.rows)}, data._replace(rows=None)
        arena, new = self.arenas.get(slot), None
        parcel = place(arena, tree) if arena is not None else None
        if arena is None or parcel is None:
            self.made += 1
            path = self.folder / f"slot-{self.number}-{slot}-{self.made}"
            arena = self.arenas[slot] = Arena(path, max(room_for(tree), 64), create=True)
            new, parcel = (str(path), arena.size), place(arena, tree)
        assert parcel is not None
        self.jobs[slot] = job
        try:
            order = bytes(ForkingPickler.dumps(Order(bare, parcel, *self._net(job), data)))
            self.pipe.send(Letter(slot, whose(job), new, order))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise RunError(f"this job cannot go to another process ({error}); set run.mode = 'one-by-one'") from None
        except ConnectionError:
            raise self._gone() from None

    def _net(self, job: Job) -> tuple[int, PackedNet | None]:
        """Return (the number of the job's net, and its place if the worker does not have it yet)."""
        number, packed = self.nets(job.net)
        known = number in self.has
        self.has.add(number)
        return number, None if known else packed

    def _data(self, job: Job) -> Lent | Samples | None:
        """Return the job's own samples: by name if their arrays are lent, else the job's rows."""
        data = None if isinstance(job, ScoreJob) else job.data
        if data is None:
            return None
        named = self.clients.named(data)
        return named if named is not None else data.own()

    def receive(self) -> tuple[Job, Any]:
        """Receive one answer; raises RunError if the process has ended."""
        try:
            done: Done = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self._gone() from None
        job = self.jobs.pop(done.slot)
        if done.parcel is None:
            return job, torch.from_numpy(done.value) if isinstance(done.value, np.ndarray) else done.value
        tree = take(self.arenas[done.slot], done.parcel)
        fitted: Fitted = replace(done.value, params=tree.get("params", {}), carry=tree.get("carry", {}))
        return job, fitted

    def _gone(self) -> RunError:
        served = f"served {sorted(whose(job) for job in self.jobs.values())}"
        return ended(f"worker {self.number}", self.process, served, "; if memory ran out, lower run.workers")


class Workers(Executor):
    """The executor with a number of worker processes; the choice of the worker for a job changes no bit."""

    mode: ClassVar[str] = "workers"
    parts = 16  # every worker gets work, with few copies of the model

    def __init__(self, net: Net, federation: Mapping[str, Client], workers: int) -> None:
        super().__init__(net, federation)
        leave_if_imported()
        check_script()
        self.scratch = Scratch()
        self.workers: list[_Worker] = []
        try:
            self._start(self.scratch.path, workers)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path, workers: int) -> None:
        clients = lend(self.federation, folder)
        # Not over the pipe of a process that starts: if it ends early, whoever fills that pipe waits for ever.
        (folder / _CLIENTS).write_bytes(pickle.dumps(clients))
        nets = _Nets(self.net, folder)
        for number in range(workers):
            self.workers.append(_Worker(number, clients, nets, folder))
        for worker in self.workers:
            worker.ready()
        # All have mapped them: a run that is killed from now on leaves no samples behind.
        for lent in [folder / _CLIENTS, *folder.glob("array-*")]:
            lent.unlink()

    @property
    def room(self) -> int:
        return sum(_AHEAD - len(worker.jobs) for worker in self.workers)

    def submit(self, job: Job) -> None:
        if isinstance(job, FitJob):
            self.note(job, "in processes", "run.mode is 'workers'")
        min(self.workers, key=lambda worker: len(worker.jobs)).send(job)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        busy = {worker.pipe: worker for worker in self.workers if worker.jobs}
        return [busy[pipe].receive() for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []
        self.scratch.close()
