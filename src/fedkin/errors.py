"""Errors that a person can act on: one line that says what was wrong, where, and what to do.

FedkinError
  ConfigError   an experiment file, a setting or a command-line option
    WrongSetting  one that is given in Python: it is a ValueError too
  DataError     a data file, an array or a client's samples
  GraphError    a matrix, labels or a graph file given to fedkin.graph
  MethodError   something that a method yields or receives and cannot be used
  RunError      a run folder, a checkpoint or an engine
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ConfigError",
    "DataError",
    "FedkinError",
    "GraphError",
    "MethodError",
    "NoField",
    "RunError",
    "WrongSetting",
    "nearest",
]


class FedkinError(Exception):
    """Base of all errors that a user can act on; the command line prints its text and exits with 2."""


class ConfigError(FedkinError):
    """A setting that is unknown, missing or out of range; with several texts, one for each that is wrong."""

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
    """A message has no such field; made with the name, and the names of the fields that there are."""

    def __str__(self) -> str:
        name, known = self.args
        return f"the message has no field {name!r}; {nearest(name, known) if known else 'it is empty'}"


class OnlyMean(NoField, MethodError):
    """A reply lacks the field of which its method has asked for the mean; made with the words."""

    def __str__(self) -> str:
        return str(self.args[0])


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint to append to "unknown name": the closest known names, or all of them if none is close.

    >>> nearest("louvian", ["louvain", "leiden"])
    "did you mean 'louvain'?"
    """
    names = sorted(known)
    close = get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "known: " + ", ".join(names)
