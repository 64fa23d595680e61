"""Peers of a federation in threads of one process, on a network in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.networked import exchange
from network.federations import Clients, state_in
from support import same


@dataclass
class Peers(Clients):
    """Peers in threads, with the experiment's samples; results by name."""

    results: dict[str, Result] = field(default_factory=dict)

    def start(self, *names: str, **options: Any) -> None:
        """Start these peers (none named: all); all of them are on the network before one looks who is there."""
        barrier = threading.Barrier(len(names or self.federation))
        super().start(*names, **{"plan": self.plan, **options}, barrier=barrier)

    def join_with(self, link: Any, name: str, options: dict[str, Any]) -> None:
        options.pop("barrier").wait(60)
        self.results[name] = exchange(
            options.pop("plan"), link, (self.federation[name], self.federation.task), sorted(self.federation),
            self.root / name, stop=self.stops[name], say=partial(self.note, name), **options,
        )  # fmt: skip

    def state(self, name: str) -> Any:
        """A peer's state, from its own checkpoint."""
        return state_in(self.root / name)["clients"][name]

    def ended_equal(self) -> None:
        """Wait until all have ended, without an error, with the states of the simulation in folder/here."""
        self.ended()
        assert same(state_in(self.folder / "here")["clients"], {name: self.state(name) for name in self.federation})


def all_equal(plan: Experiment, folder: Path) -> Peers:
    """Peers that have ended with the states of the simulation in folder/here."""
    with Peers(plan, folder) as there:
        there.start()
        there.ended_equal()
    return there


def together(count: int, at: int) -> dict[int, Callable[[], object]]:
    """What so many peers do after this round: they wait for each other."""
    barrier = threading.Barrier(count)
    return {at: lambda: barrier.wait(60)}


def rows_of(result: Result, id: str, rows: str) -> list[tuple[Any, ...]]:
    """The rows in which this peer is."""
    return sorted(row for row in getattr(result, rows) if id in row)
