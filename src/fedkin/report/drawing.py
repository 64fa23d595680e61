"""Numbers made small for drawing: rounds, edges, positions, matrices of bounded size, and bytes for the page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NOTHING", "blocks", "evenly", "layout", "pack", "pack_values", "round_half", "strongest"]

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

# In packed uint16: no value for this client and round.
NOTHING = 65535


def evenly(rounds: Sequence[int], most: int) -> list[int]:
    """At most `most` of the rounds, evenly spread, including the first and the last (the last if only one).

    >>> evenly([1, 2, 3, 4, 5], 3), evenly([1, 2], 3), evenly([1, 2, 3], 1)
    ([1, 3, 5], [1, 2], [3])
    """
    if len(rounds) <= most:
        return list(rounds)
    if most == 1:
        return [rounds[-1]]
    return [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int)).tolist()]


def strongest(weights: Array, per_node: int) -> tuple[Indices, Indices]:
    """The pairs (rows, columns; row < column) that are among the `per_node` largest positive weights of a node.

    >>> [part.tolist() for part in strongest(np.array([[0, 3, 1], [3, 0, 2], [1, 2, 0]]), 1)]
    [[0, 1], [1, 2]]
    """
    n = len(weights)
    if n < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    both = np.maximum(weights, weights.T).astype(np.float64)
    np.fill_diagonal(both, 0.0)
    keep = min(per_node, n - 1)
    # The sort is stable: ties go to the first client, on every machine.
    order = np.argsort(-both, axis=1, kind="stable")[:, :keep]
    row = np.repeat(np.arange(n), keep)
    column = order.ravel()
    positive = both[row, column] > 0
    low, high = np.minimum(row, column)[positive], np.maximum(row, column)[positive]
    pairs = np.unique(low * n + high)
    return pairs // n, pairs % n


def layout(attraction: Array, iterations: int = 120, seed: int = 0) -> Array:
    """Positions in [-1, 1]^2 by springs (Fruchterman and Reingold 1991): the same for the same input.

    attraction: [n, n], symmetric, at least 0; pairs with a larger attraction are closer together.
    """
    n = len(attraction)
    if n == 1:
        return np.zeros((1, 2))
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(n) / n
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(scale=0.1, size=(n, 2))
    apart = 1.0 / np.sqrt(n)
    largest = attraction.max()
    # Springs are weak and the pull to the centre is strong: groups are separated, and members do not overlap.
    pull = 0.15 * attraction / largest if largest > 0 else attraction
    for step in range(iterations):
        squares = (place**2).sum(1)
        distance2 = np.maximum(squares[:, None] + squares[None, :] - 2 * place @ place.T, 1e-6)
        # Repulsion k^2 / d, attraction w d^2 / k.
        force = apart**2 / distance2 - pull * np.sqrt(distance2) / apart
        move = place * force.sum(1, keepdims=True) - force @ place - place
        length = np.maximum(np.sqrt((move**2).sum(-1, keepdims=True)), 1e-9)
        heat = 0.2 * (1 - step / iterations)
        place = place + move / length * np.minimum(length, heat)
    place = place - (place.max(0) + place.min(0)) / 2
    return np.asarray(place / max(float(np.abs(place).max()), 1e-9))


def blocks(matrix: Array, most: int) -> tuple[Array, Indices]:
    """The matrix with at most `most` rows, as means of neighbouring rows, and the first row of each block.

    >>> blocks(np.arange(16.0).reshape(4, 4), 2)[0]
    array([[ 2.5,  4.5],
           [10.5, 12.5]])
    """
    n = len(matrix)
    if n <= most:
        return matrix, np.arange(n)
    starts = np.unique(np.linspace(0, n, most, endpoint=False).astype(np.int64))
    summed = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    sizes = np.diff(np.append(starts, n))
    return summed / np.outer(sizes, sizes), starts


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
