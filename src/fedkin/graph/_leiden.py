"""scikit-network's Leiden with a deterministic refinement."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sknetwork.clustering import Leiden

__all__ = ["GreedyLeiden"]


class GreedyLeiden(Leiden):  # type: ignore[misc]
    """Leiden that refines groups by the best merge inside each group.

    scikit-network draws merges from the C library's unseeded rand(), and repeats them until no merge gains. In single
    precision this may never end. Here scikit-network's compiled local search refines a group, on the edges inside
    groups and with the weights of the whole graph. This is the limit of Traag et al.'s rule at temperature 0.
    """

    def _optimize_refine(
        self, labels: Any, labels_refined: Any, adjacency: Any, out_weights: Any, in_weights: Any
    ) -> Any:
        coo = sp.coo_matrix(adjacency)
        inside = labels[coo.row] == labels[coo.col]
        within = sp.csr_matrix((coo.data[inside], (coo.row[inside], coo.col[inside])), shape=adjacency.shape)
        refined, _ = self._optimize(np.asarray(labels_refined), within, out_weights, in_weights)
        return np.asarray(refined)
