"""FLT's Algorithm 2, lines 13 to 19, at the server: from signatures to graph and groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.methods.flt import crowd, relatedness
from fedkin.methods.flt.relatedness import Related, RelatednessSettings, Sets

__all__ = ["relate"]


def relate(signed: Sets, settings: RelatednessSettings, seed: int, planted: Any = None) -> Related:
    """Algorithm 2, lines 13 to 19: from n clients' centres [k, d], or signatures of moments, to graph and groups."""
    drawn = crowd.drawn(len(signed), seed)  # all of them, up to 5,000
    some = [signed[row] for row in drawn.tolist()]
    places = relatedness.embedded(some, settings, seed)  # 13, 14: Z = UMAP(M)
    between = relatedness.distances(places, settings)  # 15, 16: A_ij = min |u_ir - u_js|
    # 18, 19: C = HC(A), first: gamma may be found from the groups
    verdicts = relatedness.tested(some, settings, seed) if settings.from_test else None
    groups = relatedness.clusters(between, settings) if verdicts is None else verdicts.labels
    gamma = relatedness.threshold(between, groups, settings.gamma)
    linked: Any = relatedness.adjacency(between, gamma, settings)  # 17: the thresholded A
    np.fill_diagonal(linked, 0.0)
    if settings.cluster == "rows" and verdicts is None:
        groups = relatedness.clusters(relatedness.row_distances(linked), settings)  # 18, 19: C = HC(thresholded A)
    recall = None
    if len(some) < len(signed):
        del between
        linked, groups, recall = crowd.spread(signed, some, groups, drawn, gamma, settings, seed)
    kept = verdicts if settings.control == "none" else None
    linked, groups = relatedness.controlled(linked, groups, settings.control, seed, planted)
    return Related(linked, groups, gamma, kept, drawn, recall)
