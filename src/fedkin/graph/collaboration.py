"""Collaboration weights that one peer learns for itself: MAPL's graph objective over its own row of weights.

A peer has similarities s [n] to itself (at index `own`) and to the peers that sent it a message. It seeks w [n] on
the simplex {w >= 0, sum w = 1} that minimises (MAPL, Eq. 7-9)

    -mu1 sum_j gamma_j s_j w_j + mu2 (beta |w / sqrt(trust)|_2 - log(deg + eps)),   deg = 1 - w_own.

gamma and trust are confidences in each peer. The paper has only gamma, sample counts divided by their sum over all
peers. With trust, similarity chooses the peers, and counts only divide the weight between the chosen peers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_counts, as_vectors
from fedkin.graph.simplex import norm_regularised, project

__all__ = ["collaboration_loss", "collaboration_weights", "gradient_step", "relative_similarity", "sign_step"]

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
    if not (np.isfinite(alike) and alike > 0):
        raise GraphError(f"alike: expected a similarity above 0, got {alike}")
    best = np.delete(s, own).max(initial=-1.0)
    scaled = np.maximum(s / (best if best >= alike else 1.0), -1.0)
    scaled[own] = 1.0
    return np.asarray(scaled)


def collaboration_loss(
    w: Any, s: Any, own: int, *, gamma: Any = None, trust: Any = None,
    mu1: float = 0.5, mu2: float = 0.1, beta: float = 0.5, eps: float = 1e-6,
) -> float:  # fmt: skip
    """Return the objective above at w [n]; gamma and trust are [n], None means 1 for each peer.

    >>> round(collaboration_loss([0.5, 0.5], [1.0, 0.0], own=0, mu1=1.0, mu2=0.0), 3)
    -0.5
    """
    s, own = _row(s, own)
    w, gamma, trust = as_counts(w, len(s), "w"), as_counts(gamma, len(s), "gamma"), as_counts(trust, len(s), "trust")
    norm = np.linalg.norm(w / np.sqrt(trust))
    return float(-mu1 * (gamma * s) @ w + mu2 * (beta * norm - np.log(_degree(w, own) + eps)))


def collaboration_weights(
    s: Any, own: int, *, gamma: Any = None, trust: Any = None,
    mu1: float = 0.5, mu2: float = 0.1, beta: float = 0.5, eps: float = 1e-6,
) -> Array:  # fmt: skip
    """Return the w [n] that minimises the objective above, exactly.

    The degree depends on w_own alone, so that at the optimum its gradient acts like a lower similarity of the peer
    with itself, by lambda = mu2 / (deg + eps). For a given lambda, `norm_regularised` gives the optimal w. Its w_own
    falls as lambda grows, so a bisection on w_own finds the value at which both agree.

    >>> collaboration_weights([1.0, 1.0, 1.0, 0.0], own=0, mu2=0.01, beta=10.0).round(3)
    array([0.28, 0.36, 0.36, 0.  ])
    """
    s, own = _row(s, own)
    linear = mu1 * as_counts(gamma, len(s), "gamma") * s
    for name, value, least in (("mu1", mu1, 0.0), ("mu2", mu2, 0.0), ("beta", beta, 0.0), ("eps", eps, 1e-300)):
        if not (np.isfinite(value) and value >= least):
            raise GraphError(f"{name}: expected a number of at least {least:g}, got {value}")
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
        slope = slope - others * mu2 / (_degree(w, own) + eps)
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


def _degree(w: Array, own: int) -> float:
    return float(w.sum() - w[own])


def _row(s: Any, own: int) -> tuple[Array, int]:
    row = as_vectors(s, "s", ndim=1)
    if not 0 <= own < len(row):
        raise GraphError(f"own: expected a place from 0 to {len(row) - 1}, got {own}")
    return row, int(own)
