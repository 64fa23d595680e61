"""Numbers packed for the page: little-endian bytes in base64, much smaller than JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.report.drawing import evenly

__all__ = ["NOTHING", "pack", "pack_values"]

# In packed uint16: no value for this client and round.
NOTHING = 65535


def pack(values: npt.ArrayLike, kind: str) -> str:
    """An array as base64 of its little-endian bytes; kind: "u1" or "u2".

    >>> pack([1, 256], "u2")
    'AQAAAQ=='
    """
    return base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()


def pack_values(
    by_round: Mapping[int, Mapping[str, float]], ids: Sequence[str], most: int, share: bool = True
) -> dict[str, Any]:
    """Values of clients over at most `most` rounds: uint16, one client after another.

    share: values in [0, 1], in units of 1/10,000. Otherwise "low" is the smallest value, and "step" is one unit.
    """
    rounds = evenly(sorted(by_round), most)
    kept = [value for round in rounds for value in by_round[round].values()]
    low, step = (0.0, 1e-4) if share or not kept else (min(kept), (max(kept) - min(kept)) / (NOTHING - 1) or 1.0)
    table = np.full((len(ids), len(rounds)), NOTHING, dtype=np.uint16)
    at = {id: row for row, id in enumerate(ids)}
    for column, round in enumerate(rounds):
        for id, value in by_round[round].items():
            table[at[id], column] = round_half(value) if share else int((value - low) / step + 0.5)
    scale = {} if share else {"low": low, "step": step}
    return {"rounds": rounds, "all": len(by_round), "share": pack(table, "u2"), **scale}


def round_half(share: float) -> int:
    """A share in units of 1/10,000."""
    return int(share * 10_000 + 0.5)
