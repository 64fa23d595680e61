"""How a command ends: one line on standard error says what went wrong, and scripts can read the exit status."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from fedkin.errors import FedkinError

__all__ = ["end_at_once", "exit_status", "on_interrupt", "quiet_interrupts"]

_USER_ERROR, _BROKEN_PIPE, _FEDKIN_ERROR, _INTERRUPTED = 2, 1, 70, 130
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LONGEST_MESSAGE = 2000


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the process silently: an interrupt during imports would print a long traceback."""
    before = on_interrupt(end_at_once)
    try:
        yield
    finally:
        on_interrupt(before)


def end_at_once(number: int, frame: object) -> None:
    """End the process at once with status 130; a signal handler."""
    os._exit(_INTERRUPTED)


def on_interrupt(handler: Any) -> Any:
    """Install a handler of Ctrl-C; return the previous one, or None outside of the main thread."""
    return signal.signal(signal.SIGINT, handler) if threading.current_thread() is threading.main_thread() else None


def exit_status(work: Callable[[], Any]) -> int:
    """Run a command and return its exit status; a status other than 0 comes with one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = _status_of(work)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    return _flush_output(status)


def _status_of(work: Callable[[], Any]) -> int:
    try:
        return work() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else _print_error(str(end.code))
    except FedkinError as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        return _file_error(error)
    except BaseException as error:
        return _usage_error(error) if hasattr(error, "format_message") else _internal_error(error)


def _usage_error(error: Any) -> int:
    """Report wrong options, as click words them; without any option, click has printed the help."""
    if type(error).__name__ != "NoArgsIsHelpError":
        context = getattr(error, "ctx", None)
        help = f"; {context.command_path} --help says more" if context is not None else ""
        _print_error(f"{error.format_message().rstrip('.')}{help}")
    return int(error.exit_code)


def _file_error(error: OSError) -> int:
    """Report a file that cannot be read or written."""
    if error.filename is not None:
        return _print_error(f"{os.fsdecode(error.filename)}: {error.strerror or error}")
    # Files are written by name; a stream that fails has none.
    return _print_error(f"standard output: {error.strerror}") if error.errno in _DISK_ERRORS else _internal_error(error)


def _internal_error(error: BaseException) -> int:
    """Report an error of fedkin itself, or too little memory; the traceback goes into a file."""
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
        _print_error(f"memory ran out ({what}): a smaller model, batch or number of workers takes less; if not, {told}")
    else:
        _print_error(f"fedkin itself failed ({what}): {told}")
    return _FEDKIN_ERROR


def _print_error(text: str) -> int:
    """Print one line on standard error, without control characters."""
    from fedkin.untrusted import shown

    bold = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    head = "\x1b[1;31merror:\x1b[0m" if bold else "error:"
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{head} {shown(' '.join(text.split()), _LONGEST_MESSAGE)}\n")
    return _USER_ERROR


def _flush_output(status: int) -> int:
    """Flush both streams and return the status; Python does not try again when it ends."""
    problem = _flush_problem(sys.stdout)
    if problem is not None:
        _discard(sys.stdout)
        if problem.errno == errno.EPIPE:  # its reader wants no more, as `head` does
            status = status or _BROKEN_PIPE
        elif not status:
            status = _print_error(f"standard output: {problem.strerror or problem}")
    if _flush_problem(sys.stderr) is not None:
        _discard(sys.stderr)
    return status


def _flush_problem(stream: TextIO | None) -> OSError | None:
    """Return the error with which a stream cannot be flushed."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except OSError as error:
        return error
    return None


def _discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the rest of its buffer goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
