"""Numbers with their units."""

from __future__ import annotations

__all__ = ["many", "megabytes"]


def megabytes(count: float) -> str:
    """Bytes in readable units: 1 kB is 1,000 bytes.

    >>> megabytes(0), megabytes(24616), megabytes(98_464_000)
    ('0', '24.6 kB', '98.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B" if count else "0"


def many(number: int, word: str) -> str:
    """A number with its noun.

    >>> many(1, "client"), many(9000, "client")
    ('1 client', '9,000 clients')
    """
    return f"{number:,} {word}" + ("" if number == 1 else "s")
