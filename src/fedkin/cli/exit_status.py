"""How a command ends: one line on standard error says what went wrong, and scripts can read the exit status."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedkin.errors import FedkinError

_USER_ERROR, _BROKEN_PIPE, _FEDKIN_ERROR, _INTERRUPTED = 2, 1, 70, 130
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LONGEST_MESSAGE = 2000


def end_at_once(number: int, frame: object) -> None:
    """End the process at once with status 130; a signal handler. An exception in an import would print a traceback."""
    os._exit(_INTERRUPTED)


def on_interrupt(handler: Any) -> Any:
    """Install a handler of Ctrl-C; return the previous one, or None outside of the main thread."""
    return signal.signal(signal.SIGINT, handler) if threading.current_thread() is threading.main_thread() else None


def exit_status(work: Callable[[], Any]) -> int:
    """Run a command and return its exit status; a status other than 0 comes with one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    status = _status_of(work)
    # Flush here: when Python flushes at exit, it does not say what went wrong.
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not status:
                # A reader that closed the pipe, as `head` does, gets no error message.
                closed = error.errno == errno.EPIPE
                status = _BROKEN_PIPE if closed else _print_error(f"standard output: {error.strerror or error}")
    return status


def _status_of(work: Callable[[], Any]) -> int:
    try:
        return work() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            return _print_error(end.code)
        return _ended_early(end)
    except FedkinError as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        return _disk_error(error)
    except BaseException as error:
        return _usage_error(error) if hasattr(error, "format_message") else _internal_error(error)


def _disk_error(error: OSError) -> int:
    """Report an error of a file, which has a name, or of a stream, which has none."""
    if error.filename is not None:
        return _print_error(f"{os.fsdecode(error.filename)}: {error.strerror or error}")
    known = error.errno in _DISK_ERRORS
    return _print_error(f"standard output: {error.strerror}") if known else _internal_error(error)


def _ended_early(end: SystemExit) -> int:
    """Return the status with which fedkin or a library ends the command; report a user's file that ends it."""
    import traceback

    plugins = sys.modules.get("fedkin.running.plugins")
    for at in reversed(traceback.extract_tb(end.__traceback__)):
        if plugins is not None and plugins.is_own(at.filename):
            where = f"{at.filename}, line {at.lineno}"
            return _print_error(f"{where}: SystemExit({end.code}) ends the command; raise another error")
    return int(end.code or 0)


def _usage_error(error: Any) -> int:
    """Report wrong options, as click words them; without any option, click has printed the help."""
    if type(error).__name__ != "NoArgsIsHelpError":
        context = getattr(error, "ctx", None)
        more = f"; {context.command_path} --help says more" if context is not None else ""
        _print_error(f"{error.format_message().rstrip('.')}{more}")
    return int(error.exit_code)


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
        advice = f"please attach {path} to a report"
    except OSError as problem:
        advice = f"its traceback cannot be written ({problem.strerror}); last: {' '.join(text.splitlines()[-3:-1])}"
    if isinstance(error, MemoryError) or "can't allocate memory" in what:
        _print_error(
            f"memory ran out ({what}): a smaller model, batch or number of workers takes less; if not, {advice}"
        )
    else:
        _print_error(f"fedkin itself failed ({what}): {advice}")
    return _FEDKIN_ERROR


def _print_error(text: str) -> int:
    """Print one line on standard error, without control characters."""
    from fedkin.untrusted import escaped

    bold = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    head = "\x1b[1;31merror:\x1b[0m" if bold else "error:"
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{head} {escaped(' '.join(text.split()), _LONGEST_MESSAGE)}\n")
    return _USER_ERROR
