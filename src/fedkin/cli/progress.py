"""Progress of runs on the terminal, and a clean stop on Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from fedkin.cli.output import make_console
from fedkin.running.progress import figured

_LINES = 10  # without a terminal, of a command


class StopFlag:
    """Set by the first Ctrl-C or SIGTERM; the bars are removed from the screen when the command stops."""

    def __init__(self) -> None:
        self.asked = False
        self.bars: list[Any] = []

    def stop_bars(self) -> None:
        """Remove the bars from the screen."""
        for bar in self.bars:
            bar.stop()

    @contextmanager
    def on_signals(self, say: Callable[[], None]) -> Iterator[None]:
        """Note the first Ctrl-C or SIGTERM and call `say`; raise KeyboardInterrupt at the second."""

        def ask(number: int, frame: object) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            say()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self.stop_bars()
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def stop_on_signals(folder: Path, again: str | None = None) -> Iterator[StopFlag]:
    """Stop after the current round on Ctrl-C or SIGTERM, immediately on the second; exit status 130.

    again: how to go on (None: with --resume FOLDER).
    """
    from fedkin.running.loop import Stop

    flag = StopFlag()
    console = make_console(stderr=True, soft_wrap=True)
    with flag.on_signals(lambda: console.print("stopping after this round; once more to stop at once")):
        try:
            yield flag
        except (Stop, KeyboardInterrupt) as stop:
            where = str(stop) if isinstance(stop, Stop) else "stopped at once: the last checkpoint stands"
            flag.stop_bars()
            console.print(f"{where}; go on with {again or f'--resume {folder}'}")
            sys.exit(130)


class Progress:
    """A watcher of a run: a bar with round, time left and figures, or without a terminal ten lines."""

    def __init__(
        self, title: str, stop: StopFlag, quiet: bool = False, console: Console | None = None, lines: int = _LINES
    ) -> None:
        self.title, self.stop, self.quiet, self.lines = title, stop, quiet, lines
        self.console = console or make_console(stderr=True, soft_wrap=True)
        self.rounds = self.fresh = 0
        self.bar: Any = None
        self.figures = ""

    def started(self, rounds: int, done: int) -> None:
        """Show the bar, with the rounds that are done already."""
        self.rounds = rounds
        if self.quiet:
            return
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._show(done)
        elif done and self.lines:
            self.console.print(f"{self.title}: going on after round {done} of {rounds}")

    def _show(self, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        narrow = Column(no_wrap=True, overflow="ellipsis")
        self.bar = Bar(
            TextColumn("{task.description}", markup=False, table_column=narrow), BarColumn(bar_width=12),
            MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}", markup=False,
            table_column=narrow.copy()), console=self.console, transient=True,
        )  # fmt: skip
        self.bar.add_task(self.title, total=self.rounds, completed=done, figures="")
        self.stop.bars.append(self.bar)
        self.bar.start()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show the figures of this round."""
        self.fresh += 1
        if self.quiet:
            return
        number = row["round"]
        self.figures = figured(row) or self.figures
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=number, figures=self.figures)
            if number == self.rounds or self.stop.asked:
                self.bar.stop()
        elif self.lines and number * self.lines // self.rounds > (number - 1) * self.lines // self.rounds:
            self.console.print(f"{self.title}: round {number} of {self.rounds}  {self.figures}")

    def stopping(self) -> bool:
        """Whether the user asked to stop."""
        return self.stop.asked


class ProgressOfSeveral:
    """The progress of several runs one after another, with the time left for all; without a terminal ten lines in all.

    Runs of a resumed comparison that are only read are not counted; of the others, the mean time of a round is used.
    """

    def __init__(self, stop: StopFlag, quiet: bool, console: Console | None = None) -> None:
        self.stop, self.quiet, self.console = stop, quiet, console
        self.seconds, self.rounds, self.longest = 0.0, 0, 0
        self.last: Progress | None = None
        self.begun = 0.0

    def next(self, title: str, done: int, of: int) -> Progress:
        """The progress of the next run; done: how many are before it, of all."""
        now = time.monotonic()
        if self.last is not None and self.last.fresh:
            self.seconds += now - self.begun
            self.rounds += self.last.fresh
            self.longest = max(self.longest, self.last.rounds)
        self.begun = now
        # A line at the end of those runs that complete a tenth of all.
        lines = max(1, _LINES // of) if (done + 1) * _LINES // of > done * _LINES // of else 0
        self.last = Progress(
            f"{title} ({done + 1} of {of}{self._left(of - done)})", self.stop, self.quiet, self.console, lines
        )
        return self.last

    def _left(self, runs: int) -> str:
        """The time for this many runs, if one has ended."""
        if not self.rounds:
            return ""
        seconds = self.seconds / self.rounds * self.longest * runs
        return f", about {timedelta(seconds=math.ceil(seconds))} left for all"
