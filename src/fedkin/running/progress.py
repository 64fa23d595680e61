"""How far a run is, for notebooks and scripts: a bar of tqdm if it is installed, else plain lines on standard error."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.running.loop import Watcher


class RoundsDone:
    """A watcher that shows the rounds done, the metric and the time left, until it is closed.

    title: the text before the figures. watcher: another watcher, which is told the same and which may stop the run.
    clock: a function that returns seconds, for the time left of the plain lines.
    """

    def __init__(self, title: str, watcher: Watcher | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self.watcher, self.clock = title, watcher, clock
        self.rounds = self.before = 0
        self.figures = ""
        self.bar: Any = None

    def started(self, rounds: int, done: int) -> None:
        """Show the bar, with the rounds that are done already."""
        self.rounds, self.before, self.begun = rounds, done, self.clock()
        tqdm = _tqdm()
        # A stream that takes nothing must not end the run, here and below.
        with suppress(OSError, ValueError):
            if tqdm is not None:
                self.bar = tqdm(total=rounds, initial=done, desc=self.title, unit="round")
            elif done:
                self._say(f"going on after round {done} of {rounds}")
        if self.watcher is not None:
            self.watcher.started(rounds, done)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show the figures of this round."""
        number = row["round"]
        if scored(row) or not self.figures:
            self.figures = figured(row)
        with suppress(OSError, ValueError):
            if self.bar is not None:
                self.bar.set_postfix_str(self.figures, refresh=False)
                self.bar.update(1)
            elif number in (1, self.rounds) or number % max(1, self.rounds // 10) == 0:
                self._say(f"round {number} of {self.rounds}  {self.figures}  {self._left(number)}")
        if self.watcher is not None:
            self.watcher.round_done(row)

    def stopping(self) -> bool:
        """Whether the other watcher stops the run."""
        return self.watcher is not None and self.watcher.stopping()

    def close(self) -> None:
        """Leave the bar as it is, and let what is printed next begin on a new line."""
        if self.bar is not None:
            with suppress(OSError, ValueError):
                self.bar.close()

    def _say(self, text: str) -> None:
        print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    def _left(self, round: int) -> str:
        seconds = (self.clock() - self.begun) / (round - self.before) * (self.rounds - round)
        return f"{timedelta(seconds=math.ceil(seconds))} left"


def scored(row: Mapping[str, Any]) -> bool:
    """Whether the clients' models were evaluated in this round, and the metric is defined."""
    from fedkin.records.metrics import metric_of

    figures = row[metric_of(row).name]
    return bool(figures) and figures.get("mean") is not None


class Several:
    """The bar or the lines of the run that goes on now, of several."""

    def __init__(self) -> None:
        self.now: RoundsDone | None = None

    def next(self, title: str) -> RoundsDone:
        """What shows the next run, after the one before."""
        self.close()
        self.now = RoundsDone(title)
        return self.now

    def close(self) -> None:
        """End what is shown."""
        if self.now is not None:
            self.now.close()


def titled(what: str, seed: int, done: int, of: int) -> str:
    """Name a run of several."""
    return f"{what} seed {seed} ({done + 1} of {of})"


def figured(row: Mapping[str, Any]) -> str:
    """The figures of a round on a line: the metric of seen and unseen clients, and the groups."""
    from fedkin.records.metrics import metric_of

    parts = []
    metric = metric_of(row)
    for title, figures in ((metric.title, row[metric.name]), ("unseen", row.get("unseen"))):
        # There may be no test samples, or no defined metric.
        if figures and figures.get("mean") is not None:
            parts.append(f"{title} {figures['mean']:.3f}")
    if row["groups"]:
        parts.append(grouped(row["groups"], " groups"))
    return "  ".join(parts)


def grouped(groups: Mapping[str, Any], word: str = "") -> str:
    """The number of groups, by verdict if there are verdicts, and their agreement with the planted ones."""
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in (groups.get("verdicts") or {}).items())
    ari = groups["ari"]
    some = f" ({verdicts})" if verdicts else ""
    return f"{groups['found']}{word}{some}" + (f", ARI {ari:.2f}" if ari is not None else "")


def _tqdm() -> Any:
    """The bar that suits a notebook or a terminal; None if tqdm is not installed."""
    try:
        kind = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    # Its thread would be there when workers are started, and a round that takes long needs no more drawing.
    return type("Bar", (kind,), {"monitor_interval": 0})
