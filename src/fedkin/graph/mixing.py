"""Mixing matrices W [n, n] with rows that sum to 1, the simplex of such rows, and the rows that peers learn.

The clients' new values are W @ X. A client without neighbours has the identity's row in W, so it keeps its own values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Matrix, as_counts, as_labels, as_matrix, as_vectors, only


def laplacian(a: Any, groups: Any = None) -> Matrix:
    """Return L = D - A of symmetric `a` [n, n], only of edges inside `groups` if given. Rows sum to 0.

    >>> laplacian(np.array([[0.0, 2.0], [2.0, 0.0]]))
    array([[ 2., -2.],
           [-2.,  2.]])
    """
    a = as_matrix(a, nonnegative=True)
    labels = as_labels(np.zeros(a.shape[0]) if groups is None else groups, a.shape[0], "groups")
    if isinstance(a, np.ndarray):
        inside = np.where(labels[:, None] == labels, a, 0.0)
        np.fill_diagonal(inside, 0.0)
        return np.diag(inside.sum(axis=1)) - inside
    coo = a.tocoo()
    within = only(coo, (labels[coo.row] == labels[coo.col]) & (coo.row != coo.col))
    return sp.csr_array(sp.diags_array(np.asarray(within.sum(axis=1)).ravel(), format="csr") - within)


def laplacian_step(a: Any, groups: Any, rate: float) -> Matrix:
    """Return W = I - rate * L inside groups: x_k - rate * sum_l a_kl (x_k - x_l) (SFMTL-Graph, Eq. 15; FedU).

    groups: labels [n], or None for the whole graph. Rows sum to 1 for any rate. Entries are non-negative
    if rate <= 1 / the largest weighted degree inside a group.

    >>> laplacian_step(np.array([[0.0, 1.0], [1.0, 0.0]]), [0, 0], 0.25)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    if not (np.isfinite(rate) and rate >= 0):
        raise GraphError(f"rate: expected a number of at least 0, got {rate}")
    inner = laplacian(a, groups)
    if isinstance(inner, np.ndarray):
        return np.eye(len(inner)) - rate * inner
    return sp.csr_array(sp.eye_array(inner.shape[0], format="csr") - rate * inner)


# -- the probability simplex {w >= 0, sum w = 1} -----------------------------------------------------------------------


def project(v: Any, *, floor: float = 0.0) -> Array:
    """Return the nearest point to `v` [n], or to each row of [m, n], with entries >= floor that sum to 1.

    The algorithm sorts the entries (Held, Wolfe and Crowder 1974; Duchi et al. 2008). floor * n must not exceed 1.

    >>> project([0.5, 2.0, -1.0])
    array([0., 1., 0.])
    >>> project([0.5, 2.0, -1.0], floor=0.1)
    array([0.1, 0.8, 0.1])
    """
    if np.ndim(v) not in (1, 2):
        raise GraphError(f"v: expected a vector [n] or rows [m, n], got {np.ndim(v)} axes")
    array = as_vectors(v, "v", ndim=np.ndim(v))
    n = array.shape[-1]
    rows = array.reshape(-1, n)
    if not (np.isfinite(floor) and floor >= 0 and floor * n <= 1 + 1e-12):
        raise GraphError(f"floor: expected 0 to 1/{n} so that {n} entries can sum to 1, got {floor}")
    room = max(1.0 - floor * n, 0.0)
    # Only differences matter. Entries that are lower than the largest by more than `room` end at the floor.
    rows = np.maximum(rows - rows.max(axis=1, keepdims=True), -2.0)
    ordered = -np.sort(-rows, axis=1)
    excess = np.cumsum(ordered, axis=1) - room
    count = np.arange(1, n + 1)
    # With room 0 no entry passes the test. The largest entry is then kept, with excess 0.
    support = np.maximum((ordered * count > excess).sum(axis=1), 1)
    cut = excess[np.arange(len(rows)), support - 1] / support
    return np.asarray(np.maximum(rows - cut[:, None], 0.0) + floor).reshape(array.shape)


def norm_regularised(c: Any, b: float, *, trust: Any = None) -> Array:
    """Return the w on the simplex that minimises -<c, w> + b |w|_2, for `c` [n].

    b: at least 0. trust: t [n] above 0; the norm is then |w / sqrt(t)|_2, so that equal c give w proportional to t.
    Stationarity gives w_j = t_j (c_j - nu)_+ up to a factor, with sum_j t_j (c_j - nu)_+^2 = b^2. So nu solves a
    quadratic equation on each candidate support, and w is exact. b = 0 is the limit: all weight is on the largest
    entries.

    >>> norm_regularised([1.0, 1.0, 0.0], 0.5)
    array([0.5, 0.5, 0. ])
    >>> norm_regularised([1.0, 1.0, 0.0], 0.5, trust=[3.0, 1.0, 1.0])
    array([0.75, 0.25, 0.  ])
    """
    c = as_vectors(c, "c", ndim=1)
    t = _trust(trust, len(c))
    c = c - c.max()
    if b == 0:
        best = (c == 0) * t
        return np.asarray(best / best.sum())
    # In units of b and of the largest trust. Entries more than b / sqrt(t) below the largest get weight 0.
    with np.errstate(over="ignore"):
        c = np.maximum(c * np.sqrt(t.max()) / b, -2.0 * np.sqrt(t.max() / t.min()))
    order = np.argsort(-c, kind="stable")
    ordered, share = c[order], (t / t.max())[order]
    count, first, second = np.cumsum(share), np.cumsum(share * ordered), np.cumsum(share * np.square(ordered))
    # Entry m is in the support if and only if nu is below it, that is, if sum_{i<=m} t_i (c_i - c_m)^2 < 1.
    last = int((second - 2 * ordered * first + count * np.square(ordered) < 1).sum()) - 1
    mean = first[last] / count[last]
    cut = mean - np.sqrt(max(1 / count[last] - (second[last] / count[last] - np.square(mean)), 0.0))
    weight = np.maximum(c - cut, 0.0) * t
    return np.asarray(weight / weight.sum())


def _trust(trust: Any, n: int) -> Array:
    if trust is None:
        return np.ones(n)
    t = as_counts(trust, n, "trust")
    if not (t > 0).all():
        raise GraphError(f"trust: expected numbers above 0, got {t.min():g} at {int(t.argmin())}")
    return t


def softmax(values: Any, temperature: float = 1.0) -> Array:
    """Return exp(c_k / temperature) divided by its sum: a prior [n] on clients from centralities [n] (TFL).

    temperature: above 0. A high temperature gives a prior near uniform, a low one a prior near one-hot.

    >>> softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    c = as_vectors(values, "values", ndim=1)
    if not (np.isfinite(temperature) and temperature > 0):
        raise GraphError(f"temperature: expected a number above 0, got {temperature}")
    with np.errstate(over="ignore"):
        weight = np.exp((c - c.max()) / temperature)
    return np.asarray(weight / weight.sum())


# -- collaboration weights that one peer learns for itself: MAPL's graph objective over its own row of weights
#
# A peer has similarities s [n] to itself (at index `own`) and to the peers that sent it a message. It seeks w [n] on
# the simplex {w >= 0, sum w = 1} that minimises (MAPL, Eq. 7-9)
#
#     -mu1 sum_j gamma_j s_j w_j + mu2 (beta |w / sqrt(trust)|_2 - log(deg + eps)),   deg = 1 - w_own.
#
# gamma and trust are confidences in each peer. The paper has only gamma, sample counts divided by their sum over all
# peers. With trust, similarity chooses the peers, and counts only divide the weight between the chosen peers.


_HALVINGS = 64  # of [0, 1]: down to the spacing of floats


def relative_similarity(s: Any, own: int, *, alike: float = 0.45) -> Array:
    """Divide `s` [n] by the best neighbour's similarity, if that is at least `alike`.

    Results are at least -1, and the peer's own is 1. So the best neighbour has the same similarity as the peer itself,
    unless no neighbour is similar enough.

    >>> relative_similarity([1.0, 0.8, 0.2, -0.4], own=0)
    array([ 1.  ,  1.  ,  0.25, -0.5 ])
    >>> relative_similarity([1.0, 0.4, 0.0], own=0)
    array([1. , 0.4, 0. ])
    """
    s, own = _row(s, own)
    best = np.delete(s, own).max(initial=-1.0)
    scaled = np.maximum(s / (best if best >= alike else 1.0), -1.0)
    scaled[own] = 1.0
    return np.asarray(scaled)


def collaboration_weights(
    s: Any, own: int, *, gamma: Any = None, trust: Any = None,
    mu1: float = 0.5, mu2: float = 0.1, beta: float = 0.5, eps: float = 1e-6,
) -> Array:  # fmt: skip
    """Return the row w [n] of collaboration weights that one peer learns (MAPL, Eq. 7-9), solved exactly.

    It minimises -mu1 sum_j gamma_j s_j w_j + mu2 (beta |w / sqrt(trust)|_2 - log(1 - w_own + eps)), with w at least 0
    and of sum 1. s: similarities [n] to the peers and, at the index `own`, to itself. gamma, trust: confidences [n] in
    each peer (None: 1). Raises GraphError for numbers that are not finite, and for a negative weight or confidence.

    The degree depends on w_own alone, so that at the optimum its gradient acts like a lower similarity of the peer
    with itself, by lambda = mu2 / (deg + eps). For a given lambda, `norm_regularised` gives the optimal w. Its w_own
    falls as lambda grows, so a bisection on w_own finds the value at which both agree.

    >>> collaboration_weights([1.0, 1.0, 1.0, 0.0], own=0, mu2=0.01, beta=10.0).round(3)
    array([0.28, 0.36, 0.36, 0.  ])
    """
    s, own = _row(s, own)
    linear = mu1 * as_counts(gamma, len(s), "gamma") * s
    for name, value, low in (("mu1", mu1, 0.0), ("mu2", mu2, 0.0), ("beta", beta, 0.0), ("eps", eps, 1e-300)):
        if not (np.isfinite(value) and value >= low):
            raise GraphError(f"{name}: expected a number of at least {low:g}, got {value}")
    if len(s) == 1:
        return np.ones(1)

    def best(share: float) -> Array:
        """Return the optimum with the gradient of the log fixed at its value for w_own = share."""
        tilted = linear.copy()
        tilted[own] -= mu2 / (1.0 - share + eps)
        return norm_regularised(tilted, mu2 * beta, trust=trust)

    low, high = 0.0, 1.0
    below, above = best(low), best(high)
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        w = best(share)
        if w[own] >= share:
            low, below = share, w
        else:
            high, above = share, w
    # Both are optimal to rounding. Where the optimum jumps (beta = 0), w_own is between those of the two.
    span = below[own] - above[own]
    part = np.clip((low - above[own]) / span, 0.0, 1.0) if span > 0 else 1.0
    return np.asarray(part * below + (1 - part) * above)


def gradient_step(
    w: Any, s: Any, own: int, *, gamma: Any = None, mu1: float = 0.5, mu2: float = 0.1, beta: float = 0.5,
    eps: float = 1e-6, rate: float = 0.1, steps: int = 1,
) -> Array:  # fmt: skip
    """Take `steps` gradient steps on the objective (trust 1) from w [n], each projected on the simplex (Algorithm 2).

    >>> gradient_step([0.5, 0.5], [1.0, 0.0], own=0, mu2=0.0, rate=0.2).round(3)
    array([0.55, 0.45])
    """
    s, own = _row(s, own)
    w, gamma = as_counts(w, len(s), "w"), as_counts(gamma, len(s), "gamma")
    others = np.arange(len(s)) != own
    for _ in range(steps):
        slope = -mu1 * gamma * s + mu2 * beta * w / max(np.linalg.norm(w), 1e-300)
        slope = slope - others * mu2 / (float(w.sum() - w[own]) + eps)
        w = project(w - rate * slope)
    return np.asarray(w)


def sign_step(
    w: Any, s: Any, own: int, *, gamma: Any = None, mu1: float = 0.5, mu2: float = 0.1, beta: float = 0.5,
    rate: float = 0.1,
) -> Array:  # fmt: skip
    """Take the released code's step: +rate where the gradient without the log term is negative, else -rate.

    The result is projected on the simplex. A first step of Adam is the same. An entry grows if and only if
    s_j > (mu2 beta / mu1) w_j / (gamma_j |w|_2).

    >>> sign_step([0.5, 0.5], [1.0, 0.0], own=0).round(3)
    array([0.6, 0.4])
    """
    s, own = _row(s, own)
    w, gamma = as_counts(w, len(s), "w"), as_counts(gamma, len(s), "gamma")
    slope = -mu1 * gamma * s + mu2 * beta * w / max(np.linalg.norm(w), 1e-300)
    return project(w - rate * np.sign(slope))


def _row(s: Any, own: int) -> tuple[Array, int]:
    row = as_vectors(s, "s", ndim=1)
    if not 0 <= own < len(row):
        raise GraphError(f"own: expected a place from 0 to {len(row) - 1}, got {own}")
    return row, int(own)
