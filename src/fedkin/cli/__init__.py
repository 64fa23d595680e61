"""The `fedkin` command: thin functions that read options, call the library and print."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from fedkin.cli.quiet import interrupted_by, leave

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
    # Once more when Python winds up: what the run left is written by then.
    atexit.register(interrupted_by, leave)
    # Imports take seconds, and say much when interrupted.
    before = interrupted_by(leave)
    from fedkin.cli.ending import ended

    def work() -> Any:
        from fedkin.cli.commands import app

        interrupted_by(before)  # no sooner: outside of `ended` an interrupt would be a traceback
        return app(standalone_mode=False)

    sys.exit(ended(work))
