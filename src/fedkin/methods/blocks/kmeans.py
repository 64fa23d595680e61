"""k-means centres of a client's samples, the same bits in every run; distances between sets of centres."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin import graph

__all__ = ["centres_of", "distances"]

_DISTANCES = {"matching": graph.matching, "minimum": graph.minimum, "hausdorff": graph.hausdorff}


def centres_of(x: Tensor, k: int, seed: int) -> Tensor:
    """k-means centres [k, d] of x [n, d] (k-means++, the best of 4 starts); fewer if there are fewer distinct rows.

    >>> centres_of(torch.tensor([[0.0], [2.0], [10.0]]), 2, seed=0).flatten().sort().values.tolist()
    [1.0, 10.0]
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than k
        labels = KMeans(min(k, len(x)), n_init=4, random_state=seed).fit_predict(x.numpy()).astype(np.int64)
    # Means are taken here: those of scikit-learn's threads differ in the last bits from run to run.
    return torch.stack([x[torch.from_numpy(labels == label)].mean(0) for label in np.unique(labels)])


def distances(sets: Sequence[Tensor], kind: str, others: Sequence[Tensor] | None = None) -> npt.NDArray[np.float64]:
    """Distances between every two sets of centres; with `others`, from each set to each of them.

    kind: "matching", "minimum" or "hausdorff" (`fedkin.graph`).
    """
    several = [sets] if others is None else [sets, others]
    return _DISTANCES[kind](*([np.asarray(one.double().numpy()) for one in each] for each in several))
