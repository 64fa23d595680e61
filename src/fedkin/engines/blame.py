"""Where in a method's own code a mistake is: its file and line, for errors in one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from inspect import isgenerator, unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fedkin.errors import FedkinError, GraphError, MethodError, NoField
from fedkin.untrusted import said

__all__ = ["blamed", "forgotten", "place_in", "place_of"]

# With its separator: the files of a package "fedkin_more" beside this one are not fedkin's own.
_OURS = str(Path(__file__).parents[1]) + os.sep
_REQUESTS = ("Ask", "Fit", "Infer", "Share")


def blamed(error: Exception, method: object) -> Exception:
    """Return an error in one line with file and line of the method's own code; the same one if it is not in that.

    A method of fedkin's own is not blamed: what goes wrong there is a fault of fedkin.
    """
    kept = isinstance(error, FedkinError)
    if kept and not isinstance(error, (MethodError, GraphError)):
        return error
    codes = set(_codes(method))
    files, place = {code.co_filename for code in codes}, ""
    # What is raised elsewhere, by a watcher of the same file, is no mistake of the method. A loss that fails is said
    # to have failed, and is not called by the method.
    inside = kept
    for frame, line in traceback.walk_tb((error.__cause__ if kept and error.__cause__ else error).__traceback__):
        inside = inside or frame.f_code in codes
        if inside and frame.f_code.co_filename in files:
            place = f"{frame.f_code.co_filename}, line {line}: "
    if not place or place.partition(", line")[0] in str(error):
        return error
    if kept:
        return type(error)(f"{place}{error}")
    kind = "" if isinstance(error, NoField) else f"{type(error).__name__}: "
    return MethodError(f"{place}{kind}{said(error)}")


def place_of(flow: Any) -> str:
    """Return "FILE, line N: " of where a flow waits in code that is not fedkin's; empty if it is nowhere there."""
    place = ""
    while isgenerator(flow) and flow.gi_frame is not None:
        if not flow.gi_code.co_filename.startswith(_OURS):
            place = f"{flow.gi_code.co_filename}, line {flow.gi_frame.f_lineno}: "
        flow = flow.gi_yieldfrom
    return place


def place_in(method: object, name: str) -> str:
    """Return "FILE, line N: " of where a method, or a class of them, defines a function; empty for fedkin's own."""
    kind = method if isinstance(method, type) else type(method)
    function = unwrap(getattr(kind, name, None) or _nothing)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(_OURS):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}: "


def forgotten(method: object, name: str, flow: Any) -> None:
    """Raise MethodError for a flow that has ended without a request, though it makes some: its `yield from` is gone."""
    if hasattr(flow, "send"):
        return
    code = getattr(unwrap(getattr(type(method), name)), "__code__", None)
    made = [each for each in _REQUESTS if code is not None and each in code.co_names]
    if made:
        raise MethodError(
            f"{place_in(method, name)}{name!r} makes {made[0]} and never yields it: write "
            f"`answer = yield from {made[0]}(...)`"
        )


def _nothing() -> None:
    """Stands for a flow that is not there."""


def _codes(method: object) -> Iterator[CodeType]:
    """The code of the functions of a method's classes that are not fedkin's."""
    for kind in type(method).__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        if file.startswith(_OURS) or kind.__module__ in ("builtins", "abc") or kind.__module__.startswith("pydantic"):
            continue
        for part in vars(kind).values():
            function = unwrap(part) if callable(part) else getattr(part, "__func__", None)
            if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith(_OURS):
                yield function.__code__
