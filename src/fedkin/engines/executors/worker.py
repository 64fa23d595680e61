"""A worker process, which receives orders, carries them out and answers."""

from __future__ import annotations

import pickle
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedkin.engines.executors.jobs import Modules, attempt
from fedkin.engines.executors.mapped import Arena, SharedClients, borrow, place, take
from fedkin.engines.executors.orders import Done, Letter, Order, together
from fedkin.engines.executors.packed import unpack
from fedkin.errors import FedkinError, RunError
from fedkin.flow import Fitted
from fedkin.learning.net import Net

__all__ = ["serve"]


def serve(pipe: Connection, clients_at: str) -> None:
    """Receive orders, carry them out and answer, until the parent has ended; clients_at: a file with SharedClients."""
    # The parent handles a signal to the whole group: it ends the round, writes a checkpoint and closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    shared: SharedClients = pickle.loads(Path(clients_at).read_bytes())
    clients, modules = borrow(shared), Modules()
    nets: dict[int, Net] = {}
    arenas: dict[int, Arena] = {}
    # When the parent ends, it closes the pipe and removes the files. This may happen in the middle of a job.
    with suppress(EOFError, ConnectionError, FileNotFoundError):
        pipe.send(True)
        while True:
            letter: Letter = pipe.recv()
            if letter.arena is not None:
                path, size = letter.arena
                arenas[letter.slot] = Arena(Path(path), size, create=False)
                Path(path).unlink()
            order = _read(letter, nets)
            if isinstance(order, RunError):
                pipe.send(Done(letter.slot, None, order))
                continue
            job = together(order, take(arenas[letter.slot], order.parcel), clients)
            pipe.send(_answer(letter.slot, attempt(job, nets[order.net], modules, clients), arenas[letter.slot]))


def _read(letter: Letter, nets: dict[int, Net]) -> Order | RunError:
    """Return the order, with its net in `nets`, or the error that prevents this process from reading it.

    Any error can occur, because the code that is loaded is the user's.
    """
    try:
        order: Order = pickle.loads(letter.order)
        if order.new is not None:
            nets[order.net] = unpack(order.new)
        return order
    except Exception as error:
        return RunError(
            f"a worker process cannot load the work of client {letter.whose!r} ({type(error).__name__}: {error}): "
            "define nets, losses and functions in a module that can be imported, or set run.mode = 'one-by-one'"
        )


def _answer(slot: int, result: Any, arena: Arena) -> Done:
    if isinstance(result, Fitted):
        parcel = place(arena, {"params": result.params, "carry": result.carry})
        if parcel is not None:
            return Done(slot, parcel, replace(result, params={}, carry={}))
    elif isinstance(result, FedkinError):
        return Done(slot, None, type(result)(str(result)))
    # The value is sent as a numpy array: torch would use a file descriptor per tensor, and these run out.
    return Done(slot, None, result.numpy() if isinstance(result, torch.Tensor) else result)
