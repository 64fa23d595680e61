"""Do clients differ in what a class looks like, and is it the same shift for every class?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_vectors
from fedkin.graph.same.moments import pool
from fedkin.graph.same.null import null_p
from fedkin.graph.same.signature import Cells

__all__ = ["CellTable", "Interaction", "interaction", "table_of", "without_offsets"]

# A class's own scatter counts as much as that of all classes at so many degrees of freedom.
_PRIOR = 1.0


@dataclass(frozen=True)
class Interaction:
    """What is tested beyond class: a client's own offset, and client by class, the concept.

    p: p-values; size: variance between clients / scatter within.
    """

    offset_p: float = 1.0
    offset_size: float = 0.0
    concept_p: float = 1.0
    concept_size: float = 0.0


@dataclass(frozen=True, eq=False)
class CellTable:
    """All clients' class means in long form: one row per client and class that it has.

    client, kind [E]; n [E]: weights; bare [E]: what they would be without noise; noise [E]: its
    variance; means [E, P]; scatter, dof [E]; traces [k, 3], free [k].
    """

    client: Labels
    kind: Labels
    n: Array
    bare: Array
    noise: Array
    means: Array
    scatter: Array
    dof: Array
    traces: Array
    free: Array

    def rows(self, rows: Labels) -> CellTable:
        """Of these clients only, renumbered."""
        number = np.full(len(self.free), -1)
        number[rows] = np.arange(len(rows))
        keep = number[self.client] >= 0
        return CellTable(
            number[self.client[keep]], self.kind[keep], self.n[keep], self.bare[keep], self.noise[keep],
            self.means[keep], self.scatter[keep], self.dof[keep], self.traces[rows], self.free[rows],
        )  # fmt: skip

    def test(self) -> Interaction:
        """`interaction` of these rows, each class with the scatter that it has itself."""
        traces, total = pool(self.traces, np.repeat(self.free[:, None], 3, axis=1))
        if not total[0] or len(self.client) < 2:
            return Interaction()
        of = np.unique(self.kind, return_inverse=True)[1]
        scatter, dof = np.bincount(of, self.scatter), np.bincount(of, self.dof)
        inside = ((scatter + _PRIOR * traces[0]) / (dof + _PRIOR))[of]
        own = self.n * (inside / self.bare + self.means.shape[1] * self.noise)
        return interaction(self.client, self.kind, self.n, self.means, traces, own, (dof + _PRIOR)[of])


def table_of(cells: Sequence[Cells]) -> CellTable:
    """Every client's cells in long form; noise put on purpose lowers a cell's weight."""
    lengths = [len(one.classes) for one in cells]
    client = np.repeat(np.arange(len(cells)), lengths)
    count = np.concatenate([one.counts for one in cells])
    means = np.concatenate([one.means for one in cells])
    effect, noise = (np.repeat([getattr(one, k) for one in cells], lengths) for k in ("effect", "noise"))
    n, free = count / effect, np.array([one.free for one in cells])
    traces = np.stack([one.traces for one in cells])
    scatter, dof = (np.concatenate([getattr(one, k) for one in cells]) for k in ("scatter", "dof"))
    bare = n
    if noise.any() and free.sum():
        # As in Stack: the weight at which a cell's covariance keeps its trace.
        t1 = pool(traces, np.repeat(free[:, None], 3, axis=1))[0][0]
        n = 1 / (1 / n + means.shape[1] * noise / t1)
    return CellTable(
        client, np.concatenate([one.classes for one in cells]), n, bare, noise, means, scatter, dof, traces, free
    )  # fmt: skip


def interaction(
    client: Any, kind: Any, n: Any, means: Any, traces: Any, own: Any = None, residual: Any = np.inf
) -> Interaction:  # fmt: skip
    """Two-way analysis of variance of class means, unbalanced and with empty cells, by least squares.

    One row per cell: client [E], kind [E] (its class), n [E] samples, means [E, P]. traces [3]: of the
    covariance within cells. own [E]: tr S of each cell where classes vary differently, else that of all.
    residual: degrees of freedom behind it, one number or [E], of all cells of a class together.
    Models: class; class + client (the offset); client by class (the concept).

    >>> import numpy as np
    >>> client, kind = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    >>> m = np.random.default_rng(0).normal(size=(24, 8)) / 10 + client[:, None] / 5
    >>> found = interaction(client, kind, np.full(24, 100.0), m, [8, 8, 8])
    >>> found.offset_p < 1e-9, found.concept_p > 0.01
    (True, True)
    """
    means, n = as_vectors(means, "means"), as_vectors(n, "n", ndim=1)
    if not len(means) == len(n) == len(client) == len(kind) or (n <= 0).any():
        raise GraphError("interaction: expected one client, class, positive n and mean per cell")
    fit = _Fit.of(client, kind, n, means)
    i, c, k, m, cells = fit.i, fit.c, fit.k, fit.m, len(n)
    of_client, of_class = np.bincount(i, n, k), np.bincount(c, n, m)
    # Leverages: how much of a cell's variance each model takes up.
    spread = fit.shares @ fit.inverse
    inside = np.asarray((fit.shares.multiply(spread)).sum(axis=1)).ravel()
    taken = n * (1 / of_client[i] + fit.inverse[c, c] - 2 * spread[i, c] + inside[i])
    left, gained = 1 - taken, taken - n / of_class[c]
    own = np.full(cells, float(traces[0])) if own is None else as_vectors(own, "own", ndim=1)
    sure = np.broadcast_to(np.asarray(residual, dtype=float), (cells,))
    rest, total = (float(n @ np.square(v).sum(axis=1)) for v in (fit.both, fit.alone))
    offset = _effect(total - rest, k - fit.parts, own, gained, traces, sure, c, n.sum() / k)
    concept = _effect(rest, cells - k - m + fit.parts, own, left, traces, sure, c, n.mean())
    return Interaction(*offset, *concept)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Cell mean = class + client, by weighted least squares."""

    i: Labels  # the client's number of each cell, 0 .. k - 1
    c: Labels  # its class's number, 0 .. m - 1
    k: int
    m: int
    parts: int  # sets of clients and classes that no cell links
    shares: Any  # [k, m]: weight of each class at each client
    inverse: Array  # [m, m]: covariance of the classes' effects, for S = 1
    client: Array  # [k, P]: effects
    alone: Array  # [E, P]: residuals of class alone
    both: Array  # [E, P]: residuals of class + client

    @classmethod
    def of(cls, client: Any, kind: Any, n: Array, means: Array) -> _Fit:
        who, i = np.unique(client, return_inverse=True)
        what, c = np.unique(kind, return_inverse=True)
        cells, k, m = len(n), len(who), len(what)
        of_client, of_class = np.bincount(i, n, k), np.bincount(c, n, m)
        table = sp.csr_array((n, (i, c)), shape=(k, m))
        shares = sp.csr_array((n / of_client[i], (i, c)), shape=(k, m))
        # Normal equations with clients eliminated: one unknown per class.
        normal = np.diag(of_class) - (table.T @ shares).toarray()
        values, vectors = np.linalg.eigh((normal + normal.T) / 2)
        good = values > 1e-9 * of_class.max()
        inverse = (vectors[:, good] / values[good]) @ vectors[:, good].T
        own: Any = sp.csr_array((n / of_client[i], (i, np.arange(cells))), shape=(k, cells)) @ means
        per_class: Any = sp.csr_array((n, (c, np.arange(cells))), shape=(m, cells))
        effect = inverse @ (per_class @ (means - own[i]))
        offset = own - shares @ effect
        alone = means - ((per_class @ means) / of_class[:, None])[c]
        both = means - effect[c] - offset[i]
        return cls(i, c, k, m, m - int(good.sum()), shares, inverse, offset, alone, both)


def without_offsets(cells: Sequence[Cells]) -> list[Cells]:
    """The same with each client's own shift taken out, so that what is left can be averaged over clients."""
    table = table_of(cells)
    if not len(table.client):
        return list(cells)
    fit = _Fit.of(table.client, table.kind, table.n, table.means)
    shift = fit.client - fit.client.mean(axis=0)
    means = table.means - shift[fit.i]
    return [replace(one, means=means[table.client == row]) for row, one in enumerate(cells)]


def _effect(
    q: float, df: int, own: Array, left: Array, traces: Any, sure: Array, c: Labels, per: float
) -> tuple[float, float]:  # fmt: skip
    """p-value and size of a sum of squares to which each cell adds `left` degrees of freedom at its own tr S."""
    expected = float(own @ left)
    if df <= 0 or expected <= 0:
        return 1.0, 0.0
    # A class that varies more has a covariance of the same shape: tr S^j goes with (tr S)^j.
    t1 = float(traces[0])
    scaled = [max(float((own / t1) ** j @ left), 0.0) / df * float(traces[j - 1]) for j in (1, 2, 3)]
    # The variance of what is expected, class by class, as that of one estimate with so many degrees of freedom.
    doubt = float((np.bincount(c, own / t1 * left) ** 2 / (np.bincount(c, sure) / np.bincount(c))).sum())
    residual = df**2 * scaled[1] / (float(traces[1]) * doubt) if doubt > 0 and traces[1] > 0 else np.inf
    return float(null_p(q, df, scaled, residual)), max((q / expected - 1) / per, 0.0)
