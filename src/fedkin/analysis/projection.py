"""Points of feature space in the plane, and how well their kinds are separated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform

from fedkin.graph import pca, silhouette

__all__ = ["project", "separation"]

Array = npt.NDArray[np.float64]

# With fewer points t-SNE shows no more than principal components do.
_FEW = 12
_STEPS = 500


def project(points: Any, start: Array | None = None, *, seed: int = 0) -> Array:
    """Positions [n, 2], largest entry 1, of points [n, d] by t-SNE (van der Maaten and Hinton 2008), by scikit-learn.

    start: initial positions, for instance those of an earlier round; None: principal components, which are also
    the result for fewer than 12 points. Perplexity is n / 10, from 4 to 30: above the size of the clusters it would
    let each of them collapse. One thread is used, so that the same points get the same positions.
    """
    x = np.asarray(points, dtype=np.float64)
    if start is None or float(start.std(axis=0).max()) == 0:
        start = pca(x, dims=2)
    if len(x) >= _FEW and float(start.std(axis=0).max()) > 0:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        with threadpool_limits(1):
            begin = (start / start.std(axis=0).max() * 1e-4).astype(np.float32)
            near = min(float(np.clip(len(x) / 10, 4, 30)), (len(x) - 1) / 3)
            made = TSNE(perplexity=near, init=begin, random_state=seed, **{_steps_name(TSNE): _STEPS})
            start = np.asarray(made.fit_transform((x - x.mean(0)) / max(float(x.std()), 1e-12)), dtype=np.float64)
    centred = start - (start.max(0) + start.min(0)) / 2
    return np.asarray(centred / max(float(np.abs(centred).max()), 1e-12))


def _steps_name(tsne: Any) -> str:
    """scikit-learn 1.5 gave `n_iter` another name."""
    return "max_iter" if "max_iter" in tsne().get_params() else "n_iter"


def separation(points: Any, kinds: Sequence[Any]) -> float | None:
    """Mean silhouette of points [n, d] by kind, in [-1, 1]: high if the kinds are separated (Rousseeuw 1987).

    None for one kind only, or if every point is of its own kind.
    """
    _, labels = np.unique(np.asarray(kinds), return_inverse=True)
    if not 2 <= int(labels.max(initial=0)) + 1 < len(labels):
        return None
    return float(silhouette(squareform(pdist(np.asarray(points, dtype=np.float64))), labels).mean())
