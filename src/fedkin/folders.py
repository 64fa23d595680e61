"""Folders whose contents survive a crash, and locks on folders."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkin.errors import ConfigError, RunError

_LOCK, _HOLDER = "lock", "lock.json"
# Files of a lock: a killed process leaves them behind.
LOCKS = (_LOCK, _HOLDER)


def make_durable(folder: Path, mode: int = 0o777) -> None:
    """Make the folder and its parents so that they survive a system crash; raises OSError.

    mode: permissions of a new folder.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for path in missing:
        fsync_folder(path.parent)


def made_private(folder: Path, what: str) -> None:
    """Make a folder that only its owner may read, and remove *.new files; raises RunError: cannot keep `what`."""
    try:
        make_durable(folder, 0o700)
        for left in folder.glob("*.new"):
            left.unlink()
    except OSError as error:
        raise RunError(f"{folder}: cannot keep {what} ({error})") from None


def fsync_folder(folder: Path) -> None:
    """Wait until the names in this folder are on the disk; a file renamed into it then survives a power cut."""
    if os.name == "nt":  # Windows cannot open a folder, and writes names with their files
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot do this for a folder
            raise
    finally:
        os.close(number)


def write_new(path: Path, data: bytes, hint: str, mode: int = 0o666, replace: bool = False) -> None:
    """Write a new file; raises ConfigError that names it, with the hint if it exists.

    mode: permissions before the umask. replace: whether to overwrite an existing file.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL), mode)
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise ConfigError(f"{path}: exists; {hint}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None


def replace(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old or the new content only; a power cut may lose it.

    Raises OSError. A killed process may leave a half-written *.new.
    """
    partial = path.with_suffix(".new")
    partial.write_bytes(data)
    partial.replace(path)


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically; only its owner may read it. Raises OSError.

    The file is on the disk when this returns. A killed process may leave a half-written *.new (see `made_private`).
    """
    partial = path.with_suffix(".new")
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    fsync_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and lock it against other processes; raises RunError that names the process with the lock.

    The system releases the lock when its process ends or is killed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        # The folder will hold personal models: only its owner may read it.
        make_durable(folder, 0o700)
        lock.acquire()
    except Timeout:
        raise RunError(_refusal(folder)) from None
    except (OSError, NotImplementedError) as error:
        raise RunError(f"{folder}: cannot be used as a folder ({getattr(error, 'strerror', error)})") from None
    try:
        with suppress(OSError):  # this file only informs people: the lock works without it
            (folder / _HOLDER).write_text(
                json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8"
            )
        yield
    finally:
        for name in (_HOLDER, _LOCK):
            with suppress(OSError):
                (folder / name).unlink()
        lock.release()


def holder(folder: Path) -> str | None:
    """Return a sentence that says which process has locked this folder; None if no process has."""
    if not (folder / _LOCK).exists():
        return None
    from filelock import FileLock, Timeout

    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return _refusal(folder)
    except OSError:
        return None
    lock.release()
    return None


def _refusal(folder: Path) -> str:
    try:
        known = json.loads((folder / _HOLDER).read_text(encoding="utf-8"))
        pid, host = int(known["pid"]), str(known["host"])
        who, how = f"process {pid} on {host}", f"stop it (kill {pid}), or name another folder"
    except (OSError, ValueError, KeyError, TypeError):
        who, how = "another process", "name another folder"
    return f"{folder} is in use by {who}: wait until it has ended, {how}"
