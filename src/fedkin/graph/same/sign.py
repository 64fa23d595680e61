"""The client's side: samples in, signature out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array
from fedkin.graph.same.effective import repeats, serial
from fedkin.graph.same.moments import Moments, cross_traces
from fedkin.graph.same.plan import Plan, as_classes, as_samples
from fedkin.graph.same.signature import Cells, Signature
from fedkin.keys import rng as keyed

__all__ = ["sign"]

# A class of fewer samples says nothing of its mean; leaving it out costs nothing.
_FEWEST = 3
# In deviations within clients.
_FAR = 2.0


def sign(plan: Plan, x: Any, y: Any = None, *, ordered: bool = True) -> Signature:
    """What a client sends of its samples x [n, ...] and targets y [n], for a plan that all clients share.

    y: classes as whole numbers if the plan has classes, floats if its target is a number, None if neither.
    ordered: the stored order may mean something, so that samples that are like their neighbours count for
    less; False if samples are in a random order or sorted by something.

    block x: mean of cos(Wx + b) sqrt(2 / F), random Fourier features (Rahimi and Recht 2007). block xy: the
    covariance of Vx with a random sign per class. block y: shares of classes. cells: means of classes.

    >>> import numpy as np
    >>> from fedkin.graph import Spread
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(100, 20)), rng.integers(10, size=100)
    >>> plan = Plan.of([Spread.of(x, y)])
    >>> one = sign(plan, x, y)
    >>> list(one.blocks), one.cells.means.shape, len(one.to_bytes()) < 4096
    (['x', 'xy', 'y'], (10, 32), True)
    """
    x = as_samples(x)
    if x.shape[1] != plan.dim:
        raise GraphError(f"x: a sample has {x.shape[1]} numbers; the plan was made for {plan.dim}")
    y = _targets(plan, y, len(x))
    to_x, to_xy, to_cells, phases = plan.maps
    cosines = (np.cos(x @ to_x + phases) * np.sqrt(2 / plan.features)).astype(np.float64)
    kinds = None if y is None else plan.cell(y)
    effect, flags = _effect(x, cosines, kinds, ordered)
    blocks = {"x": Moments.of(cosines, effect=effect, seed=plan.seed)}
    cells = None
    if y is not None:
        blocks["xy"] = _together(
            (x @ to_xy).astype(np.float64) * np.sqrt(2 / plan.features), plan.signs(y), effect, plan
        )
        blocks["y"] = Moments.of(plan.shares(y), effect=effect, seed=plan.seed)
        cells = _cells((x @ to_cells).astype(np.float64) / np.sqrt(plan.projections), kinds, effect, plan)
    return Signature(len(x), blocks, cells, plan.key, flags)


def _targets(plan: Plan, y: Any, n: int) -> Any:
    if not plan.labelled:
        return None
    if y is None:
        raise GraphError("y: the plan was made with targets; expected one per sample, or a plan made without")
    y = np.asarray(y)
    if y.shape != (n,):
        raise GraphError(f"y: expected {n} targets, one per sample, got shape {y.shape}")
    if plan.target is not None:
        if y.dtype.kind not in "iuf" or not np.isfinite(y).all():
            raise GraphError("y: expected finite numbers, as the plan's target is a number")
        return y.astype(np.float64)
    y = as_classes(y)
    if y.max() >= plan.classes:
        raise GraphError(f"y: class {y.max()}, but the plan was made for {plan.classes} classes")
    return y


def _effect(x: Any, p: Array, kinds: Any, ordered: bool) -> tuple[float, int]:
    """Samples per effective sample, and the flags that say why."""
    effect, flags = 1.0, 0
    if ordered:
        effect, sure = serial(_within(p, kinds))
        flags |= int(sure)
    again = repeats(x)
    return (max(effect, again), flags | 2) if again > 1 else (effect, flags)


def _within(p: Array, kinds: Any) -> Array:
    """Features about their class's mean, so that samples sorted by class do not look dependent."""
    if kinds is None:
        return np.asarray(p - p.mean(axis=0))
    found, of = np.unique(kinds, return_inverse=True)
    sums = np.zeros((len(found), p.shape[1]))
    np.add.at(sums, of, p)
    centred: Array = p - (sums / np.bincount(of)[:, None])[of]
    return centred


def _together(p: Array, e: Array, effect: float, plan: Plan) -> Moments:
    """The covariance of two features, column by column, as a mean of products; unbiased; of three samples on."""
    n = len(p)
    if n < 3:
        return Moments.empty(p.shape[1])
    # Both means are the client's own: of independent p and e, their covariance varies as S / (n - 1) while the
    # products about their means show S (n - 2) / (n - 1)^2.
    effect *= (n - 1) / (n - 2)
    p = _bounded(p - p.mean(axis=0))
    p = p - p.mean(axis=0)
    return Moments.of(p * (e - e.mean(axis=0)) * (n / (n - 1)), effect=effect, seed=plan.seed)


def _bounded(p: Array) -> Array:
    """Samples drawn in towards length 2, where 1 is the usual one: one far sample must not make a client odd."""
    lengths: Any = np.sqrt(1 + np.square(p).sum(axis=1, keepdims=True) / 2 / _FAR**2)
    bounded: Array = p / lengths
    return bounded


def _cells(p: Array, kinds: Any, effect: float, plan: Plan) -> Cells:
    found, of, every = np.unique(kinds, return_inverse=True, return_counts=True)
    often = np.lexsort((found, -every))[: plan.cells]
    used = np.sort(often[every[often] >= _FEWEST])
    means, scatter = np.zeros((len(used), p.shape[1])), np.zeros(len(used))
    rest: list[Array] = []
    for row, kind in enumerate(used):
        mine = p[of == kind]
        means[row] = mine.mean(axis=0)
        rest.append(mine - means[row])
        scatter[row] = np.square(rest[-1]).sum()
    counts = every[used].astype(np.float64)
    dof = np.maximum(counts - effect, 0)
    traces, free = _residual_traces(rest, float(dof.sum()), effect, plan.seed)
    return Cells(found[used].astype(np.int64), counts, means, scatter, dof, traces, free, effect)


def _residual_traces(rest: list[Array], dof: float, effect: float, seed: int) -> tuple[Array, float]:
    """As Moments' traces, of samples about their class's mean, and the degrees of freedom behind them."""
    n = sum(len(mine) for mine in rest)
    if n < 6 or dof < 3:
        return np.full(3, np.nan), 0.0
    q = np.concatenate(rest)[keyed(seed, "cells", n).permutation(n)]
    thirds = [third * np.sqrt(n / dof / len(third)) for third in np.array_split(q, 3)]
    return np.array([float(np.square(q).sum() / dof), *cross_traces(thirds)]), dof / effect
