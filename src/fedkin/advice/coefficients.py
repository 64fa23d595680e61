"""Coefficients of a small linear model of each client, and who has the same: do labels given inputs differ?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedkin.federation import Samples, Task

__all__ = ["MOST_CLIENTS", "Coefficients", "alike", "coefficients_of", "grouped"]

Array = npt.NDArray[np.float64]

MOST_CLIENTS = 100
_MOST_INPUTS, _MOST_CLASSES = 60, 10
# Of a merge of two groups, and of one client and another.
_ALPHA, _NEAR = 0.01, 0.05
_RIDGE, _STEPS = 1.0, 8


class Coefficients(NamedTuple):
    """Slopes of one model for each class but one, or for each target, [k, d]; their precision matrices [k, d, d]."""

    slopes: Array
    precision: Array


def coefficients_of(samples: Samples, task: Task) -> Coefficients | None:
    """Of one client: logistic models of each class against the others, or least squares; None for too many columns.

    A ridge of 1 sample keeps the slopes finite; the intercept is left out, so that class shares alone differ in none.
    """
    x = samples.inputs(slice(None)).double().numpy()
    if x.shape[1] > _MOST_INPUTS or task.classes > _MOST_CLASSES:
        return None
    x = np.column_stack([x, np.ones(len(x))])
    y = samples.labels()
    if task.labels:
        labels = y.numpy()
        wanted = [1] if task.classes == 2 else range(task.classes)
        fits = [_logistic(x, (labels == one).astype(np.float64)) for one in wanted]
    else:
        fits = [_least_squares(x, column) for column in y.double().numpy().T]
    return Coefficients(np.stack([slopes for slopes, _ in fits]), np.stack([held for _, held in fits]))


def grouped(each: Mapping[str, Coefficients]) -> dict[str, int]:
    """Groups: the two that differ least are joined, until the next two differ at level .01 (Wald's test, corrected)."""
    order = _by_content(each)
    slopes = np.stack([each[id].slopes for id in order])
    precision = np.stack([each[id].precision for id in order])
    label = np.arange(len(order))
    alive = list(range(len(order)))
    p = _pairs(slopes, precision)
    limit = _ALPHA / max(1, len(order) - 1)
    while len(alive) > 1:
        inside = p[np.ix_(alive, alive)]
        best = int(np.argmax(inside))
        one, other = sorted((alive[best // len(alive)], alive[best % len(alive)]))
        if p[one, other] < limit:
            break
        both = precision[one] + precision[other]
        weighed = np.einsum("kij,kj->ki", precision[one], slopes[one]) + np.einsum(
            "kij,kj->ki", precision[other], slopes[other]
        )
        slopes[one] = np.linalg.solve(both, weighed[..., None])[..., 0]
        precision[one] = both
        label[label == other] = one
        alive.remove(other)
        rest = [place for place in alive if place != one]
        for place in rest:
            pair = [one, place]
            p[one, place] = p[place, one] = _pairs(slopes[pair], precision[pair])[0, 1]
    return {id: int(label[place]) for place, id in enumerate(order)}


def alike(each: Mapping[str, Coefficients]) -> dict[str, tuple[str, ...]]:
    """Of each client, those whose coefficients cannot be told from its own at level .05."""
    order = _by_content(each)
    p = _pairs(np.stack([each[id].slopes for id in order]), np.stack([each[id].precision for id in order]))
    return {
        id: tuple(sorted(order[other] for other in np.flatnonzero(p[place] >= _NEAR) if other != place))
        for place, id in enumerate(order)
    }


def _by_content(each: Mapping[str, Coefficients]) -> list[str]:
    return sorted(each, key=lambda id: (each[id].slopes.tobytes(), id))


def _pairs(slopes: Array, precision: Array) -> Array:
    """[m, m] p-values of "the two have the same slopes"; -1 on the diagonal."""
    m, k, d = slopes.shape
    spread = np.linalg.inv(precision)
    p = np.full((m, m), -1.0)
    for row in range(m - 1):
        apart = slopes[row] - slopes[row + 1 :]
        both = spread[row] + spread[row + 1 :]
        distance = np.einsum("mki,mki->m", apart, np.linalg.solve(both, apart[..., None])[..., 0])
        p[row, row + 1 :] = p[row + 1 :, row] = stats.chi2.sf(distance, k * d)
    return p


def _logistic(x: Array, y: Array) -> tuple[Array, Array]:
    """Slopes by Newton's steps, and their precision with the intercept taken out (Schur complement)."""
    d = x.shape[1] - 1
    ridge = np.diag([_RIDGE] * d + [1e-6])
    beta = np.zeros(d + 1)
    information = ridge
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        information = (x * np.maximum(chance * (1 - chance), 1e-6)[:, None]).T @ x + ridge
        step = np.linalg.solve(information, x.T @ (y - chance) - ridge @ beta)
        beta = beta + step * min(1.0, 5.0 / (1e-12 + float(np.abs(step).max())))
    return beta[:d], _without_intercept(information)


def _least_squares(x: Array, y: Array) -> tuple[Array, Array]:
    d = x.shape[1] - 1
    information = x.T @ x + np.diag([_RIDGE] * d + [1e-6])
    beta = np.asarray(np.linalg.solve(information, x.T @ y), dtype=np.float64)
    variance = max(float(np.square(y - x @ beta).sum()) / max(len(y) - d - 1, 1), 1e-12)
    precision: Array = _without_intercept(information) / variance
    return beta[:d], precision


def _without_intercept(information: Array) -> Array:
    side = information[:-1, -1]
    held: Array = information[:-1, :-1] - np.outer(side, side) / information[-1, -1]
    return held
