"""The mode "workers": processes of one thread each, with results equal bit for bit to "one-by-one".

loky (part of joblib) starts the processes and reports when one has died. Definitions in a script are sent by value, so
that the script needs no `if __name__ == "__main__"`. Samples and nets are in files that all processes map into memory;
jobs and results are sent as bytes.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import cloudpickle
import torch

from fedkin.engines.executors.jobs import Executor, Job, Modules, bare, run_or_error, whose
from fedkin.errors import FedkinError, RunError
from fedkin.federation import Client
from fedkin.learning.net import Net
from fedkin.untrusted import error_text

_AHEAD = 2  # jobs at each worker: one running and one waiting, so that no worker is idle


class Workers(Executor):
    """The executor with a number of worker processes; which worker does a job changes no bit of the result."""

    mode: ClassVar[str] = "workers"
    parts = 16  # every worker gets work, with few copies of the model

    def __init__(self, net: Net, federation: Mapping[str, Client], workers: int) -> None:
        super().__init__(net, federation)
        from joblib.externals.loky import ProcessPoolExecutor
        from joblib.externals.loky.backend import resource_tracker

        self.count = workers
        self.folder = TemporaryDirectory(prefix="fedkin-")
        # A process of loky removes the folder if this process is killed.
        resource_tracker.register(self.folder.name, "folder")
        clients = Path(self.folder.name, "clients")
        _save(dict(federation), clients)
        self.nets: dict[Net, Path] = {}
        self.pool = ProcessPoolExecutor(workers, initializer=_begin, initargs=(clients,))
        self.jobs: dict[Future[bytes], Job] = {}

    @property
    def room(self) -> int:
        return _AHEAD * self.count - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.note(job, "in processes", "run.mode is 'workers'")
        try:
            net, sent = self._net(job.net or self.net), _bytes(bare(job))
        except Exception as error:  # the loss and the net are the user's
            raise RunError(f"this job cannot go to another process ({error}); set run.mode = 'one-by-one'") from None
        try:
            self.jobs[self.pool.submit(_work, sent, net, whose(job))] = job
        except BrokenExecutor as error:
            raise self._broken(error) from None

    def _net(self, net: Net) -> Path:
        """Return the file of this net."""
        if net not in self.nets:
            path = Path(self.folder.name, f"net-{len(self.nets)}")
            _save(net, path)
            self.nets[net] = path
        return self.nets[net]

    def collect(self) -> Sequence[tuple[Job, Any]]:
        done, _ = wait(self.jobs, return_when=FIRST_COMPLETED)
        try:
            return [(self.jobs.pop(future), _read(future.result())) for future in done]
        except BrokenExecutor as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> RunError:
        # loky's error says which signal or status ended the process, and then adds advice.
        return RunError(f"a worker process has ended: {error_text(error)}; if memory ran out, lower run.workers")

    def close(self) -> None:
        from joblib.externals.loky.backend import resource_tracker

        self.pool.shutdown(wait=True, kill_workers=True)
        self.folder.cleanup()
        resource_tracker.unregister(self.folder.name, "folder")


def _save(value: Any, where: Path | BytesIO) -> None:
    torch.save(value, where, pickle_module=cloudpickle)


def _bytes(value: Any) -> bytes:
    buffer = BytesIO()
    _save(value, buffer)
    return buffer.getvalue()


def _read(sent: bytes) -> Any:
    return torch.load(BytesIO(sent), weights_only=False)


# -- in a worker ------------------------------------------------------------------------------------------------------

_CLIENTS: dict[str, Client] = {}
_MODULES = Modules()


def _begin(clients: Path) -> None:
    """Initialise a worker: map the clients' samples into memory."""
    # The parent handles a signal to the whole process group: it ends the round and writes a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    _CLIENTS.update(torch.load(clients, mmap=True, weights_only=False))


@cache
def _net_at(path: Path) -> Net:
    net: Net = torch.load(path, mmap=True, weights_only=False)
    return net


def _work(sent: bytes, net: Path, client: str) -> bytes:
    """Do a job and return its result, or the error that a user can act on."""
    try:
        job = _read(sent)
        loaded = _net_at(net)
    except Exception as error:  # the code that is loaded is the user's
        return _bytes(
            RunError(
                f"a worker process cannot load the work of client {client!r} ({type(error).__name__}: {error}): define "
                "nets, losses and functions in a module that can be imported, or set run.mode = 'one-by-one'"
            )
        )
    result = run_or_error(job, loaded, _MODULES, _CLIENTS)
    return _bytes(type(result)(str(result)) if isinstance(result, FedkinError) else result)
