"""Ctrl-C in the first seconds of a command, while modules are imported: nothing is said, and nothing goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupted_by", "leave", "quietly"]


@contextmanager
def quietly() -> Iterator[None]:
    """Here Ctrl-C ends the process at once, without a word: imports take seconds, and say much when interrupted."""
    before = interrupted_by(leave)
    try:
        yield
    finally:
        interrupted_by(before)


def leave(number: int, frame: object) -> None:
    """End the process at once with status 130, as a handler of signals."""
    os._exit(130)


def interrupted_by(handler: Any) -> Any:
    """Let this handle Ctrl-C; returns what did before."""
    return signal.signal(signal.SIGINT, handler) if threading.current_thread() is threading.main_thread() else None
