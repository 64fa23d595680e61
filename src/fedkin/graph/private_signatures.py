"""Signatures with differential privacy of single samples (docs/privacy.md, "Private signatures").

Two data sets are neighbours if they have the same number n of samples and differ in one of them; n is public. Each
message of a client is a vector that moves by at most 1 between neighbours (`votes`, `sums`). Its sender adds normal
noise to every number; all else is computed from what was sent (`plan_of_votes`, `signature_of_sums`).

>>> import numpy as np
>>> rng, noise = np.random.default_rng(0), 2.0
>>> data = [rng.normal(size=(500, 5)) + i % 2 for i in range(8)]
>>> sent = [votes(x) for x in data]
>>> plan = plan_of_votes([v + noise * rng.normal(size=len(v)) for v in sent], dim=5)
>>> sent = [sums(plan, x) for x in data]
>>> noisy = [signature_of_sums(plan, 500, v + noise * rng.normal(size=len(v)), noise) for v in sent]
>>> from fedkin.graph import find
>>> find(noisy).labels
array([0, 1, 0, 1, 0, 1, 0, 1])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array
from fedkin.graph.moments import Moments
from fedkin.graph.plan import Plan, as_samples, samples_of, targets_of
from fedkin.graph.signatures import Signature
from fedkin.keys import rng as keyed

# Octaves of distance, 2^-16 to 2^16: features need the scale within a factor of sqrt(2) only.
_OCTAVES = 32
# Columns of the blocks x and xy, and of y for a target that is a number (as in `Plan.shares`): the directions of noise.
_FEATURES, _WAVES = 32, 16
# Weight of a block's root relative to its sum: all roots together have a tenth of the squared sensitivity.
_ROOT = 0.1


def votes(x: Any, y: Any = None) -> Array:
    """Return the number of disjoint pairs of samples in each octave of distance, scaled to move by at most 1.

    x [n, ...]. y [n]: targets that are numbers, whose distances are counted too, [2 octaves]. A sample is in one pair:
    if it is replaced, one count of each array falls by 1 and another rises by 1.

    >>> import numpy as np
    >>> counts = votes(np.random.default_rng(0).normal(size=(60, 5))) * np.sqrt(2)
    >>> counts.shape, round(float(counts.sum()))
    ((32,), 30)
    """
    arrays = [as_samples(x)] + ([] if y is None else [as_samples(np.asarray(y)[:, None])])
    counts = []
    for values in arrays:
        n = len(values)
        one, other = keyed(0, "pairs", n).permutation(n)[: n // 2 * 2].reshape(2, -1)
        squares = np.square(values[one].astype(np.float64) - values[other]).sum(axis=1) / 2
        octaves = np.floor(np.log2(squares[squares > 0]) / 2).astype(np.int64) + _OCTAVES // 2
        counts.append(np.bincount(np.clip(octaves, 0, _OCTAVES - 1), minlength=_OCTAVES))
    return np.concatenate(counts) / math.sqrt(2 * len(counts))


def plan_of_votes(noisy: Sequence[Array], *, dim: int, classes: int = 0, seed: int = 0) -> Plan:
    """Return the plan whose scale is the most frequent octave of distance over all clients.

    noisy: the votes that clients sent, all of one length; twice as long if the target is a number. dim: numbers per
    sample. classes: number of classes, 0 without. Raises GraphError without votes.
    """
    lengths = {len(each) for each in noisy}
    if len(lengths) != 1 or not lengths <= {_OCTAVES, 2 * _OCTAVES}:
        raise GraphError(f"votes: expected {_OCTAVES} numbers of each client, or twice as many, got {sorted(lengths)}")
    peaks = np.sum(noisy, axis=0).reshape(-1, _OCTAVES).argmax(axis=1)
    scales = [2.0 ** (int(peak) - _OCTAVES // 2 + 0.5) for peak in peaks]
    # Waves keep their information if the target is shifted, so that its mean need not be known.
    target = (0.0, scales[1]) if len(scales) > 1 else None
    return Plan(dim, np.array([scales[0] ** 2]), classes, target, _FEATURES, seed=seed)


def sums(plan: Plan, x: Any, y: Any = None) -> Array:
    """Return the parts of a signature as one vector that moves by at most 1 if one sample is replaced.

    Of each block: the sum of its features, then n |S| of their covariance S, weighted. Features have length 1.
    """
    x = samples_of(plan, x)
    blocks = _features(plan, x, targets_of(plan, y, len(x)))
    roots = []
    for p in blocks.values():
        mean = p.mean(axis=0)
        roots.append(_ROOT * len(x) * float(np.linalg.norm(p.T @ p / len(x) - np.outer(mean, mean))))
    return np.concatenate([*(p.sum(axis=0) for p in blocks.values()), roots]) / _sensitivity(plan)


def _features(plan: Plan, x: Any, y: Any) -> dict[str, Array]:
    """Features [n, D] of length 1 by block.

    x: random Fourier features of the inputs (Rahimi and Recht 2007). xy: the same with other weights, and a random
    phase for each class, 0 or pi; or of inputs and target together. y: the class; or random Fourier features.
    """
    half = plan.features // 2
    to_x, to_xy, *_ = plan.maps
    blocks = {"x": _waves((x @ to_x[:, :half]).astype(np.float64))}
    if y is None:
        return blocks
    angles = (x @ to_xy[:, :half]).astype(np.float64)
    if plan.target is None:
        return blocks | {"xy": _waves(angles + np.pi * (plan.signs(y)[:, :half] < 0)), "y": plan.shares(y)}
    draw = keyed(plan.seed, "private", "target")
    frequencies = draw.standard_normal(half + _WAVES // 2) / plan.target[1]
    waves = y[:, None] * frequencies
    return blocks | {"xy": _waves(angles + waves[:, :half]), "y": _waves(waves[:, half:])}


def _waves(angles: Array) -> Array:
    """Cosines and sines [n, 2 h] of angles [n, h], together of length 1."""
    return np.hstack([np.cos(angles), np.sin(angles)]) / math.sqrt(angles.shape[1])


def votes_length(number: bool) -> int:
    """Return the length of votes. number: whether the target is a number."""
    return 2 * _OCTAVES if number else _OCTAVES


def sums_length(classes: int, number: bool) -> int:
    """Return the length of sums. classes: number of classes, 0 without. number: whether the target is a number."""
    sizes = widths(Plan(1, np.ones(1), classes, (0.0, 1.0) if number else None, _FEATURES))
    return sum(sizes.values()) + len(sizes)


def widths(plan: Plan) -> dict[str, int]:
    """Return the number of features of each block."""
    if not plan.labelled:
        return {"x": plan.features}
    return {"x": plan.features, "xy": plan.features, "y": plan.shares(np.zeros(1, dtype=np.int64)).shape[1]}


def _sensitivity(plan: Plan) -> float:
    """The largest distance that sums and weighted roots can move if one sample is replaced.

    Two features of length 1 are at most 2 apart. n S moves by d (c - m)' + (c - m) d' for d = p' - p, c = (p + p') / 2
    and the mean m of before and after; d and c are orthogonal, |d|^2 = 4 (1 - |c|^2) and |m| <= 1, so that its norm is
    at most 2 |d| (1 + |c|) <= 3 sqrt(3) (at |c| = 1 / 2).
    """
    blocks = len(widths(plan))
    return math.sqrt(blocks * (2.0**2 + 27 * _ROOT**2))


def signature_of_sums(plan: Plan, n: int, noisy: Array, noise: float) -> Signature:
    """Return the signature of a client of n samples that sent these sums, with noise of this standard deviation.

    Means have noise of a stated variance. tr S = 1 - |mean|^2, as features have length 1, less what noise adds. tr S^2
    is the root's square, which noise makes too large rather than too small: a null that is too narrow would find groups
    where there are none. tr S^3 is at most tr S^2, which replaces it. Halves are 0: `split_p` has nothing to test.
    """
    values, deviation = np.asarray(noisy, dtype=np.float64) * _sensitivity(plan), noise * _sensitivity(plan)
    sizes = widths(plan)
    if values.shape != (sum(sizes.values()) + len(sizes),) or n < 1:
        raise GraphError(f"sums: expected {sum(sizes.values()) + len(sizes)} numbers of at least one sample")
    *parts, roots = np.split(values, np.cumsum(list(sizes.values())))
    variance = (deviation / n) ** 2
    blocks = {}
    for name, total, root in zip(sizes, parts, roots, strict=True):
        mean = total / n
        traces = np.full(3, np.nan)
        if n > 1:
            spread = (1 - mean @ mean + len(mean) * variance) * n / (n - 1)
            square = max((root / _ROOT / n) ** 2, spread**2 / len(mean))
            traces = np.array([spread, square, square])
        blocks[name] = Moments(n, mean, np.zeros(len(mean)), traces, np.full(3, n - 1.0), noise=variance)
    return Signature(n, blocks, None, plan.key)
