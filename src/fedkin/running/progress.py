"""Progress of runs: a bar on a terminal or in a notebook, else ten plain lines on standard error."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedkin.records.events import events_of
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    from fedkin.running.loop import Watcher

_LINES = 10  # lines per command without a terminal


def make_console(**options: Any) -> Console:
    """Return a console for tables and plain text. With stderr=True, write errors never end a command."""
    if options.pop("stderr", False):
        options["file"] = _BestEffort(sys.stderr)
    return _PlainConsole(**{"markup": False, "emoji": False, "highlight": False, **options})


class StopFlag:
    """Set by the first Ctrl-C or SIGTERM; the bars are removed from the screen when the command stops."""

    def __init__(self) -> None:
        self.asked = False
        self.bars: list[Any] = []

    def close(self) -> None:
        """Remove the bars from the screen."""
        for bar in self.bars:
            with suppress(OSError, ValueError):
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
            self.close()
            for number, handler in before.items():
                signal.signal(number, handler)


class Progress:
    """A watcher of a run: a bar with round, time left and figures; ten lines without a terminal.

    stop: the flag that asks to stop. watcher: another watcher, which receives the same calls and may stop the run.
    """

    def __init__(
        self, title: str, stop: StopFlag, quiet: bool = False, console: Console | None = None, lines: int = _LINES,
        watcher: Watcher | None = None,
    ) -> None:  # fmt: skip
        self.title, self.stop, self.quiet, self.lines, self.watcher = title, stop, quiet, lines, watcher
        self.console = console or make_console(stderr=True, soft_wrap=True)
        self.rounds = self.fresh = 0
        self.bar: Any = None
        self.figures = ""

    def started(self, rounds: int, done: int) -> None:
        """Show the bar, starting at the rounds that are already done."""
        self.rounds = rounds
        if self.watcher is not None:
            self.watcher.started(rounds, done)
        if self.quiet:
            return
        if self.console.is_jupyter or (self.console.is_terminal and not self.console.is_dumb_terminal):
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
        if not self.quiet:
            self._round_done(row)
        if self.watcher is not None:
            self.watcher.round_done(row)

    def _round_done(self, row: Mapping[str, Any]) -> None:
        number = row["round"]
        for line in events_of(row):
            self.console.print(f"{self.title}: {line}", markup=False)
        self.figures = round_figures(row) or self.figures
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=number, figures=self.figures)
            if number == self.rounds or self.stop.asked:
                self.bar.stop()
        elif self.lines and number * self.lines // self.rounds > (number - 1) * self.lines // self.rounds:
            self.console.print(f"{self.title}: round {number} of {self.rounds}  {self.figures}")

    def stopping(self) -> bool:
        """Whether the user or the other watcher asked to stop."""
        return self.stop.asked or (self.watcher is not None and self.watcher.stopping())


class ProgressOfSeveral:
    """The progress of several runs in sequence, with the time left for all; ten lines in all without a terminal.

    The time left comes from the mean time of a round, without finished runs that a resumed comparison only reads.
    """

    def __init__(self, stop: StopFlag, quiet: bool) -> None:
        self.stop, self.quiet = stop, quiet
        self.seconds, self.rounds, self.longest = 0.0, 0, 0
        self.last: Progress | None = None
        self.begun = 0.0

    def next(self, title: str, done: int, of: int) -> Progress:
        """Return the progress of the next run; done: number of runs before it; of: number of all runs."""
        now = time.monotonic()
        if self.last is not None and self.last.fresh:
            self.seconds += now - self.begun
            self.rounds += self.last.fresh
            self.longest = max(self.longest, self.last.rounds)
        self.begun = now
        # Print a line after each run that completes another tenth of all runs.
        lines = max(1, _LINES // of) if (done + 1) * _LINES // of > done * _LINES // of else 0
        self.last = Progress(f"{title} ({done + 1} of {of}{self._left(of - done)})", self.stop, self.quiet, lines=lines)
        return self.last

    def _left(self, runs: int) -> str:
        """The estimated time for this many runs; empty until a run has ended."""
        if not self.rounds:
            return ""
        seconds = self.seconds / self.rounds * self.longest * runs
        return f", about {timedelta(seconds=math.ceil(seconds))} left for all"


def round_figures(row: Mapping[str, Any]) -> str:
    """The figures of a round in one line: the metric of seen and unseen clients, and the groups."""
    from fedkin.records.metrics import metric_of

    parts = []
    metric = metric_of(row)
    for title, figures in ((metric.title, row[metric.name]), ("unseen", row.get("unseen"))):
        # There may be no test samples, or no defined metric.
        if figures and figures.get("mean") is not None:
            parts.append(f"{title} {figures['mean']:.3f}")
    if row["groups"]:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in (row["groups"].get("verdicts") or {}).items())
        ari = row["groups"]["ari"]
        some = f" ({verdicts})" if verdicts else ""
        parts.append(f"{row['groups']['found']} groups{some}" + (f", ARI {ari:.2f}" if ari is not None else ""))
    return "  ".join(parts)


class _PlainConsole(Console):
    """A console that removes control characters from the text but keeps styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            if part.control:
                yield part
            else:
                yield Segment("\n".join(map(escaped, part.text.split("\n"))), part.style)


class _BestEffort:
    """Standard error that ignores write errors: progress that cannot be shown must not end a run."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, AttributeError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, AttributeError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
