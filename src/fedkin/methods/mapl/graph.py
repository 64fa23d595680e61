"""The graph that MAPL's peers have learned, for the records: no peer ever sees it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedkin import graph
from fedkin.methods.blocks.mixing import mixing_matrix

__all__ = ["learned_graph"]


def learned_graph(rows: Mapping[str, Mapping[str, float]]) -> graph.Graph:
    """The peers' rows of weights as a graph: `mixing` holds the rows, `weights` their symmetric mean.

    The groups are the communities that Leiden finds in the symmetric mean.
    """
    ids, mixing = mixing_matrix(rows)
    weights = (mixing + mixing.T) / 2
    np.fill_diagonal(weights, 0.0)
    return graph.Graph(ids, weights, groups=graph.by_id(ids, graph.leiden(weights)), mixing=mixing)
