"""The `fedkin` command: thin functions that read options, call the library and print."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """The typer application: it is imported late, because it takes seconds, in which Ctrl-C has to be quiet."""
    if name == "app":
        from fedkin.cli import commands

        return commands.app
    raise AttributeError(f"module 'fedkin.cli' has no attribute {name!r}")


def main() -> None:
    """Run the command; always raises SystemExit.

    0: done. 2: an error that a user can act on, one line on standard error. 70: a fault of fedkin, one line with the
    file of its traceback. 130: stopped by Ctrl-C.
    """
    before = _interrupted_by(_leave)
    # Once more when Python winds up: what the run left is written by then.
    atexit.register(_interrupted_by, _leave)
    from fedkin.cli.ending import ended

    def work() -> Any:
        from fedkin.cli.commands import app

        _interrupted_by(before)
        return app(standalone_mode=False)

    try:
        status = ended(work)
    finally:
        _interrupted_by(before)
    sys.exit(status)


def _leave(number: int, frame: object) -> None:
    os._exit(130)


def _interrupted_by(handler: Any) -> Any:
    """Let this handle Ctrl-C; returns what did before."""
    return signal.signal(signal.SIGINT, handler) if threading.current_thread() is threading.main_thread() else None
