"""The `fedkin` command: thin functions that read options, call the library and print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fedkin.cli.exit_status import end_at_once, exit_status, on_interrupt

if TYPE_CHECKING:
    from fedkin.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """The typer application, imported late: its imports take time, and Ctrl-C must be quiet during them."""
    if name == "app":
        from fedkin.cli import commands

        return commands.app
    raise AttributeError(f"module 'fedkin.cli' has no attribute {name!r}")


def main() -> None:
    """Run the command; always raises SystemExit.

    0: done. 2: an error that a user can act on, one line on standard error. 70: an error of fedkin, one line with the
    file of its traceback. 130: stopped by Ctrl-C, which ends a command at once unless it has something to finish.
    """
    on_interrupt(end_at_once)

    def work() -> Any:
        from fedkin.cli.commands import app

        return app(standalone_mode=False)

    sys.exit(exit_status(work))
