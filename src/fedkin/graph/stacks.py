"""The moments of many clients as arrays, of one block of features or of class means, and the tests of equal means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.graph._check import Array, Labels
from fedkin.graph.moments import Moments, fields_of, pool
from fedkin.graph.p_values import (
    ClassClientFit,
    Interaction,
    interaction,
    outlier_p,
    same_p,
    share_outlier_p,
    split_p,
    top_p,
)
from fedkin.graph.signatures import Cells

# -- one block of features of many clients -----------------------------------------------------------------------------


# Relative rounding of float16, in which means usually travel.
_ROUNDING = 2.0**-11
# Lower limit of traces that noise has made impossibly small.
_LEAST_TRACE = 0.05
_LOOKS = 4


@dataclass(frozen=True, eq=False)
class Stack:
    """One block of features of k clients.

    means, halves [k, D]. n [k]: weights; the covariance of each mean has trace t1 / n. traces, free [k, 3]: as in
    Moments. shares: whether means are shares of classes.
    """

    means: Array
    halves: Array
    n: Array
    traces: Array
    free: Array
    shares: bool = False

    def rows(self, rows: Labels) -> Stack:
        """Select these clients."""
        means, halves, n = self.means[rows], self.halves[rows], self.n[rows]
        return Stack(means, halves, n, self.traces[rows], self.free[rows], self.shares)

    def pooled(self) -> tuple[Array, float]:
        """Traces of the common covariance, and the degrees of freedom behind them."""
        if self.shares and self.n.sum() > 0:
            p = self.n @ self.means / self.n.sum()
            covariance = np.diag(p) - np.outer(p, p)
            square = covariance @ covariance
            return np.array([np.trace(covariance), np.trace(square), np.trace(square @ covariance)]), np.inf
        traces, total = pool(self.traces, self.free)
        if not total[0]:
            return np.zeros(3), 0.0
        if not total[1]:
            traces[1:] = self._from_halves(traces[0])
        return traces, float(total[0])

    def _from_halves(self, t1: float) -> Array:
        """tr S^2 and tr S^3 from products of different clients' halves, if no client has six samples."""
        h = self.halves * np.sqrt(self.n)[:, None]
        h = h[np.square(h).sum(axis=1) > 0]
        k = len(h)
        # A single direction is the widest null that t1 allows.
        if k < 8:
            return np.array([t1**2, t1**3])
        gram = h @ h.T
        np.fill_diagonal(gram, 0)
        return np.array([
            np.square(gram).sum() / (k * (k - 1)), np.trace(gram @ gram @ gram) / (k * (k - 1) * (k - 2)),
        ])  # fmt: skip

    @cached_property
    def noise(self) -> Array:
        """Covariance of one sample's noise [D, D], from all clients' halves, scaled to their pooled trace."""
        h = self.halves * np.sqrt(self.n)[:, None]
        covariance: Array = h.T @ h / max(len(h), 1)
        trace, t1 = float(np.trace(covariance)), self.pooled()[0][0]
        # Signatures without halves have noise that is nearly equal in all directions.
        if trace <= 0:
            covariance, trace = np.eye(len(covariance)), float(len(covariance))
        return np.asarray(covariance * (t1 / trace))

    def between(self, groups: Sequence[Labels], t1: float) -> Array:
        """Squared distances of groups' means / t1, less what chance adds: 0 is expected for equal distributions."""
        n = np.array([max(self.n[rows].sum(), 1e-9) for rows in groups])
        means = np.stack([self.n[rows] @ self.means[rows] for rows in groups]) / n[:, None]
        squares = np.square(means[:, None] - means).sum(axis=-1) / max(t1, 1e-9)
        return np.asarray(squares - 1 / n - 1 / n[:, None])

    def p(self, enough: float, seed: int) -> float:
        """p-value of "all of these have one mean": the smallest of four tests (of shares: three), times four.

        Testing stops once a p-value is below `enough`.
        """
        have = self.n > 0
        traces, free = self.pooled()
        if have.sum() < 2 or free <= 0:
            return 1.0
        means, n = self.means[have], self.n[have]
        if traces[0] <= 1e-9 * np.square(means).sum(axis=1).max():
            # No client varies at all: any difference beyond rounding is real.
            differ = np.abs(means - means[0]).max() > 4 * _ROUNDING * np.abs(means).max()
            return 0.0 if differ else 1.0
        p = same_p(means, n, traces, free, self._excess(n, traces[1]))
        if _LOOKS * p >= enough:
            away = outlier_p(means, n, traces, free, None if self.shares else self.traces[have, 0])
            # The tail of rare counts is wider than a chi-square's.
            p = min(p, max(away, share_outlier_p(means, n)) if self.shares else away)
        if _LOOKS * p >= enough and not self.shares:  # rare classes have longer tails than its null
            p = min(p, top_p(means, n, traces, seed))
        several = have & (self.free[:, 0] > 0)
        if _LOOKS * p >= enough and several.any():
            p = min(p, split_p(self.means[several], self.halves[several], self.n[several], traces, free))
        return min(1.0, _LOOKS * p)

    def _excess(self, n: Array, t2: float) -> Any:
        """`excess` of `null_p` for shares of classes, which is large for rare classes; 0 for other features."""
        if not self.shares:
            return 0.0
        p = self.n @ self.means / self.n.sum()
        # The squared length of a sample about p is 1 - 2 p_c + |p|^2 if its class is c.
        variance = 4 * float((p**3).sum() - np.square(p).sum() ** 2)
        return np.maximum(variance / (2 * t2) - 1, 0) / n


def stacked(moments: Sequence[Moments], *, shares: bool = False) -> Stack:
    """Stack every client's moments of one block; added noise and rounding lower a client's weight."""
    means, halves, traces, free = fields_of(moments, "mean", "half", "traces", "free")
    weight, noise = fields_of(moments, "weight", "noise")
    width, noisy = means.shape[1], bool(noise.any())
    plain = Stack(means, halves, weight, traces, free, shares)
    noise = noise + np.square(means).mean(axis=1) * _ROUNDING**2 / 3
    pooled, _ = plain.pooled()
    # Noise may leave a trace of 0; weights need a scale above 0.
    t1 = max(pooled[0], _LEAST_TRACE) if noisy else pooled[0]
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
    # Shares of classes have a covariance that follows from them, unless noise was added.
    traces = np.where(np.isfinite(plain.traces), mixed, np.nan)
    return replace(plain, n=level, traces=traces, shares=shares and not noisy)


def are_shares(name: str, moments: Sequence[Moments]) -> bool:
    """Whether a block holds shares of classes: at least 0, with sum 1."""
    means = np.stack([m.mean for m in moments])
    return name == "y" and bool((means >= 0).all() and np.abs(means.sum(axis=1) - 1).max() < 0.01)


def joined(stacks: Sequence[Stack]) -> Stack:
    """Blocks side by side, each scaled to the same spread under the null, for distances between clients."""
    means, halves, traces = [], [], np.zeros_like(stacks[0].traces)
    for stack in stacks:
        pooled, _ = stack.pooled()
        scale = (2 * max(pooled[1], 1e-4 * pooled[0] ** 2)) ** -0.25 if pooled[0] > 1e-12 else 1.0
        means.append(stack.means * scale)
        halves.append(stack.halves * scale)
        traces = traces + np.where(np.isfinite(stack.traces), stack.traces, pooled) * scale ** np.array([2, 4, 6])
    n = np.max([stack.n for stack in stacks], axis=0)
    return Stack(np.hstack(means), np.hstack(halves), n, traces, stacks[0].free)


# -- class means of many clients ---------------------------------------------------------------------------------------


# With so many degrees of freedom, a class's own scatter counts as much as that of all classes.
_PRIOR = 1.0


@dataclass(frozen=True, eq=False)
class CellTable:
    """All clients' class means in long form: one row per client and class that it has.

    client, kind [E]; n [E]: weights; means [E, P]; scatter, dof [E]; traces [k, 3], free [k].
    """

    client: Labels
    kind: Labels
    n: Array
    means: Array
    scatter: Array
    dof: Array
    traces: Array
    free: Array

    def rows(self, rows: Labels) -> CellTable:
        """Select these clients, renumbered."""
        number = np.full(len(self.free), -1)
        number[rows] = np.arange(len(rows))
        keep = number[self.client] >= 0
        return CellTable(
            number[self.client[keep]], self.kind[keep], self.n[keep], self.means[keep], self.scatter[keep],
            self.dof[keep], self.traces[rows], self.free[rows],
        )  # fmt: skip

    def test(self) -> Interaction:
        """`interaction` of these rows, with each class's own scatter."""
        traces, total = pool(self.traces, np.repeat(self.free[:, None], 3, axis=1))
        if not total[0] or len(self.client) < 2:
            return Interaction()
        of = np.unique(self.kind, return_inverse=True)[1]
        scatter, dof = np.bincount(of, self.scatter), np.bincount(of, self.dof)
        inside = ((scatter + _PRIOR * traces[0]) / (dof + _PRIOR))[of]
        return interaction(self.client, self.kind, self.n, self.means, traces, inside, (dof + _PRIOR)[of])


def table_of(cells: Sequence[Cells]) -> CellTable:
    """Every client's cells in long form."""
    lengths = [len(part.classes) for part in cells]
    client = np.repeat(np.arange(len(cells)), lengths)
    kind, counts, means, scatter, dof = (
        np.concatenate([getattr(part, name) for part in cells])
        for name in ("classes", "counts", "means", "scatter", "dof")
    )
    n = counts / np.repeat([part.effect for part in cells], lengths)
    traces, free = np.stack([part.traces for part in cells]), np.array([part.free for part in cells])
    return CellTable(client, kind, n, means, scatter, dof, traces, free)


def without_offsets(cells: Sequence[Cells]) -> list[Cells]:
    """Remove each client's own shift, so that the means can be averaged over clients."""
    table = table_of(cells)
    if not len(table.client):
        return list(cells)
    fit = ClassClientFit.of(table.client, table.kind, table.n, table.means)
    shift = fit.client - fit.client.mean(axis=0)
    means = table.means - shift[fit.i]
    return [replace(part, means=means[table.client == row]) for row, part in enumerate(cells)]
