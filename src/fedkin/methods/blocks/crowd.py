"""The graph of very many clients' models, of neighbours only: a matrix of all pairs would not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError

__all__ = [
    "COMPLETE",
    "LARGEST",
    "NEAR",
    "by_content",
    "check_all_pairs",
    "check_measure",
    "neighbour_affinity",
    "points",
]

LARGEST = 5000  # clients up to which all pairs are compared
COMPLETE = 20_000  # clients up to which a stage may link all pairs
NEAR = 16  # neighbours of a client, where no stage says how many
_KEPT = ("none", "epsilon", "knn", "mutual")


def check_all_pairs(clients: int, **stages: str) -> None:
    """Raise ConfigError for a stage of [method.graph], by name, that links all pairs of too many clients."""
    for name, stage in stages.items():
        if stage in ("oracle", "planted", "uniform") and clients > COMPLETE:
            raise ConfigError(
                f"method.graph.{name}: {stage!r} links all pairs of clients, and {clients:,} clients are too many for "
                f"that: take at most {COMPLETE:,} clients, or another {name}"
            )


def check_measure(clients: int, name: str, similarity: str, sparsify: str = "none") -> None:
    """Raise ConfigError if the setting `name` of [method.graph], or `sparsify`, compares all pairs of too many."""
    if clients <= LARGEST:
        return
    if similarity != "cosine":
        raise ConfigError(
            f"method.graph.{name}: {similarity!r} compares all pairs of {clients:,} clients; above {LARGEST:,}, "
            "neighbours are found by 'cosine'"
        )
    if sparsify.partition(":")[0] not in _KEPT:
        raise ConfigError(
            f"method.graph.sparsify: {sparsify!r} compares all pairs of {clients:,} clients; above {LARGEST:,}, take "
            "'none', 'epsilon:E', 'knn:K' or 'mutual:K'"
        )


def points(vectors: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    """The vectors as rows [n, d] in double precision: single precision hides who is near in models that are alike."""
    return np.asarray(torch.stack(list(vectors)).double().numpy())


def by_content(vectors: Sequence[Tensor]) -> npt.NDArray[np.int64]:
    """The order [n] of the vectors by a hash of their values: what is drawn by row in it knows no client's name."""
    told = [blake2b(one.contiguous().numpy().tobytes(), digest_size=16).digest() for one in vectors]
    return np.array(sorted(range(len(told)), key=told.__getitem__), dtype=np.int64)


def neighbour_affinity(vectors: Sequence[Tensor], similarity: str, sparsify: str, seed: int) -> Any:
    """A csr_array [n, n] of the cosines of each vector with its nearest, after the stage `sparsify`; symmetric.

    knn:K and mutual:K take the K nearest, other stages the 16 nearest. Nearly all true neighbours are found
    (`fedkin.graph.approximate_nearest`), the same in any order of the clients. Raises ConfigError for stages that
    compare all pairs.
    """
    check_measure(len(vectors), "similarity", similarity, sparsify)
    stage, _, argument = sparsify.partition(":")
    count = int(argument) if stage in ("knn", "mutual") else NEAR
    order = by_content(vectors)
    back = np.argsort(order)
    found = graph.approximate_nearest(points([vectors[row] for row in order.tolist()]), count, seed=seed).graph
    found = found[back][:, back]
    if stage == "epsilon":
        found.data = np.where(found.data >= float(argument), found.data, 0.0)
        found.eliminate_zeros()
    return graph.symmetrise(found, mutual=stage == "mutual")
