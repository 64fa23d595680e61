"""The graph of very many clients' models, of neighbours only: a matrix of all pairs would not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError

__all__ = ["LARGEST", "NEAR", "neighbour_affinity", "points"]

LARGEST = 5000  # clients up to which all pairs are compared
NEAR = 16  # neighbours of a client, where no stage says how many


def points(vectors: Sequence[Tensor]) -> Any:
    """The vectors as rows [n, d] in single precision."""
    return torch.stack(list(vectors)).float().numpy()


def neighbour_affinity(vectors: Sequence[Tensor], similarity: str, sparsify: str, seed: int) -> Any:
    """A csr_array [n, n] of the cosines of each vector with its nearest, after the stage `sparsify`; symmetric.

    knn:K and mutual:K take the K nearest, other stages the 16 nearest. Nearly all true neighbours are found
    (`fedkin.graph.approximate_nearest`). Raises ConfigError for stages that compare all pairs.
    """
    stage, _, argument = sparsify.partition(":")
    if similarity != "cosine" or stage not in ("none", "epsilon", "knn", "mutual"):
        raise ConfigError(
            f"method.graph: similarity {similarity!r} with sparsify {sparsify!r} compares all pairs of "
            f"{len(vectors):,} clients; above {LARGEST:,}, neighbours are found by similarity 'cosine' with sparsify "
            "'none', 'epsilon:E', 'knn:K' or 'mutual:K'"
        )
    count = int(argument) if stage in ("knn", "mutual") else NEAR
    found = graph.approximate_nearest(points(vectors), count, seed=seed).graph
    if stage == "epsilon":
        found.data = np.where(found.data >= float(argument), found.data, 0.0)
        found.eliminate_zeros()
    return graph.symmetrise(found, mutual=stage == "mutual")
