"""P-values of differences of means with a known null distribution, on plain arrays (docs/groups.md).

For clients with one mean and covariance S, Q = sum n_i |m_i - m|^2 is a sum of chi-squares with df = k - 1, weighted by
the eigenvalues of S. It is approximated by a gamma distribution with Q's first three cumulants.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.stats
from scipy import special
from scipy.cluster.hierarchy import DisjointSet

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_dense, as_vectors
from fedkin.keys import rng as keyed

_TOP_REPLICAS = 100


def null_p(q: Any, df: float, traces: Any, residual: float = np.inf, excess: Any = 0.0) -> Any:
    """P(Q >= q) for Q = sum_j lambda_j chi2_df, from traces = sum lambda, sum lambda^2, sum lambda^3.

    q: one number or an array. residual: degrees of freedom behind the traces, as those of the denominator in
    an F test. With f = q / (df t1) and T the estimate of t1, the p-value is P(Q - f df T >= 0) by the first three
    cumulants: df t1 (1 - f), 2 df t2 (1 + f^2 df / residual), 8 df t3 (1 - f^3 df^2 / residual^2) (Satterthwaite's
    idea with one moment more). Exact when all lambda are equal and residual is infinite. excess [k]: for each client
    by how much the variance of its term of Q is larger than normal samples have it, relative; the third cumulant is
    then that of (X - r)^2 / r, where X is Poisson with mean r = 1 / (2 excess).

    >>> round(float(null_p(18.307, 10, [1, 1, 1])), 4)
    0.05
    >>> null_p([5.0, 50.0], 10, [1, 1, 1]).round(3)
    array([0.891, 0.   ])
    """
    t1, t2, t3 = _three(traces)
    q = np.asarray(q, dtype=float)
    if t1 <= 0:
        return np.where(q > 1e-9, 0.0, 1.0)[()]
    f = q / (df * t1)
    excess = np.asarray(excess, dtype=float)
    more2, more3 = np.mean(1 + excess), np.mean(1 + 5.5 * excess + 0.5 * excess**2)
    k2 = 2 * df * t2 * more2 * (1 + f**2 * df / residual)
    k3 = 8 * df * t3 * more3 * (1 - f**3 * (df / residual) ** 2)
    # A sum of chi-squares is never more skewed than one of them alone.
    most = np.sqrt(8 / df) * more3 / more2**1.5
    skew = np.clip(k3 / k2**1.5, -most, most)
    return gamma_tail((q - df * t1) / np.sqrt(k2), skew)


def gamma_tail(z: Any, skew: float) -> Any:
    """P(Z >= z) of the gamma distribution with mean 0, variance 1 and this skewness, mirrored if it is negative."""
    sign = np.where(np.asarray(skew) < 0, -1.0, 1.0)
    shape = 4 / np.maximum(np.abs(skew), 1e-3) ** 2
    x = np.maximum(sign * np.asarray(z) * np.sqrt(shape) + shape, 0)
    return np.where(sign > 0, special.gammaincc(shape, x), special.gammainc(shape, x))[()]


def same_p(means: Any, n: Any, traces: Any, residual: float = np.inf, excess: Any = 0.0) -> float:
    """p-value of "all clients have one mean".

    means [k, D]. n [k]: samples behind each; 0 leaves a client out. traces: of the covariance of one sample, [3].
    excess: as in `null_p`. Has power against departures in many directions.

    >>> import numpy as np
    >>> m = np.random.default_rng(0).normal(size=(8, 20)) / 10
    >>> bool(same_p(m, np.full(8, 100), [20, 20, 20]) > 0.01)
    True
    >>> bool(same_p(m + np.arange(8)[:, None] / 10, np.full(8, 100), [20, 20, 20]) < 1e-9)
    True
    """
    x, n = _centred(means, n)
    if len(n) < 2:
        return 1.0
    return float(null_p((n * np.square(x).sum(axis=1)).sum(), len(n) - 1, traces, residual, excess))


def outlier_p(means: Any, n: Any, traces: Any, residual: float = np.inf, own: Any = None) -> float:
    """p-value of "no client differs from the mean of all others", corrected for k clients (Bonferroni).

    own [k]: each client's own estimate of tr S. A client that varies more than the pooled estimate is measured by its
    own: a single far sample moves its mean and its scatter together. Without this, the test misses its level on
    heavy-tailed data.

    >>> import numpy as np
    >>> m = np.zeros((50, 20)); m[7] = 1
    >>> bool(outlier_p(m, np.full(50, 10), [20, 20, 20]) < 1e-6)
    True
    """
    have = np.asarray(n) > 0
    x, n = _centred(means, n)
    if len(n) < 2:
        return 1.0
    # Against the mean of the others: n_i (N - n_i) / N |m_i - m_rest|^2 = n_i N / (N - n_i) |m_i - m|^2.
    q = n * n.sum() / (n.sum() - n) * np.square(x).sum(axis=1)
    if own is not None:
        wide = np.asarray(own, dtype=float)[have] / max(float(traces[0]), 1e-300)
        q = q / np.maximum(np.where(np.isfinite(wide), wide, 1.0), 1.0)
    return min(1.0, float(np.min(null_p(q, 1, traces, residual))) * len(n))


def share_outlier_p(shares: Any, n: Any) -> float:
    """As `outlier_p` for shares of classes [k, classes], exact also where classes are rare.

    Of all N samples K are of a class. A client's number of them, among its n samples, is hypergeometric if it does not
    differ from the others. The smallest two-sided p-value is corrected for clients and classes (Bonferroni).

    >>> round(share_outlier_p([[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]], [4, 4, 4]), 3)
    0.545
    """
    shares, n = as_vectors(shares, "shares"), np.rint(as_vectors(n, "n", ndim=1)).astype(np.int64)
    counts = np.rint(shares[n > 0] * n[n > 0, None]).astype(np.int64)
    n = n[n > 0]
    if len(n) < 2:
        return 1.0
    of_class = counts.sum(axis=0)
    tails = [
        scipy.stats.hypergeom.cdf(counts, n.sum(), of_class, n[:, None]),
        scipy.stats.hypergeom.sf(counts - 1, n.sum(), of_class, n[:, None]),
    ]
    # Two classes have one number.
    width = max(int((of_class > 0).sum()), 2)
    return float(min(1.0, 2 * np.min(tails) * len(n) * (width if width > 2 else 1)))


def top_p(means: Any, n: Any, traces: Any, seed: int = 0) -> float:
    """p-value of the largest eigenvalue of sum n_i (m_i - m)(m_i - m)': a departure along few directions.

    The null is a gamma distribution through the moments of simulated noise with eigenvalues that fall as a power law
    with these traces. 1 for fewer than five clients.

    >>> import numpy as np
    >>> m = np.random.default_rng(0).normal(size=(40, 50)) / 10
    >>> bool(top_p(m, np.full(40, 100), [50, 50, 50]) > 0.01)
    True
    >>> m[:20, 0] += 0.5
    >>> bool(top_p(m, np.full(40, 100), [50, 50, 50]) < 1e-4)
    True
    """
    x, n = _centred(means, n)
    t1, t2, _ = _three(traces)
    if len(n) < 5 or t1 <= 0:
        return 1.0
    x = x * np.sqrt(n)[:, None]
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    largest = np.linalg.eigvalsh(gram)[-1] / t1
    # A grid of exponents lets nodes and blocks share their replicas.
    power = round(_exponent(x.shape[1], t2 / t1**2) * 20) / 20
    mean, spread, skew = _largest_of_noise(len(n) - 1, x.shape[1], power, seed)
    return float(gamma_tail((largest - mean) / spread, skew))


@lru_cache(maxsize=4096)
def _largest_of_noise(df: int, width: int, power: float, seed: int) -> tuple[float, float, float]:
    """Mean, deviation and skewness of the largest eigenvalue of a Wishart matrix with df degrees of freedom."""
    draw = keyed(seed, "top", df, width, str(power))
    root = np.sqrt(_power_law(width, power))
    root = root[root > 1e-4 * root[0]]
    # Small matrices are cheap, and their replicas vary most.
    replicas = _TOP_REPLICAS * (4 if min(df, len(root)) <= 40 else 1)
    largest = np.empty(replicas)
    for at in range(replicas):
        if df > len(root):  # Bartlett: the triangular root of a Wishart matrix.
            y = np.tril(draw.standard_normal((len(root), len(root))), -1)
            y[np.diag_indices(len(root))] = np.sqrt(draw.chisquare(df - np.arange(len(root))))
            y = y.T * root
            gram = y.T @ y
        else:
            y = draw.standard_normal((df, len(root))) * root
            gram = y @ y.T
        largest[at] = np.linalg.eigvalsh(gram)[-1]
    mean, spread = float(largest.mean()), float(largest.std(ddof=1))
    # At least as skewed as a chi-square of this mean and deviation (the case of one direction), and as the limit for
    # many directions (Tracy and Widom's law).
    third = float(np.mean(((largest - mean) / spread) ** 3))
    return mean, spread, max(third, 2 * spread / mean, 0.3)


def _power_law(width: int, power: float) -> Array:
    values: Array = np.arange(1, width + 1.0) ** -power
    values /= values.sum()
    return values


def _exponent(width: int, squares: float) -> float:
    """The exponent of the power law that sums to 1 and has this sum of squares."""
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if np.square(_power_law(width, middle)).sum() < squares else (low, middle)
    return low


def _three(traces: Any) -> tuple[float, float, float]:
    """The traces, clipped to values that a covariance can have."""
    t1, t2, t3 = (float(t) for t in as_vectors(traces, "traces", ndim=1))
    t2 = min(max(t2, 1e-6 * t1 * t1), t1 * t1)
    # The bounds are those of equal eigenvalues (Cauchy-Schwarz) and of the largest possible eigenvalue.
    return t1, t2, min(max(t3, t2 * t2 / max(t1, 1e-300)), t2**1.5)


def _centred(means: Any, n: Any) -> tuple[Array, Array]:
    """Means about their weighted mean, of the clients that have any sample."""
    means, n = as_vectors(means, "means"), as_vectors(n, "n", ndim=1)
    if len(n) != len(means) or (n < 0).any():
        raise GraphError(f"n: expected {len(means)} counts of at least 0, one per row of means, got {n}")
    have = n > 0
    means, n = means[have], n[have]
    return (means - n @ means / n.sum() if len(n) else means), n


# -- trees of clients --------------------------------------------------------------------------------------------------


def ward(means: Any, n: Any) -> Array:
    """Weighted Ward linkage [k - 1, 4] as scipy lays it out: two nodes, cost, rows under them.

    means [k, D], n [k] positive weights. The cost of a merge is the increase of sum n_i |m_i - m|^2, that is
    n_a n_b / (n_a + n_b) |m_a - m_b|^2 (Ward 1963), without scipy's square root and factor. Nearest-neighbour
    chain, k^2 steps and one matrix of all pairs (float32 beyond 3,000 clients).

    >>> import numpy as np
    >>> ward(np.array([[0.0], [1.0], [9.0]]), [1, 1, 4]).round(1)
    array([[ 0. ,  1. ,  0.5,  2. ],
           [ 2. ,  3. , 96.3,  3. ]])
    """
    means, n = as_vectors(means, "means"), as_vectors(n, "n", ndim=1).copy()
    k = len(means)
    # In single precision for many clients, because the matrix has all pairs.
    kind = np.float32 if k > 3000 else np.float64
    x, n = (means - means.mean(axis=0)).astype(kind), n.astype(kind)
    squares = np.square(x).sum(axis=1)
    cost = x @ x.T
    cost *= -2
    cost += squares
    cost += squares[:, None]
    np.maximum(cost, 0, out=cost)
    for row in range(k):
        cost[row] *= n[row] * n / (n[row] + n)
    np.fill_diagonal(cost, np.inf)
    alive = np.ones(k, dtype=bool)
    merges: list[tuple[int, int, float]] = []
    chain = [0]
    for _ in range(k - 1):
        if not chain:
            chain = [int(np.argmax(alive))]
        while True:
            a = chain[-1]
            b = int(cost[a].argmin())
            if len(chain) > 1 and cost[a, chain[-2]] <= cost[a, b]:
                b = chain[-2]
                break
            chain.append(b)
        del chain[-2:]
        height = cost[a, b]
        merges.append((a, b, float(height)))
        row = ((n[a] + n) * cost[a] + (n[b] + n) * cost[b] - n * height) / (n[a] + n[b] + n)
        alive[b] = False
        row[~alive] = np.inf
        row[a] = np.inf
        n[a] += n[b]
        cost[a], cost[:, a], cost[b], cost[:, b] = row, row, np.inf, np.inf
    return _in_order(merges, k)


def _in_order(merges: list[tuple[int, int, float]], k: int) -> Array:
    """Merges sorted by cost, with nodes numbered in that order."""
    tree = np.zeros((k - 1, 4))
    sets = DisjointSet(range(k))
    node = list(range(k))  # node of the set whose root is this row
    for step, (a, b, height) in enumerate(sorted(merges, key=lambda merge: merge[2])):
        one, two = node[sets[a]], node[sets[b]]
        tree[step] = min(one, two), max(one, two), height, sets.subset_size(a) + sets.subset_size(b)
        sets.merge(a, b)
        node[sets[a]] = k + step
    return tree


def two_means(means: Array, n: Array) -> Labels:
    """Two groups by weighted 2-means from the sign along the first principal axis; for too many clients for Ward."""
    x = means - n @ means / n.sum()
    _, axes = np.linalg.eigh((x * n[:, None]).T @ x)
    label: Labels = (x @ axes[:, -1] > 0).astype(np.int64)
    for _ in range(20):
        if not 0 < label.sum() < len(label):
            return label
        centres = np.stack([n[label == g] @ x[label == g] / n[label == g].sum() for g in (0, 1)])
        new: Labels = (np.square(x - centres[1]).sum(axis=1) < np.square(x - centres[0]).sum(axis=1)).astype(np.int64)
        if (new == label).all():
            break
        label = new
    return label


# -- two groups, found on one half of the samples and tested on the other ----------------------------------------------


def split_p(means: Any, halves: Any, n: Any, traces: Any, residual: float = np.inf) -> float:
    """p-value of "no two groups of clients differ": cut on one half of all samples, test on the other, and vice versa.

    means, halves [k, D]: as in Moments, so that means + halves and means - halves are of independent samples, each with
    covariance 2 S / n. n [k]: weights. traces: of S. The result is twice the smaller of the two p-values. Has power
    against two groups that differ by little, because all their samples count together. 1 for fewer than four clients,
    or without halves. Each client needs two samples.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> m, h = draw.normal(size=(2, 40, 50)) / 10
    >>> split_p(m, h, np.full(40, 100), [50, 50, 50]) > 0.01
    True
    >>> m[:20, :10] += 0.15
    >>> split_p(m, h, np.full(40, 100), [50, 50, 50]) < 1e-4
    True
    """
    means, halves, n = as_vectors(means, "means"), as_vectors(halves, "halves"), as_vectors(n, "n", ndim=1)
    # Equal halves count too: without them, the halves of rare events would depend on each other.
    means, halves, n = means[n > 0], halves[n > 0], n[n > 0]
    if len(n) < 4 or not halves.any():
        return 1.0
    p_values = [1.0]
    for cut, other in ((means + halves, means - halves), (means - halves, means + halves)):
        labels = two_means(cut, n)
        one, two = (float(n[labels == group].sum()) for group in (0, 1))
        if one and two:
            away = (n * (labels == 0)) @ other / one - (n * (labels == 1)) @ other / two
            p_values.append(float(null_p(one * two / (one + two) * np.square(away).sum() / 2, 1, traces, residual)))
    return min(1.0, 2 * min(p_values))


# -- clumps: do clients that differ form clumps, or spread like one Gaussian? Only clumps are worth a cut --------------


_CLUMP_REPLICAS, _CLUMP_FIRST = 199, 39
# Above so many clients, profiles are of this many micro-clusters, for data and replicas, so that the level holds.
_MICRO = 150
_DEEPEST = 30


def clump_p(means: Any, n: Any, covariance: Any, *, seed: int = 0) -> tuple[float, float]:
    """p-value of "these clients' true means are from one Gaussian", by simulation, and the strength of the clumps.

    means [k, D] of four clients or more, n [k] samples behind each, covariance [D, D] of one sample. The strength is
    how many deviations the clients' profile lies below that of the Gaussians. Statistic: Ward's profile log W_K
    / W_1, K = 2 .. 30, with W_K the sum of squares within K clusters, in deviations of the replicas for each K; the
    largest counts. Replicas: Gaussians with the covariance between clients (without noise), plus noise. Close to SHC
    (Kimes et al. 2017), which clusters samples instead.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([[-3.0, 0.0], [3.0, 0.0]], 20, axis=0) + rng.normal(size=(40, 2))
    >>> clump_p(truth, np.full(40, 1000), np.eye(2) / 10)[0]
    0.005
    """
    means, n, covariance = as_vectors(means, "means"), as_vectors(n, "n", ndim=1), as_dense(covariance, "covariance")
    k = len(n)
    most = min(k // 2, _DEEPEST) + 1
    x = means - n @ means / n.sum()
    between = ((x * n[:, None]).T @ x - (k - 1) * covariance) / (n.sum() - np.square(n).sum() / n.sum())
    to_truth, to_noise = _root(between, float(np.trace(between))), _root(covariance, float(np.trace(covariance)))
    # Rotate to the axes along which clients differ most, so that micro-clusters are cut there; distances stay.
    axes = np.linalg.eigh((between + between.T) / 2)[1][:, ::-1]
    x, to_truth, to_noise = x @ axes, axes.T @ to_truth, axes.T @ to_noise
    draw = keyed(seed, "clump", k, x.shape[1])

    def replica() -> Array:
        truth: Array = draw.standard_normal((k, to_truth.shape[1])) @ to_truth.T
        truth += (draw.standard_normal((k, to_noise.shape[1])) @ to_noise.T) / np.sqrt(n)[:, None]
        return truth

    profile = _profile(x, n, most)
    nulls = np.stack([_profile(replica(), n, most) for _ in range(_CLUMP_FIRST)])
    p, strength = _rank(profile, nulls)
    # If a quarter of the first replicas is beyond the clients, more replicas would not change the answer.
    if p > 0.25:
        return p, strength
    nulls = np.vstack([nulls, [_profile(replica(), n, most) for _ in range(_CLUMP_REPLICAS - _CLUMP_FIRST)]])
    return _rank(profile, nulls)


def _rank(profile: Array, nulls: Array) -> tuple[float, float]:
    middle, spread = nulls.mean(axis=0), nulls.std(axis=0) + 1e-9
    strength = float(((middle - profile) / spread).max())
    strengths = ((middle - nulls) / spread).max(axis=1)
    return (1 + int((strengths >= strength).sum())) / (len(nulls) + 1), strength


def _root(covariance: Array, trace: float) -> Array:
    """A square root [D, r] of the nearest covariance without negative eigenvalues and with this trace."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    values = np.maximum(values, 0)
    keep = values > 1e-7 * max(float(values[-1]), 1e-300)
    if trace <= 0 or not keep.any():
        return np.zeros((len(covariance), 0))
    root: Array = vectors[:, keep] * np.sqrt(values[keep] * (trace / values.sum()))
    return root


def _profile(x: Array, n: Array, most: int) -> Array:
    """log W_K / W_1 for K = 2 .. most - 1 clusters."""
    if len(x) > _MICRO:
        x, n = _micro(x, n)
    heights = ward(x, n)[:, 2]
    within = np.cumsum(heights)[::-1]
    return np.asarray(np.log(np.maximum(within[1:most] / within[0], 1e-12)))


def _micro(x: Array, n: Array) -> tuple[Array, Array]:
    """Micro-clusters: the costliest one is split at its weighted mean, along its axis of most variance."""
    parts: list[Labels] = [np.arange(len(x))]
    costs = [_square_cost(x, n)]
    while len(parts) < _MICRO:
        rows = parts.pop(at := int(np.argmax(costs)))
        costs.pop(at)
        mean = n[rows] @ x[rows] / n[rows].sum()
        axis = int(np.argmax(n[rows] @ np.square(x[rows] - mean)))
        right = x[rows, axis] > mean[axis]
        for side in (rows[~right], rows[right]):
            if len(side):
                parts.append(side)
                costs.append(_square_cost(x[side], n[side]) if len(side) > 1 and right.any() else 0.0)
    weights = np.array([n[rows].sum() for rows in parts])
    return np.stack([n[rows] @ x[rows] / n[rows].sum() for rows in parts]), weights


def _square_cost(x: Array, n: Array) -> float:
    return float(n @ np.square(x).sum(axis=1) - np.square(n @ x).sum() / n.sum())


# -- classes: do clients differ in what a class looks like, and is it the same shift for every class? ------------------


@dataclass(frozen=True)
class Interaction:
    """Tests of effects beyond class: each client's offset, and client by class (the concept).

    p: p-values; size: variance between clients / scatter within.
    """

    offset_p: float = 1.0
    offset_size: float = 0.0
    concept_p: float = 1.0
    concept_size: float = 0.0


def interaction(
    client: Any, kind: Any, n: Any, means: Any, traces: Any, own: Any = None, residual: Any = np.inf
) -> Interaction:  # fmt: skip
    """Two-way analysis of variance of class means, unbalanced and with empty cells, by least squares.

    One row per cell: client [E], kind [E] (its class), n [E] samples, means [E, P]. traces [3]: of the covariance
    within cells. own [E]: tr S of each cell if classes vary differently; None: that of all. residual: degrees of
    freedom behind `own`, one number or [E], of all cells of a class together. Models: class; class + client (the
    offset); client by class (the concept).

    >>> import numpy as np
    >>> client, kind = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    >>> m = np.random.default_rng(0).normal(size=(24, 8)) / 10 + client[:, None] / 5
    >>> found = interaction(client, kind, np.full(24, 100.0), m, [8, 8, 8])
    >>> found.offset_p < 1e-9, found.concept_p > 0.01
    (True, True)
    """
    means, n = as_vectors(means, "means"), as_vectors(n, "n", ndim=1)
    fit = ClassClientFit.of(client, kind, n, means)
    i, c, k, m, cells = fit.i, fit.c, fit.k, fit.m, len(n)
    of_client, of_class = np.bincount(i, n, k), np.bincount(c, n, m)
    # Leverages: how much of a cell's variance each model takes up.
    spread = fit.shares @ fit.inverse
    inside = np.asarray((fit.shares.multiply(spread)).sum(axis=1)).ravel()
    taken = n * (1 / of_client[i] + fit.inverse[c, c] - 2 * spread[i, c] + inside[i])
    left, gained = 1 - taken, taken - n / of_class[c]
    own = np.full(cells, float(traces[0])) if own is None else as_vectors(own, "own", ndim=1)
    residual = np.broadcast_to(np.asarray(residual, dtype=float), (cells,))
    rest, total = (float(n @ np.square(v).sum(axis=1)) for v in (fit.both, fit.alone))
    offset = _effect(total - rest, k - fit.parts, own, gained, traces, residual, c, n.sum() / k)
    concept = _effect(rest, cells - k - m + fit.parts, own, left, traces, residual, c, n.mean())
    return Interaction(*offset, *concept)


@dataclass(frozen=True, eq=False)
class ClassClientFit:
    """Cell mean = class + client, by weighted least squares."""

    i: Labels  # number of each cell's client, 0 .. k - 1
    c: Labels  # number of each cell's class, 0 .. m - 1
    k: int
    m: int
    parts: int  # number of sets of clients and classes that no cell links
    shares: Any  # [k, m]: weight of each class at each client
    inverse: Array  # [m, m]: covariance of the classes' effects, for S = 1
    client: Array  # [k, P]: effects
    alone: Array  # [E, P]: residuals of class alone
    both: Array  # [E, P]: residuals of class + client

    @classmethod
    def of(cls, client: Any, kind: Any, n: Array, means: Array) -> ClassClientFit:
        """Fit these cells: client [E], kind [E] (its class), n [E] weights, means [E, P]."""
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


def _effect(
    q: float, df: int, own: Array, left: Array, traces: Any, sure: Array, c: Labels, per: float
) -> tuple[float, float]:  # fmt: skip
    """p-value and size of a sum of squares to which each cell adds `left` degrees of freedom at its own tr S."""
    expected = float(own @ left)
    if df <= 0 or expected <= 0:
        return 1.0, 0.0
    # A class that varies more has a covariance of the same shape: tr S^j is proportional to (tr S)^j.
    t1 = float(traces[0])
    scaled = [max(float((own / t1) ** j @ left), 0.0) / df * float(traces[j - 1]) for j in (1, 2, 3)]
    # Write the variance of the expectation, summed over classes, as degrees of freedom of one estimate.
    doubt = float((np.bincount(c, own / t1 * left) ** 2 / (np.bincount(c, sure) / np.bincount(c))).sum())
    residual = df**2 * scaled[1] / (float(traces[1]) * doubt) if doubt > 0 and traces[1] > 0 else np.inf
    return float(null_p(q, df, scaled, residual)), max((q / expected - 1) / per, 0.0)
