"""Peers of a federation in threads of one process, on a network in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.network.link import Left
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Stop
from fedkin.running.networked import exchange
from network.federations import NOWHERE, state_in
from network.memory import MemoryNetwork


@dataclass
class Peers:
    """Peers in threads; results and errors by name."""

    plan: Experiment
    root: Path
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    stops: dict[str, threading.Event] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    dealt: Federation | None = None

    def __post_init__(self) -> None:
        self.federation = self.dealt or self.plan.federation(NOWHERE)

    def start(self, names: Iterable[str] = (), **options: Any) -> None:
        """Start these peers (none named: all); all of them are on the network before one looks who is there."""
        names = sorted(names or self.federation)
        there = threading.Barrier(len(names))
        for name in names:
            self.stops[name] = threading.Event()
            self.threads[name] = threading.Thread(target=self._run, args=(name, there, dict(options)), daemon=True)
            self.threads[name].start()

    def _run(self, name: str, there: threading.Barrier, options: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        try:
            with self.network.link(name) as link:
                there.wait(60)
                self.results[name] = exchange(
                    options.pop("plan", self.plan), link, (self.federation[name], self.federation.task),
                    sorted(self.federation), self.root / name, stop=self.stops[name],
                    say=self.said.setdefault(name, []).append, **options,
                )  # fmt: skip
        except (Left, Stop, FedkinError, Killed) as error:
            self.errors[name] = f"{type(error).__name__}: {error}"

    def join(self, *names: str) -> None:
        """Wait until these peers (none named: all) have ended."""
        for name in names or list(self.threads):
            self.threads[name].join(60)
            assert not self.threads[name].is_alive(), name


def together(count: int, at: int) -> Callable[[int], None]:
    """What so many peers do after a round: at this one they wait for each other."""
    barrier = threading.Barrier(count)

    def wait(round: int) -> None:
        if round == at:
            barrier.wait(60)

    return wait


class Killed(Exception):
    """The peer is killed."""


@contextmanager
def peers(plan: Experiment, root: Path, dealt: Federation | None = None) -> Iterator[Peers]:
    """Peers with the federation's samples (None: those of the experiment), who are all gone at the end."""
    made = Peers(plan, root, dealt=dealt)
    try:
        yield made
    finally:
        for stop in made.stops.values():
            stop.set()
        made.join()


def rows_of(result: Result, id: str, rows: str) -> list[tuple[Any, ...]]:
    """The rows in which this peer is."""
    return sorted(row for row in getattr(result, rows) if id in row)


def states(root: Path, names: Iterable[str]) -> Mapping[str, Any]:
    """The state of each peer, from its own checkpoint."""
    return {name: state_in(root / name)["clients"][name] for name in names}
