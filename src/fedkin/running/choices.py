"""Settings and the values to try for each, in a tuning or a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.errors import ConfigError, nearest
from fedkin.methods import METHODS
from fedkin.records.controls import parted
from fedkin.running.changes import setting_value
from fedkin.running.own import placed
from fedkin.running.own_tables import named_in
from fedkin.untrusted import shown

__all__ = ["Choice", "check_methods", "grid"]


@dataclass(frozen=True)
class Choice:
    """A setting and the values to try, with absolute paths of files; method: the only method that it is for."""

    path: str
    values: tuple[Any, ...]
    method: str | None = None

    @classmethod
    def parse(cls, text: str, option: str = "--try") -> Choice:
        """Read "training.lr=0.01,0.1", or "tfl:method.q=0.1,1" for one method; raises ConfigError naming the option."""
        where, equals, values = text.partition("=")
        method, colon, path = where.strip().rpartition(":")
        parts = _parts(values)
        if not equals or not path or not all(parts) or (colon and not method):
            raise ConfigError(
                f"{option} {text!r}: expected section.field=value,value or METHOD:section.field=value,value"
            )
        where = f"{option} {shown(text, 80)}"
        (method,), _ = named_in([method], "method", Path(), where)
        if method and method not in METHODS:
            raise ConfigError(f"{option} {text!r}: no method {method!r}; {nearest(method, METHODS)}")
        return cls(path, tuple(placed(setting_value(part, where)) for part in parts), method or None)


def _parts(values: str) -> list[str]:
    """Cut at the commas that are not inside brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in values:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "[{") - (char in "]}") if not quote else 0
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def check_methods(choices: Sequence[Choice], methods: Iterable[str], option: str) -> None:
    """Raise ConfigError for a choice that is for a method which does not run, nor any control of it."""
    known = list(dict.fromkeys(parted(name)[0] for name in methods))
    for choice in choices:
        if choice.method is not None and choice.method not in known:
            raise ConfigError(
                f"{option} {choice.method}:{choice.path}: method {choice.method!r} does not run here; "
                f"{nearest(choice.method, known)}"
            )


def grid(choices: Sequence[Choice], method: str) -> list[dict[str, Any]]:
    """Return all combinations of the values for a method, or for a control, which has those of its method.

    >>> grid([Choice("training.lr", (0.1, 1.0)), Choice("method.q", (2,), "tfl")], "tfl")
    [{'training.lr': 0.1, 'method.q': 2}, {'training.lr': 1.0, 'method.q': 2}]
    """
    mine = [choice for choice in choices if choice.method in (None, parted(method)[0])]
    combined = itertools.product(*(choice.values for choice in mine))
    return [dict(zip([choice.path for choice in mine], values, strict=True)) for values in combined]
