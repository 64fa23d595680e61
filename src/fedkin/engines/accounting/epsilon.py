"""Epsilon of Gaussian releases, by Opacus' accountant of Renyi differential privacy."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from importlib.util import find_spec

import numpy as np

from fedkin.errors import ConfigError

__all__ = ["epsilon", "need"]

# Opacus' own orders end at 63, which is too low for a single release with much noise.
_ORDERS = list(1 + np.geomspace(1e-3, 1e6, 600))


def need() -> None:
    """Raise ConfigError unless Opacus is installed."""
    if find_spec("opacus") is None:
        raise ConfigError("[privacy]: epsilon is computed by Opacus, which is missing: pip install 'fedkin[privacy]'")


@lru_cache(maxsize=4096)
def epsilon(noise: float, releases: int, delta: float) -> float:
    """Return the epsilon of releases with this noise multiplier (standard deviation over sensitivity), composed.

    Each release is a Gaussian mechanism, whose Renyi divergence of order a is a / (2 noise^2) (Mironov, CSF 2017).
    There is no amplification by sampling: the server knows who was asked. 0 without releases, infinite without noise.

    >>> epsilon(5.0, 0, 1e-5), epsilon(0.0, 3, 1e-5)
    (0.0, inf)
    """
    if not releases:
        return 0.0
    if not noise:
        return math.inf
    need()
    # Opacus takes long to import, and is needed only here.
    from opacus.accountants.analysis import rdp

    spent = rdp.compute_rdp(q=1.0, noise_multiplier=noise, steps=releases, orders=_ORDERS)
    with warnings.catch_warnings():
        # That the best order is the first or the last one: the bound holds all the same.
        warnings.simplefilter("ignore", UserWarning)
        found, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(found))
