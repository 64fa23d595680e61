"""scikit-network's Leiden with a refinement that a seed fixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sknetwork.clustering import Leiden

__all__ = ["GreedyLeiden"]


class GreedyLeiden(Leiden):  # type: ignore[misc]
    """Refinement by the best merge inside each group.

    scikit-network draws merges from the C library's unseeded rand() and repeats them until none gains, which
    single precision may never reach. Here a group is refined by its own compiled local search on the edges
    inside groups, with the whole graph's weights: the limit of Traag et al.'s rule at temperature 0.
    """

    def _optimize_refine(
        self, labels: Any, labels_refined: Any, adjacency: Any, out_weights: Any, in_weights: Any
    ) -> Any:
        coo = sp.coo_matrix(adjacency)
        inside = labels[coo.row] == labels[coo.col]
        within = sp.csr_matrix((coo.data[inside], (coo.row[inside], coo.col[inside])), shape=adjacency.shape)
        refined, _ = self._optimize(np.asarray(labels_refined), within, out_weights, in_weights)
        return np.asarray(refined)
