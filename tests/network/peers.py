"""Peers of a federation in threads of one process, on a network in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.networked import exchange
from network.federations import NOWHERE, Clients, state_in
from network.memory import MemoryNetwork


class Peers(Clients):
    """Peers in threads; results by name."""

    def __init__(self, plan: Experiment, root: Path) -> None:
        super().__init__(MemoryNetwork(), plan.federation(NOWHERE), root)
        self.plan, self.results = plan, dict[str, Result]()

    def start(self, *names: str, **options: Any) -> Clients:
        """Start these peers (none named: all); all of them are on the network before one looks who is there."""
        barrier = threading.Barrier(len(names or self.federation))
        return super().start(*names, **{"plan": self.plan, **options}, barrier=barrier)

    def join_with(self, link: Any, name: str, options: dict[str, Any]) -> None:
        options.pop("barrier").wait(60)
        self.results[name] = exchange(
            options.pop("plan"), link, (self.federation[name], self.federation.task), sorted(self.federation),
            self.root / name, stop=self.stops[name], say=partial(self.note, name), **options,
        )  # fmt: skip


def together(count: int, at: int) -> Callable[[int], None]:
    """What so many peers do after a round: at this one they wait for each other."""
    barrier = threading.Barrier(count)

    def wait(round: int) -> None:
        if round == at:
            barrier.wait(60)

    return wait


@contextmanager
def peers(plan: Experiment, root: Path) -> Iterator[Peers]:
    """Peers with the experiment's samples, who are all gone at the end."""
    made = Peers(plan, root)
    try:
        yield made
    finally:
        made.stop()


def rows_of(result: Result, id: str, rows: str) -> list[tuple[Any, ...]]:
    """The rows in which this peer is."""
    return sorted(row for row in getattr(result, rows) if id in row)


def states(root: Path, names: Iterable[str]) -> Mapping[str, Any]:
    """The state of each peer, from its own checkpoint."""
    return {name: state_in(root / name)["clients"][name] for name in names}
