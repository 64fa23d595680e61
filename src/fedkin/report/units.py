"""Numbers with their units and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def megabytes(count: float, like: float = 0.0) -> str:
    """Bytes in readable units: 1 kB is 1,000 bytes. like: another count, whose unit is taken.

    >>> megabytes(0), megabytes(24616), megabytes(98_464_000), megabytes(379_500_000, 1.1e9)
    ('0', '24.6 kB', '98.5 MB', '0.4 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if (like or count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B" if count else "0"


def figure(value: float, share: bool, digits: int, sign: str = "") -> str:
    """A figure with this many decimals, or if it is no share and nearer to 0 than 0.1, with this many digits.

    >>> figure(0.0123, True, 3, "+"), figure(0.000123456, False, 3), figure(12.3456, False, 3)
    ('+0.012', '0.000123', '12.346')
    """
    return f"{value:{sign}.{digits}{'f' if share or not 0 < abs(value) < 0.1 else 'g'}}"


def plural(number: int, word: str) -> str:
    """A number with its noun.

    >>> plural(1, "client"), plural(9000, "client")
    ('1 client', '9,000 clients')
    """
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def number_range(numbers: Sequence[int]) -> str:
    """The smallest and the largest of these numbers, or one number if all are equal.

    >>> number_range([1200, 7]), number_range([7, 7])
    ('7 to 1,200', '7')
    """
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def student(count: int) -> float:
    """Factor from the standard deviation of `count` values to half the 95 % interval of their mean (Student).

    >>> round(student(2), 2), student(1)
    (8.98, 0.0)
    """
    from scipy import special  # commands that only print units need not load it

    return 0.0 if count < 2 else float(special.stdtrit(count - 1, 0.975)) / math.sqrt(count)


def half_interval(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of the mean of these values; 0 for one value.

    >>> round(half_interval([0.8, 0.9]), 3), half_interval([0.8])
    (0.635, 0.0)
    """
    return student(len(values)) * statistics.stdev(values) if len(values) > 1 else 0.0
