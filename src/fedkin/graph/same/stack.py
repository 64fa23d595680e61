"""One block of features of many clients, as arrays, with the noise that each mean has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.graph._check import Array, Labels
from fedkin.graph.same.moments import Moments, pool
from fedkin.graph.same.null import outlier_p, same_p, top_p
from fedkin.graph.same.split import split_p

__all__ = ["Stack", "joined", "stacked"]

# Relative rounding of float16, in which means usually travel.
_ROUNDING = 2.0**-11
_LOOKS = 4


@dataclass(frozen=True, eq=False)
class Stack:
    """One block of k clients.

    means, halves [k, D]. n [k]: weights at which each mean has a covariance of trace t1. traces, free
    [k, 3]: as in Moments. shares: means are shares of classes.
    """

    means: Array
    halves: Array
    n: Array
    traces: Array
    free: Array
    shares: bool = False

    def rows(self, rows: Labels) -> Stack:
        """Of these clients only."""
        return Stack(
            self.means[rows], self.halves[rows], self.n[rows], self.traces[rows], self.free[rows], self.shares
        )  # fmt: skip

    def pooled(self) -> tuple[Array, float]:
        """Traces of the common covariance, and the degrees of freedom behind them."""
        if self.shares and self.n.sum() > 0:
            p = self.n @ self.means / self.n.sum()
            covariance = np.diag(p) - np.outer(p, p)
            square = covariance @ covariance
            return np.array([np.trace(covariance), np.trace(square), np.trace(square @ covariance)]), np.inf
        found, total = pool(self.traces, self.free)
        if not total[0]:
            return np.zeros(3), 0.0
        if not total[1]:
            found[1:] = self._from_halves(found[0])
        return found, float(total[0])

    def _from_halves(self, t1: float) -> Array:
        """tr S^2 and tr S^3 from products of different clients' halves, where no client has six samples."""
        h = self.halves * np.sqrt(self.n)[:, None]
        h = h[np.square(h).sum(axis=1) > 0]
        k = len(h)
        # One direction only is the widest null that t1 allows.
        if k < 8:
            return np.array([t1**2, t1**3])
        gram = h @ h.T
        np.fill_diagonal(gram, 0)
        return np.array([
            np.square(gram).sum() / (k * (k - 1)), np.trace(gram @ gram @ gram) / (k * (k - 1) * (k - 2)),
        ])  # fmt: skip

    def p(self, enough: float, seed: int) -> float:
        """p-value of "all of these have one mean": the smallest of four looks, times four.

        A look is left out once one before it is below `enough`.
        """
        have = self.n > 0
        k = int(have.sum())
        traces, free = self.pooled()
        if k < 2 or free <= 0:
            return 1.0
        means, n = self.means[have], self.n[have]
        if traces[0] <= 1e-9 * np.square(means).sum(axis=1).max():
            # No client varies at all: any difference beyond rounding is one.
            apart = np.abs(means - means[0]).max() > 4 * _ROUNDING * np.abs(means).max()
            return 0.0 if apart else 1.0
        found = same_p(means, n, traces, free)
        if _LOOKS * found >= enough:
            own = None if self.shares else self.traces[have, 0]
            found = min(found, outlier_p(means, n, traces, free, own))
        if _LOOKS * found >= enough:
            found = min(found, top_p(means, n, traces, seed))
        if _LOOKS * found >= enough:
            found = min(found, split_p(means, self.halves[have], n, traces, free))
        return min(1.0, _LOOKS * found)


def stacked(moments: Sequence[Moments], *, shares: bool = False) -> Stack:
    """From every client's moments of one block; noise put on purpose, and rounding, lower a client's weight."""
    means, halves = np.stack([m.mean for m in moments]), np.stack([m.half for m in moments])
    n, effect = np.array([float(m.n) for m in moments]), np.array([m.effect for m in moments])
    width, weight = means.shape[1], n / effect
    plain = Stack(
        means, halves, weight, np.stack([m.traces for m in moments]), np.stack([m.free for m in moments]), shares
    )
    noise = np.array([m.noise for m in moments]) + np.square(means).mean(axis=1) * _ROUNDING**2 / 3
    pooled, _ = plain.pooled()
    t1 = pooled[0]
    if t1 <= 0:
        return plain
    # A mean has covariance S / weight + noise I. At the weight n its trace is t1 / n for every client.
    level = 1 / np.where(weight > 0, 1 / np.maximum(weight, 1e-300) + width * noise / t1, np.inf)
    a, b = level / np.maximum(weight, 1e-300), level * noise
    t = np.where(np.isfinite(plain.traces), plain.traces, pooled)
    mixed = np.stack([
        a * t[:, 0] + b * width,
        a**2 * t[:, 1] + 2 * a * b * t[:, 0] + b**2 * width,
        a**3 * t[:, 2] + 3 * a**2 * b * t[:, 1] + 3 * a * b**2 * t[:, 0] + b**3 * width,
    ], axis=1)  # fmt: skip
    noisy = any(m.noise for m in moments)
    # Shares of classes have a covariance that follows from them, unless noise was added.
    return Stack(
        means, halves, level, np.where(np.isfinite(plain.traces), mixed, np.nan), plain.free, shares and not noisy
    )


def joined(stacks: Sequence[Stack]) -> Stack:
    """Blocks side by side, each scaled to the same spread under the null, for distances between clients."""
    means, halves, traces = [], [], np.zeros_like(stacks[0].traces)
    for one in stacks:
        pooled, _ = one.pooled()
        scale = (2 * max(pooled[1], 1e-4 * pooled[0] ** 2)) ** -0.25 if pooled[0] > 1e-12 else 1.0
        means.append(one.means * scale)
        halves.append(one.halves * scale)
        traces = traces + np.where(np.isfinite(one.traces), one.traces, pooled) * scale ** np.array([2, 4, 6])
    n = np.max([one.n for one in stacks], axis=0)
    return Stack(np.hstack(means), np.hstack(halves), n, traces, stacks[0].free)
