"""The last line of a command: whatever happens, one line says what, and an exit status that scripts can read."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from fedkin.errors import FedkinError

__all__ = ["ended"]

_WRONG, _BROKEN, _FAULT, _STOPPED = 2, 1, 70, 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LONGEST = 2000


def ended(work: Callable[[], Any]) -> int:
    """Do the work of a command; returns the exit status, and writes a line on standard error if it is not 0."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = _worked(work)
    except KeyboardInterrupt:
        status = _STOPPED
    return _flushed(status)


def _worked(work: Callable[[], Any]) -> int:
    try:
        return work() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else _said(str(end.code))
    except FedkinError as error:
        return _said(str(error))
    except KeyboardInterrupt:
        return _STOPPED
    except OSError as error:
        return _refused(error)
    except BaseException as error:
        return _misused(error) if hasattr(error, "format_message") else _failed(error)


def _misused(error: Any) -> int:
    """Wrong options, as click reports them; without any, it has printed the help."""
    if type(error).__name__ != "NoArgsIsHelpError":
        context = getattr(error, "ctx", None)
        help = f"; {context.command_path} --help says more" if context is not None else ""
        _said(f"{error.format_message().rstrip('.')}{help}")
    return int(error.exit_code)


def _refused(error: OSError) -> int:
    """A file that cannot be read or written."""
    if error.filename is not None:
        return _said(f"{os.fsdecode(error.filename)}: {error.strerror or error}")
    # Files are written by name; a stream that fails has none.
    return _said(f"standard output: {error.strerror}") if error.errno in _FULL else _failed(error)


def _failed(error: BaseException) -> int:
    """A fault of fedkin, or too little memory: the traceback goes into a file."""
    import tempfile
    import traceback

    from fedkin._version import __version__

    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    text = "".join(traceback.format_exception(error))
    about = f"fedkin {__version__}, Python {sys.version}\n{sys.platform}: {' '.join(map(ascii, sys.argv))}\n\n"
    try:
        number, path = tempfile.mkstemp(prefix="fedkin-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(about + text)
        told = f"please attach {path} to a report"
    except OSError as problem:
        told = f"its traceback cannot be written ({problem.strerror}); last: {' '.join(text.splitlines()[-3:-1])}"
    if isinstance(error, MemoryError) or "can't allocate memory" in what:
        _said(f"memory ran out ({what}): a smaller model, batch or number of workers takes less; if not, {told}")
    else:
        _said(f"fedkin itself failed ({what}): {told}")
    return _FAULT


def _said(text: str) -> int:
    """Write one line on standard error, without anything that a terminal obeys."""
    from fedkin.untrusted import shown

    bold = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    head = "\x1b[1;31merror:\x1b[0m" if bold else "error:"
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{head} {shown(' '.join(text.split()), _LONGEST)}\n")
    return _WRONG


def _flushed(status: int) -> int:
    """The status, after all that was printed has left; nothing is tried again when Python ends."""
    problem = _stuck(sys.stdout)
    if problem is not None:
        _let_go(sys.stdout)
        if problem.errno == errno.EPIPE:  # its reader wants no more, as `head` does
            status = status or _BROKEN
        elif not status:
            status = _said(f"standard output: {problem.strerror or problem}")
    if _stuck(sys.stderr) is not None:
        _let_go(sys.stderr)
    return status


def _stuck(stream: TextIO | None) -> OSError | None:
    """Why a stream takes no more."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except OSError as error:
        return error
    return None


def _let_go(stream: TextIO) -> None:
    """Let what is left in a stream's buffer go nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
