"""A clean stop of a command on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.running.progress import Progress, ProgressOfSeveral, StopFlag, make_console


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
            flag.close()
            console.print(f"{where}; go on with {again or f'--resume {folder}'}")
            sys.exit(130)


@contextmanager
def hearing(folder: Path, quiet: bool, again: str | None = None) -> Iterator[Callable[[str, int, int], Progress]]:
    """As `stop_on_signals`, for several runs; gives what shows the next of them."""
    with stop_on_signals(folder, again) as stop:
        yield ProgressOfSeveral(stop, quiet).next
