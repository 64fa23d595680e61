"""Local work in processes of one thread each: data and parameters in mapped memory, small messages over pipes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fedkin.engines.executors.jobs import Executor, FitJob, Job, Modules, ScoreJob, attempt
from fedkin.engines.executors.mapped import (
    Arena,
    Borrowed,
    Lent,
    Parcel,
    SharedClients,
    borrow,
    lend,
    place,
    room_for,
    take,
    temporary,
)  # fmt: skip
from fedkin.engines.executors.packed import PackedNet, pack, unpack
from fedkin.errors import FedkinError, RunError
from fedkin.federation import Federation, Samples
from fedkin.flow import Fitted
from fedkin.learning.net import Net

__all__ = ["Workers"]

_AHEAD = 2  # jobs at each worker: one under way and one waiting, so that none stands idle


class _Order(NamedTuple):
    """A job for a worker: its tensors lie in the slot's arena, its net goes by number, its samples by name.

    new: where the net is, the first time that this worker needs it.
    """

    job: Job
    parcel: Parcel
    net: int
    new: PackedNet | None
    data: Lent | Samples | None


class _Letter(NamedTuple):
    """An order that may turn out unreadable, and what must be known of it even then.

    arena: path and size of the slot's new arena.
    """

    slot: int
    whose: str
    arena: tuple[str, int] | None
    order: bytes


class _Done(NamedTuple):
    """A worker's answer: in the slot's arena, or (too large for it, or no tensors) as it is."""

    slot: int
    parcel: Parcel | None
    value: Any


class _Nets:
    """The nets of all workers' jobs, each in one file for all of them."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net, self.folder = net, folder
        # Nets are held, so that no other can come to have the same id.
        self.known: dict[int, tuple[int, PackedNet, Net]] = {}

    def __call__(self, net: Net | None) -> tuple[int, PackedNet]:
        """(the number of this net, or of the run's own, and where it is)."""
        net = net or self.net
        if id(net) not in self.known:
            number = len(self.known)
            self.known[id(net)] = number, pack(net, self.folder / f"net-{number}"), net
        return self.known[id(net)][:2]


class _Worker:
    """The parent's side of one process."""

    def __init__(self, number: int, clients: SharedClients, nets: _Nets, folder: Path) -> None:
        self.number, self.folder, self.clients, self.nets = number, folder, clients, nets
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, clients), daemon=True)
        self.process.start()
        theirs.close()
        self.arenas: dict[int, Arena] = {}
        self.jobs: dict[int, Job] = {}
        self.made = 0
        self.has: set[int] = set()

    def send(self, job: Job) -> None:
        """Lay the job's tensors into a free slot and tell the worker."""
        slot = next(slot for slot in range(_AHEAD) if slot not in self.jobs)
        tree, bare = _apart(job)
        data = self._data(job)
        if isinstance(data, Lent) and data.rows is not None:
            # Rows may be many, and a pipe that both sides have filled would let neither go on.
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
            order = bytes(ForkingPickler.dumps(_Order(bare, parcel, *self._net(job), data)))
            self.pipe.send(_Letter(slot, _whose(job), new, order))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise RunError(f"this job cannot go to another process ({error}); set run.mode = 'one-by-one'") from None
        except ConnectionError:
            raise self._gone() from None

    def _net(self, job: Job) -> tuple[int, PackedNet | None]:
        """(the number of the job's net, where it is if the worker does not have it yet)."""
        number, packed = self.nets(job.net)
        known = number in self.has
        self.has.add(number)
        return number, None if known else packed

    def _data(self, job: Job) -> Lent | Samples | None:
        """The job's own samples: by name where their arrays are lent, else its rows of them."""
        data = None if isinstance(job, ScoreJob) else job.data
        if data is None:
            return None
        named = self.clients.named(data)
        return named if named is not None else data.own()

    def receive(self) -> tuple[Job, Any]:
        """One answer; raises RunError when the process is gone."""
        try:
            done: _Done = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self._gone() from None
        job = self.jobs.pop(done.slot)
        if done.parcel is None:
            return job, torch.from_numpy(done.value) if isinstance(done.value, np.ndarray) else done.value
        tree = take(self.arenas[done.slot], done.parcel)
        fitted: Fitted = replace(done.value, params=tree.get("params", {}), carry=tree.get("carry", {}))
        return job, fitted

    def _gone(self) -> RunError:
        self.process.join()
        return RunError(
            f"worker {self.number} ended with status {self.process.exitcode} while it served "
            f"{sorted(_whose(job) for job in self.jobs.values())}; if memory ran out, lower run.workers"
        )


class Workers(Executor):
    """As many processes as asked for; which of them does a job changes no bit of its result."""

    mode: ClassVar[str] = "workers"

    def __init__(self, net: Net, federation: Federation, workers: int) -> None:
        super().__init__(net, federation)
        self.folder = temporary()
        folder = Path(self.folder.name)
        clients = lend(federation, folder)
        nets = _Nets(net, folder)
        self.workers = [_Worker(number, clients, nets, folder) for number in range(workers)]

    @property
    def room(self) -> int:
        return sum(_AHEAD - len(worker.jobs) for worker in self.workers)

    def submit(self, job: Job) -> None:
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
        self.folder.cleanup()


def _serve(pipe: Connection, shared: SharedClients) -> None:
    """A worker's life: take an order, do it, answer; end when the parent is gone."""
    # A signal to the whole group is for the parent, which ends the round, checkpoints and closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    clients, modules = borrow(shared), Modules()
    nets: dict[int, Net] = {}
    arenas: dict[int, Arena] = {}
    # The parent closes the pipe and drops the files when it ends, which may be in the middle of a job.
    with suppress(EOFError, ConnectionError, FileNotFoundError):
        while True:
            letter: _Letter = pipe.recv()
            if letter.arena is not None:
                path, size = letter.arena
                arenas[letter.slot] = Arena(Path(path), size, create=False)
                Path(path).unlink()
            order = _read(letter, nets)
            if isinstance(order, RunError):
                pipe.send(_Done(letter.slot, None, order))
                continue
            job = _together(order, take(arenas[letter.slot], order.parcel), clients)
            pipe.send(_answer(letter.slot, attempt(job, nets[order.net], modules, clients), arenas[letter.slot]))


def _read(letter: _Letter, nets: dict[int, Net]) -> _Order | RunError:
    """The order, its net among `nets`; or what keeps this process from reading it: anything, for it is other people's
    code that is loaded."""
    try:
        order: _Order = pickle.loads(letter.order)
        if order.new is not None:
            nets[order.net] = unpack(order.new)
        return order
    except Exception as error:
        return RunError(
            f"a worker process cannot load the work of client {letter.whose!r} ({type(error).__name__}: {error}): "
            "define nets, losses and functions in a module that can be imported, or set run.mode = 'one-by-one'"
        )


def _answer(slot: int, result: Any, arena: Arena) -> _Done:
    if isinstance(result, Fitted):
        parcel = place(arena, {"params": result.params, "carry": result.carry})
        if parcel is not None:
            return _Done(slot, parcel, replace(result, params={}, carry={}))
    elif isinstance(result, FedkinError):
        return _Done(slot, None, type(result)(str(result)))
    # As numpy: torch would pass a tensor by file descriptor, and these run out.
    return _Done(slot, None, result.numpy() if isinstance(result, torch.Tensor) else result)


def _apart(job: Job) -> tuple[dict[str, Any], Job]:
    """(the job's tensors, the job without them, its net and its samples)."""
    if isinstance(job, FitJob):
        return (
            {"params": job.params, "extras": job.extras, "carry": job.carry},
            replace(job, params={}, extras={}, carry={}, net=None, data=None),
        )
    if isinstance(job, ScoreJob):
        return {"params": job.params}, replace(job, params={}, net=None)
    return {"params": job.params}, replace(job, params={}, net=None, data=None)


def _together(order: _Order, tree: dict[str, Any], clients: Borrowed) -> Job:
    """What `_apart` took apart."""
    job = order.job
    if isinstance(job, ScoreJob):
        return replace(job, params=tree["params"])
    data = order.data
    if isinstance(data, Lent):
        data = clients.samples(data._replace(rows=tree["rows"].numpy()) if "rows" in tree else data)
    if isinstance(job, FitJob):
        trees = {"extras": tree.get("extras", {}), "carry": tree.get("carry", {})}
        return replace(job, params=tree["params"], data=data, **trees)
    return replace(job, params=tree["params"], data=data)


def _whose(job: Job) -> str:
    return job.ids[0] if isinstance(job, ScoreJob) else job.id
