"""Whether clients' targets differ by more than chance, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

_ALPHA = 0.001
# Below this effect a difference is of no account, however sure it is.
_EFFECT = 0.1


class Skew(NamedTuple):
    """How unlike clients' targets are.

    effect: 0 (alike) to 1; p: of "all are of one distribution"; apart: the clients that differ most from all, the
    furthest first.
    """

    effect: float
    p: float
    apart: tuple[str, ...]

    @property
    def matters(self) -> bool:
        """Whether it is beyond chance (p < .001), and an effect of at least .1."""
        return self.p < _ALPHA and self.effect >= _EFFECT


def of_classes(counts: Mapping[str, Any]) -> Skew | None:
    """Skew of classes from {client: rows of each class}: Cramer's V, and Pearson's chi-squared test.

    None with one client or one class. Where classes are rare the test's p is by 2,000 shuffles of the rows.

    >>> found = of_classes({"a": [90, 10], "b": [10, 90]})
    >>> round(found.effect, 2), found.matters
    (0.8, True)
    """
    ids = sorted(counts)
    table = np.array([counts[id] for id in ids], dtype=np.float64)
    table = table[:, table.sum(0) > 0]
    kept = table.sum(1) > 0
    ids, table = [id for id, keep in zip(ids, kept, strict=True) if keep], table[kept]
    if min(table.shape) < 2:
        return None
    share, size = table.sum(0) / table.sum(), table.sum(1)
    expected = size[:, None] * share
    each = ((table - expected) ** 2 / expected).sum(1)
    value = float(each.sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    p = float(stats.chi2.sf(value, freedom)) if expected.min() >= 1 else _shuffled(table, value)
    # Cramer's V without the part that chance adds (Bergsma, 2013).
    total = table.sum()
    rows, columns = (side - (side - 1) ** 2 / (total - 1) for side in table.shape)
    effect = np.sqrt(max(0.0, value / total - freedom / (total - 1)) / max(min(rows, columns) - 1, 1e-9))
    return Skew(min(float(effect), 1.0), p, _furthest(ids, each / size))


def of_numbers(values: Mapping[str, Any]) -> Skew | None:
    """Skew of numbers from {client: targets of its rows}: the correlation ratio of their ranks, and Kruskal and Wallis.

    None with one client, or if all numbers are equal.
    """
    known = {id: np.asarray(some, dtype=np.float64) for id, some in sorted(values.items()) if len(some)}
    every = np.concatenate(list(known.values())) if known else np.zeros(0)
    if len(known) < 2 or np.ptp(every) == 0 or len(every) <= len(known):
        return None
    value, p = stats.kruskal(*known.values())
    groups, total = len(known), len(every)
    effect = np.sqrt(max(0.0, (float(value) - groups + 1) / (total - groups)))
    middle = float(np.median(every))
    return Skew(min(float(effect), 1.0), float(p), _furthest(
        list(known), np.array([abs(float(np.median(some)) - middle) for some in known.values()])
    ))  # fmt: skip


def _furthest(ids: list[str], distance: Any) -> tuple[str, ...]:
    order = np.lexsort((np.arange(len(ids)), -np.asarray(distance)))
    return tuple(ids[place] for place in order[:3])


def _shuffled(table: Any, value: float, draws: int = 2000) -> float:
    """The share of tables with these margins that are at least as unlike, of shuffled rows."""
    rng = np.random.default_rng(0)
    drawn = stats.random_table(table.sum(1).astype(np.int64), table.sum(0).astype(np.int64)).rvs(
        draws, random_state=rng
    )
    expected = table.sum(1)[:, None] * table.sum(0) / table.sum()
    found = ((drawn - expected) ** 2 / expected).sum((1, 2))
    return float((1 + (found >= value * (1 - 1e-12)).sum()) / (draws + 1))
