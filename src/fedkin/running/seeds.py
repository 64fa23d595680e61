"""Seeds of several runs, as a text names them."""

from __future__ import annotations

from fedkin.errors import ConfigError

__all__ = ["listed", "numbers"]

_MOST = 10_000  # of one range: a slip of the finger must not plan a year's work


def listed(text: str, option: str) -> list[str]:
    """The parts of a comma-separated text, none of them empty; raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{option} {text!r}: expected names separated by commas")
    return parts


def numbers(text: str, option: str = "--seeds") -> list[int]:
    """Seeds from a text such as "0,1,2" or "0-4,7"; raises ConfigError.

    >>> numbers("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in listed(text, option):
        ends = part.split("-") if part.count("-") == 1 else [part]
        if wrong := [end for end in ends if not (end.isascii() and end.isdigit())]:
            raise ConfigError(f"{option}: expected whole numbers from 0 up, got {wrong[0] or part!r}; a range is 0-4")
        if long := [end for end in ends if len(end) > 18]:
            raise ConfigError(f"{option}: expected whole numbers below 10^18, got {long[0]}")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last - first >= _MOST:
            raise ConfigError(f"{option} {part}: expected the smaller number first, and at most {_MOST:,} seeds")
        found += range(first, last + 1)
    return found
