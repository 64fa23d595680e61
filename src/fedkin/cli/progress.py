"""Progress of a run on the terminal, and a clean stop on Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.text import Text

from fedkin.cli.output import make_console
from fedkin.report.units import megabytes
from fedkin.running.progress import figured, grouped, scored

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.progress_bar import ProgressBar
    from rich.table import Table

__all__ = ["LiveProgress", "Progress", "ProgressOfSeveral", "StopFlag", "sparkline", "stop_on_signals"]


class _Shown(Protocol):
    """Something on the screen until it is stopped."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class StopFlag:
    """Set by the first Ctrl-C or SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        self.bars: list[_Shown] = []


@contextmanager
def stop_on_signals(folder: Path, again: str | None = None) -> Iterator[StopFlag]:
    """Stop after the current round on Ctrl-C or SIGTERM, immediately on the second; exit status 130.

    again: how to go on (None: with --resume FOLDER).
    """
    from fedkin.running.loop import Stop

    flag = StopFlag()
    console = make_console(stderr=True, soft_wrap=True)

    def ask(number: int, frame: object) -> None:
        if flag.asked:
            raise KeyboardInterrupt
        flag.asked = True
        console.print("stopping after this round; once more to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    except (Stop, KeyboardInterrupt) as stop:
        where = str(stop) if isinstance(stop, Stop) else "stopped at once: the last checkpoint stands"
        for bar in flag.bars:
            bar.stop()
        console.print(f"{where}; go on with {again or f'--resume {folder}'}")
        sys.exit(130)
    finally:
        for bar in flag.bars:
            bar.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """A bar with round, accuracy and groups; occasional plain lines if there is no terminal."""

    def __init__(self, title: str, stop: StopFlag, quiet: bool = False, console: Console | None = None) -> None:
        self.stop, self.title, self.quiet = stop, title, quiet
        self.console = console or make_console(stderr=True, soft_wrap=True)
        self.rounds = self.fresh = 0
        self.shown: _Shown | None = None

    def started(self, rounds: int, done: int) -> None:
        """Show the bar, with the rounds that are done already."""
        self.rounds = rounds
        if self.quiet:
            return
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self.shown = self._show(done)
            self.stop.bars.append(self.shown)
            self.shown.start()
        elif done:
            self.console.print(f"{self.title}: going on after round {done} of {rounds}")

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show the figures of this round."""
        self.fresh += 1
        if self.quiet:
            return
        if self.shown is not None:
            self._update(row)
            if row["round"] == self.rounds or self.stop.asked:
                self.shown.stop()
        elif row["round"] in (1, self.rounds) or row["round"] % max(1, self.rounds // 10) == 0:
            self.console.print(f"{self.title}: round {row['round']} of {self.rounds}  {figured(row)}")

    def stopping(self) -> bool:
        """Whether the user asked to stop."""
        return self.stop.asked

    def _show(self, done: int) -> _Shown:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self.task: TaskID = self.bar.add_task(self.title, total=self.rounds, completed=done, figures="")
        return self.bar

    def _update(self, row: Mapping[str, Any]) -> None:
        self.bar.update(self.task, completed=row["round"], figures=figured(row))


class ProgressOfSeveral:
    """The progress of several runs one after another, each with the time left for all, from the runs that have ended.

    Runs of a resumed comparison that are only read are not counted; of the others, the mean time of a round is used.
    """

    def __init__(self, stop: StopFlag, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop, self.quiet, self.clock = stop, quiet, clock
        self.seconds, self.rounds, self.longest = 0.0, 0, 0
        self.last: Progress | None = None
        self.begun = 0.0

    def next(self, title: str, done: int, of: int) -> Progress:
        """The progress of the next run; done: how many are before it, of all."""
        now = self.clock()
        if self.last is not None and self.last.fresh:
            self.seconds += now - self.begun
            self.rounds += self.last.fresh
            self.longest = max(self.longest, self.last.rounds)
        self.begun = now
        self.last = Progress(f"{title} ({done + 1} of {of}{self._left(of - done)})", self.stop, self.quiet)
        return self.last

    def _left(self, runs: int) -> str:
        """The time for this many runs, if one has ended."""
        if not self.rounds:
            return ""
        seconds = self.seconds / self.rounds * self.longest * runs
        return f", about {timedelta(seconds=math.ceil(seconds))} left for all"


class LiveProgress(Progress):
    """A few lines that follow one run: round, rate, time left, accuracy and its history, groups, bytes.

    folder: the run's folder, from which a resumed run's earlier rounds are read.
    """

    def __init__(
        self, title: str, stop: StopFlag, folder: Path, quiet: bool = False, console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(title, stop, quiet, console)
        self.folder, self.clock = folder, clock
        self.done = 0
        self.bytes = {"up": 0, "down": 0}
        self.values: list[float] = []
        self.scored: Mapping[str, Any] | None = None
        self.groups: Mapping[str, Any] | None = None
        # Only the last rounds are used: the first one is slower, and the load of the machine changes.
        self.times: deque[float] = deque(maxlen=30)

    def _show(self, done: int) -> _Shown:
        from rich.live import Live

        from fedkin.records.recorder import rounds_so_far

        self.done = done
        for row in rounds_so_far(self.folder) if done else []:
            self._take(row)
        self.times.append(self.clock())
        return Live(get_renderable=self.view, console=self.console, transient=True, refresh_per_second=4)

    def _update(self, row: Mapping[str, Any]) -> None:
        self._take(row)
        self.times.append(self.clock())

    def _take(self, row: Mapping[str, Any]) -> None:
        from fedkin.records.metrics import metric_of

        self.done = row["round"]
        for way in self.bytes:
            self.bytes[way] += row["bytes"][way]
        if scored(row):
            self.scored = row
            self.values.append(row[metric_of(row).name]["mean"])
        if row["groups"]:
            self.groups = row["groups"]

    def rate(self) -> float | None:
        """Rounds a second over the last rounds; None before the first."""
        spent = self.times[-1] - self.times[0] if self.times else 0.0
        return (len(self.times) - 1) / spent if spent > 0 else None

    def left(self) -> float | None:
        """Seconds until the end of the last round, at this rate."""
        rate = self.rate()
        if rate is None:
            return None
        return max((self.rounds - self.done) / rate - (self.clock() - self.times[-1]), 0.0)

    def view(self) -> Table:
        """The current lines."""
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        place = f"round {self.done} of {self.rounds}"
        head = Table.grid(padding=(0, 2))
        head.add_row(self._bar(), Text(place, no_wrap=True))
        table.add_row(Text(self.title, style="bold"), head)
        table.add_row("pace", Text(self._pace()))
        if self.scored is not None:
            table.add_row(*self._quality(self.scored))
        if self.groups is not None:
            table.add_row("groups", Text(grouped(self.groups)))
        table.add_row("sent", Text(", ".join(f"{megabytes(count)} {way}" for way, count in self.bytes.items())))
        return table

    def _bar(self) -> ProgressBar:
        from rich.progress_bar import ProgressBar

        return ProgressBar(total=max(self.rounds, 1), completed=self.done, width=self._width())

    def _width(self) -> int:
        """Columns for the bar and for the history."""
        return max(8, min(40, self.console.width - 44))

    def _pace(self) -> str:
        rate, left = self.rate(), self.left()
        if rate is None or left is None:
            return "in the first round" if not self.done else "going on"
        slow = f" ({1 / rate:.1f} s each)" if rate < 1 else ""
        return f"{rate:.3g} rounds/s{slow}, {timedelta(seconds=round(left))} left"

    def _quality(self, row: Mapping[str, Any]) -> tuple[str, Text]:
        from fedkin.records.metrics import metric_of

        metric = metric_of(row)
        digits = ".3f" if metric.share else ".4g"
        reached = row[metric.name]
        spark = sparkline(self.values, self._width(), self.console.options.ascii_only)
        more = [f"worst 10% {reached['worst10']:{digits}}"]
        if row.get("unseen") and row["unseen"].get("mean") is not None:
            more.append(f"unseen {row['unseen']['mean']:{digits}}")
        line = Text.assemble(f"{reached['mean']:{digits}}  ", (spark, "cyan"), "  " + "  ".join(more))
        return metric.title, line


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Values as bars of eight heights from minimum to maximum; means of equal stretches if longer than `width`.

    >>> sparkline([0.1, 0.2, 0.4, 0.8], 10)
    '▁▂▄█'
    """
    marks = "_.:-=+*#" if ascii_only else "▁▂▃▄▅▆▇█"
    count = min(len(values), width)
    cuts = [place * len(values) // count for place in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = (min(means), max(means)) if means else (0.0, 0.0)
    if high <= low:
        return marks[3] * count
    return "".join(marks[min(int(8 * (mean - low) / (high - low)), 7)] for mean in means)
