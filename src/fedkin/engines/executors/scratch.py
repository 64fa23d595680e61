"""Temporary folders for mapped files, which hold clients' samples; what a killed process leaves is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["Scratch"]

_NAME = "fedkin-"


class Scratch:
    """A folder of this process in the folder for temporary files, which only this user can open.

    It is removed by `close`. A killed process leaves it, with a lock beside it that nobody holds: the next process that
    makes such a folder removes it.
    """

    def __init__(self) -> None:
        home = Path(tempfile.gettempdir())
        _sweep(home)
        # The lock is held before the folder is there, so that no other process takes the folder for one that was left.
        number, name = tempfile.mkstemp(prefix=_NAME, suffix=".lock", dir=home)
        os.close(number)
        lock = FileLock(name, timeout=10)
        lock.acquire()
        self.path = Path(name).with_suffix("")
        self.path.mkdir(mode=0o700)
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _sweep(home: Path) -> None:
    """Remove the folders of processes that have ended."""
    for path in home.glob(f"{_NAME}*.lock"):
        lock = FileLock(path, timeout=0)
        with suppress(Timeout, OSError):  # in use, or another user's
            lock.acquire()
            _remove(path.with_suffix(""), lock)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        Path(lock.lock_file).unlink()
    lock.release()
