"""Failures of clients: who, where and why; and the errors that end a run after too many failures."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isgenerator, unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fedkin.engines.privacy import BudgetSpent
from fedkin.engines.results import Missing, Undelivered
from fedkin.errors import FedkinError, GraphError, MethodError, NoField, RunError
from fedkin.untrusted import error_text

# The separator at the end excludes the files of another package, such as "fedkin_more", beside this one.
_OURS = str(Path(__file__).parents[1]) + os.sep
_REQUESTS = ("Ask", "Fit", "Infer", "Share")


def with_method_location(error: Exception, method: object) -> Exception:
    """Return the error in one line with file and line of the method's code; unchanged if it arose elsewhere.

    A method of fedkin's own is not blamed: an error there is a fault of fedkin.
    """
    explained = isinstance(error, FedkinError)
    if explained and not isinstance(error, (MethodError, GraphError)):
        return error
    file, line = _last_line(error.__cause__ if explained and error.__cause__ else error, method, explained)
    if not file or file in str(error):
        return error
    location = f"{file}, line {line}: "
    if explained:
        return type(error)(f"{location}{error}")
    return MethodError(f"{location}{_explanation(error)}")


@contextmanager
def method_errors(method: object) -> Iterator[None]:
    """Raise an error of the method's own code in one line with its place, as `with_method_location` does."""
    try:
        yield
    except Exception as error:
        explained = with_method_location(error, method)
        if explained is error:
            raise
        raise explained from error.__cause__ or error


def _explanation(error: Exception) -> str:
    """The error in a line, with the remedy for two frequent mistakes: a request without answer, and state in `self`."""
    if isinstance(error, NoField):
        return error_text(error)
    if "type=frozen_instance" in str(error):
        return "a method's fields are settings, which do not change: keep values in `client.state` or `server.state`"
    request = type(getattr(error, "obj", None)).__name__
    remedy = f": write `answer = yield from {request}(...)`" if request in _REQUESTS else ""
    return f"{type(error).__name__}: {error_text(error)}{remedy}"


def _last_line(error: BaseException, method: object, inside: bool) -> tuple[str, int]:
    """Return (file, line) of the last frame in the method's files; ("", 0) if there is none.

    Only frames below a function of the method count, since an observer in the same file may fail too. inside: all
    frames count. A loss is not called by the method; its error is a FedkinError already.
    """
    codes, last = set(_codes(method)), ("", 0)
    files = {code.co_filename for code in codes}
    for frame, line in traceback.walk_tb(error.__traceback__):
        inside = inside or frame.f_code in codes
        if inside and frame.f_code.co_filename in files:
            last = frame.f_code.co_filename, line
    return last


def place_of(flow: Any) -> str:
    """Return "FILE, line N: " of where a flow waits in the user's code; empty if it waits in fedkin's code only."""
    location = ""
    while isgenerator(flow) and flow.gi_frame is not None:
        if not flow.gi_code.co_filename.startswith(_OURS):
            location = f"{flow.gi_code.co_filename}, line {flow.gi_frame.f_lineno}: "
        flow = flow.gi_yieldfrom
    return location


def place_in(method: object, name: str) -> str:
    """Return "FILE, line N: " of where a method or its class defines a function; empty for fedkin's own code."""
    kind = method if isinstance(method, type) else type(method)
    function = getattr(kind, name, None)
    code = None if function is None else getattr(unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(_OURS):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}: "


def check_yields(method: object, name: str, flow: Any) -> None:
    """Raise MethodError for a function that makes requests but yields none: its `yield from` is missing."""
    if hasattr(flow, "send"):
        return
    code = getattr(unwrap(getattr(type(method), name)), "__code__", None)
    requests = [each for each in _REQUESTS if code is not None and each in code.co_names]
    if requests:
        raise MethodError(
            f"{place_in(method, name)}{name!r} makes {requests[0]} and never yields it: write "
            f"`answer = yield from {requests[0]}(...)`"
        )


def _codes(method: object) -> Iterator[CodeType]:
    """Yield the code of all functions in a method's classes that are not fedkin's own."""
    for kind in type(method).__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        if file.startswith(_OURS) or kind.__module__ in ("builtins", "abc") or kind.__module__.startswith("pydantic"):
            continue
        for part in vars(kind).values():
            function = unwrap(part) if callable(part) else getattr(part, "__func__", None)
            if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith(_OURS):
                yield function.__code__


@dataclass(frozen=True, eq=False)
class Failure:
    """A client's failure in a phase. injected: whether `[faults]`, `privacy.budget`, or the network caused it.

    cause: as it is recorded, FAILED or SPENT; over a network also LATE, GONE, STALE or REFUSED. error: to be raised.
    """

    id: str
    phase: str
    cause: Undelivered
    error: Exception
    injected: bool = False


class Crashed(MethodError):
    """A client failed because of `faults.crash`."""


class TooFew(RunError):
    """Fewer clients answered than `run.min_replies`, and `run.on_missing` is "stop"."""


_EXPECTED = (Crashed, BudgetSpent)  # failures that settings cause


class Failures:
    """The failures of clients since the last `take`; with `stop`, the first failure is raised at once."""

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop
        self.list: list[Failure] = []
        self.round = 0

    @contextmanager
    def of(self, id: str, phase: str) -> Iterator[None]:
        """Note an error of a client's own part in this context. Errors of the machine are raised."""
        try:
            yield
        except Exception as error:
            self.note(error, id, phase)

    def note(self, error: Exception, id: str, phase: str) -> None:
        """Note this error of a client's own part; raises it, with the client's name, if the run is to stop.

        Errors of the machine are raised as they are.
        """
        if isinstance(error, (RunError, MemoryError)):
            raise error
        named = self._named(error, id, phase)
        if self.stop and not isinstance(error, _EXPECTED):
            if named is error:
                raise error
            raise named from error.__cause__
        kind = Missing.SPENT if isinstance(error, BudgetSpent) else Missing.FAILED
        cause = Undelivered(kind, words_of(error))
        self.list.append(Failure(id, phase, cause, named, isinstance(error, _EXPECTED)))

    def _named(self, error: Exception, id: str, phase: str) -> Exception:
        """Return an error that names round, client and phase; errors of a user's own code stay unchanged."""
        if not isinstance(error, FedkinError):
            return error
        named = MethodError(f"round {self.round}, client {id!r}, phase {phase!r}: {error}")
        named.__cause__ = error.__cause__
        return named

    def take(self) -> list[Failure]:
        """Return the failures so far, and forget them."""
        failures, self.list = self.list, []
        return failures


def raise_if_all(asked: int, failures: Iterable[Failure], unsent: Mapping[str, Exception] | None = None) -> None:
    """Raise the first error if all `asked` clients have failed, not counting failures that a setting caused.

    unsent: by client, why its message could not be sent.
    """
    errors = {failure.id: failure.error for failure in failures if not failure.injected} | dict(unsent or {})
    if asked and len(errors) == asked:
        raise next(iter(errors.values()))


def words_of(error: Exception) -> str:
    """Return the error in one line for the records, with its type if it is not fedkin's."""
    return error_text(error) if isinstance(error, FedkinError) else f"{type(error).__name__}: {error_text(error)}"
