"""Groups that surely differ, but by too little to pay for the samples lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedkin.graph._check import Array, Labels
from fedkin.graph.same.stack import Stack

__all__ = ["SHARE", "merged_when_close"]

# Where splitting broke even in the study: .03 in x and .01 in xy.
SHARE = {"x": 1.0, "xy": 1 / 3, "y": 1.0}


def merged_when_close(
    stacks: Mapping[str, Stack], leaves: list[tuple[Labels, str]], least: float
) -> list[tuple[Labels, str]]:
    """Groups "same" and "alone" merged, nearest first, while one pair is near in every block."""
    kept = [leaf for leaf in leaves if leaf[1] not in ("same", "alone")]
    free = [leaf for leaf in leaves if leaf[1] in ("same", "alone")]
    while len(free) > 1:
        gaps = _gaps(stacks, [rows for rows, _ in free], least)
        a, b = sorted(divmod(int(np.argmin(gaps)), len(free)))
        if not gaps[a, b] < 1:
            break
        free.append((np.sort(np.concatenate([free[a][0], free[b][0]])), "same"))
        del free[b], free[a]
    return kept + free


def _gaps(stacks: Mapping[str, Stack], groups: list[Labels], least: float) -> Array:
    """Debiased squared distance of means / tr S, in units of what pays; the largest over blocks."""
    worst = np.full((len(groups), len(groups)), -np.inf)
    for name, share in SHARE.items():
        if name not in stacks:
            continue
        stack = stacks[name]
        t1 = max(float(stack.pooled()[0][0]), 1e-9)
        n = np.array([max(stack.n[rows].sum(), 1e-9) for rows in groups])
        means = np.stack([stack.n[rows] @ stack.means[rows] for rows in groups]) / n[:, None]
        squares = np.square(means[:, None] - means).sum(axis=-1) / t1
        worst = np.maximum(worst, (squares - 1 / n - 1 / n[:, None]) / (least * share))
    np.fill_diagonal(worst, np.inf)
    return worst
