"""Holding out test samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedkin.errors import ConfigError
from fedkin.keys import rng

__all__ = ["hold_out", "hold_out_last", "rows_by_name"]


def rows_by_name(names: npt.NDArray[np.str_]) -> dict[str, npt.NDArray[np.int64]]:
    """The rows of every name, ascending; names in the order in which they first appear.

    >>> rows_by_name(np.array(["b", "a", "b"]))
    {'b': array([0, 2]), 'a': array([1])}
    """
    known, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    parts = np.split(order, np.searchsorted(number[order], np.arange(1, len(known))))
    return {str(known[i]): parts[i] for i in np.argsort(first)}


def hold_out(names: npt.NDArray[np.str_], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which samples are test samples: `fraction` of every name's samples, drawn with a key of (seed, name).

    A name keeps at least one training sample. It gives at least one test sample if it has two and the
    fraction is not 0. Raises ConfigError unless 0 <= fraction < 1.
    """
    return _held(names, fraction, lambda name, rows: rng(seed, "hold-out", name).permutation(rows))


def hold_out_last(names: npt.NDArray[np.str_], when: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.bool_]:
    """As `hold_out`, but the latest samples of every name; of those at one time, the ones stored last.

    >>> hold_out_last(np.array(["a", "a", "a", "b"]), np.array([3.0, 1.0, 2.0, 9.0]), 0.4).tolist()
    [True, False, False, False]
    """
    return _held(names, fraction, lambda name, rows: rows[np.argsort(when[rows], kind="stable")][::-1])


def _held(
    names: npt.NDArray[np.str_], fraction: float, order: Callable[[str, npt.NDArray[np.int64]], npt.NDArray[np.int64]]
) -> npt.NDArray[np.bool_]:
    """`fraction` of every name's samples, the first ones in the order of `order`."""
    if not 0 <= fraction < 1:
        raise ConfigError(f"test_fraction: expected at least 0 and below 1, got {fraction}")
    held = np.zeros(len(names), dtype=bool)
    for name, rows in rows_by_name(names).items():
        count = min(max(round(len(rows) * fraction), int(fraction > 0)), len(rows) - 1)
        held[order(name, rows)[:count]] = True
    return held
