"""The start of other processes, and what keeps them from it, in one line.

A process that is started imports the script of its parent. If the script starts processes again when it is imported,
they end at once, with a status that their parent knows.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from fedkin.errors import RunError

__all__ = ["begin", "check_script", "clean_context", "ended", "leave_if_imported"]

_NAME = "fedkin "
_UNGUARDED = 77  # an exit status that Python and signals do not use


def check_script() -> None:
    """Raise RunError if other processes cannot import the script of this one."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is not None and not Path(path).exists():
        raise RunError(f"other processes cannot read the script {path}: write the script into a file and run that")


def begin(context: Any, name: str, target: Any, *args: Any) -> Any:
    """Start a process; raises RunError if it ends before it has read its arguments."""
    process = context.Process(target=target, args=args, daemon=True, name=_NAME + name)
    try:
        process.start()
    except ConnectionError:
        raise ended(name, process, "started") from None
    return process


def leave_if_imported() -> None:
    """End this process at once if `begin` has started it, and it is still importing the script of its parent."""
    process = multiprocessing.current_process()
    if process.name.startswith(_NAME) and getattr(process, "_inheriting", False):
        os._exit(_UNGUARDED)


def ended(name: str, process: Any, doing: str, hint: str = "") -> RunError:
    """The error for a process that has ended; doing: what it did meanwhile."""
    process.join()
    if process.exitcode == _UNGUARDED:
        return RunError(
            "every process that fedkin starts imports your script, which runs fedkin again: put what it does below "
            'if __name__ == "__main__":'
        )
    return RunError(f"{name} ended with status {process.exitcode} while it {doing}{hint}")


def clean_context() -> Any:
    """Return the way to start processes: if possible, forked from a clean process that has imported the library."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedkin.engines", "fedkin.methods", "fedkin.learning.models"])
    return context
