"""Errors that a person can act on: one line that says what was wrong, where, and what to do.

FedkinError
  ConfigError   an experiment file, a setting or a command-line option
    WrongSetting  a setting that is given in Python: it is a ValueError too
  DataError     a data file, an array or a client's samples
  GraphError    a matrix, labels or a graph file given to fedkin.graph
  MethodError   something unusable that a method yields or receives
  RunError      a run folder, a checkpoint or an engine
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any
from warnings import catch_warnings, simplefilter

__all__ = [
    "ConfigError", "DataError", "FedkinError", "GraphError", "MethodError", "NoField", "RunError", "WrongSetting",
    "first_few", "imported", "nearest",
]  # fmt: skip

IN_PYTHON = " (in Python the same call with out=)"  # what --resume is there


class FedkinError(Exception):
    """Base of all errors that a user can act on; the command line prints its text and exits with 2."""


class ConfigError(FedkinError):
    """A setting that is unknown, missing or out of range; args: one text for each wrong setting."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class WrongSetting(ConfigError, ValueError):
    """Settings made in Python with a value that is unknown, missing or out of range."""


class DataError(FedkinError):
    """A file or array that is missing, truncated, mislabelled or wrongly shaped."""


class GraphError(FedkinError, ValueError):
    """A matrix, labels or graph file that a graph stage cannot use."""


class MethodError(FedkinError):
    """A request, message or result that breaks the contract between a method and its runner."""


class RunError(FedkinError):
    """A run folder or checkpoint that cannot be written, read or resumed."""


class NoField(KeyError, AttributeError):
    """A message has no such field; args: the name, and the names of the existing fields."""

    def __str__(self) -> str:
        name, known = self.args
        return f"the message has no field {name!r}; {nearest(name, known) if known else 'it is empty'}"


class OnlyMean(NoField, MethodError):
    """A reply lacks a field, because its method asked only for the field's mean; args: the error text."""

    def __str__(self) -> str:
        return str(self.args[0])


def nearest(word: object, known: Iterable[str]) -> str:
    """The hint to append to "unknown name": the closest known names, or all known names if none is close.

    >>> nearest("louvian", ["louvain", "leiden"])
    "did you mean 'louvain'?"
    """
    names = sorted(known)
    close = get_close_matches(str(word), names, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    return f"known: {first_few(names, 40)}" if names else "there are none"


def first_few(texts: Iterable[str], most: int = 8, between: str = ", ") -> str:
    """The first of these texts, and how many more there are.

    >>> first_few(["a", "b", "c"], most=2), first_few(["a", "b"], most=2)
    ('a, b and 1 more', 'a, b')
    """
    every = list(texts)
    return between.join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def imported(package: str, where: str, extra: str) -> Any:
    """Import a package of an optional extra; raises a ConfigError that says what needs the package.

    >>> imported("no_such", "run.engine = 'far'", "far")
    Traceback (most recent call last):
    fedkin.errors.ConfigError: run.engine = 'far' needs no_such (No module named 'no_such'): pip install 'fedkin[far]'
    """
    try:
        with catch_warnings():
            simplefilter("ignore")  # packages warn about each other
            return import_module(package)
    except ImportError as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{where} needs {package} ({why}): pip install 'fedkin[{extra}]'") from None
