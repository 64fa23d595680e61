"""Progress of a run on the terminal, and a clean stop on Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedkin.running.loop import Stop

__all__ = ["Progress", "StopFlag", "stop_on_signals"]


class StopFlag:
    """Set by the first Ctrl-C or SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        self.bars: list[Bar] = []


@contextmanager
def stop_on_signals(folder: Path) -> Iterator[StopFlag]:
    """Stop after the current round on Ctrl-C or SIGTERM, at once on the second; exit status 130."""
    flag = StopFlag()
    console = Console(stderr=True, highlight=False, soft_wrap=True)

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
        console.print(f"{where}; go on with --resume {folder}")
        sys.exit(130)
    finally:
        for bar in flag.bars:
            bar.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """A bar with round, accuracy and groups; plain lines now and then where there is no terminal."""

    def __init__(self, title: str, stop: StopFlag, quiet: bool = False) -> None:
        self.stop, self.title, self.quiet = stop, title, quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self.task: TaskID | None = None
        self.rounds = 0

    def started(self, rounds: int, done: int) -> None:
        self.rounds = rounds
        if self.quiet:
            return
        if self.console.is_terminal:
            self.stop.bars.append(self.bar)
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=rounds, completed=done, figures="")
        elif done:
            self.console.print(f"{self.title}: going on after round {done} of {rounds}")

    def round_done(self, row: Mapping[str, Any]) -> None:
        if self.quiet:
            return
        if self.task is not None:
            self.bar.update(self.task, completed=row["round"], figures=_figures(row))
            if row["round"] == self.rounds or self.stop.asked:
                self.bar.stop()
        elif row["round"] in (1, self.rounds) or row["round"] % max(1, self.rounds // 10) == 0:
            self.console.print(f"{self.title}: round {row['round']} of {self.rounds}  {_figures(row)}")

    def stopping(self) -> bool:
        return self.stop.asked


def _figures(row: Mapping[str, Any]) -> str:
    parts = []
    if row["accuracy"]:
        parts.append(f"accuracy {row['accuracy'].get('mean', float('nan')):.3f}")
    if row["groups"]:
        ari = row["groups"]["ari"]
        parts.append(f"{row['groups']['found']} groups" + (f", ARI {ari:.2f}" if ari is not None else ""))
    return "  ".join(parts)
