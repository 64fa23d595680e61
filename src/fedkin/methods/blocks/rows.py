"""Rows of mixing weights, one per peer, as one matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["mixing_matrix"]


def mixing_matrix(rows: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, ...], npt.NDArray[np.float64]]:
    """(ids of the rows, sorted; W [n, n]): W_ij is the weight that peer i gives to peer j.

    Weights of peers without a row of their own are left out.

    >>> ids, mixing = mixing_matrix({"b": {"b": 1.0}, "a": {"a": 0.75, "b": 0.25}})
    >>> ids, mixing.tolist()
    (('a', 'b'), [[0.75, 0.25], [0.0, 1.0]])
    """
    ids = tuple(sorted(rows))
    place = {id: k for k, id in enumerate(ids)}
    mixing = np.zeros((len(ids), len(ids)))
    for id in ids:
        for other, weight in rows[id].items():
            if other in place:
                mixing[place[id], place[other]] = weight
    return ids, mixing
