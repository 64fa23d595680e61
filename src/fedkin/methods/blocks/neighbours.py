"""Graphs of more clients than a dense matrix of all pairs is made for: each client is linked with its nearest only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError

__all__ = [
    "COMPLETE", "LARGEST", "NEAR", "check_all_pairs", "check_measure", "neighbour_affinity", "points", "sparsified",
]  # fmt: skip

LARGEST = 5000  # clients up to which graphs are dense
COMPLETE = 20_000  # clients up to which a stage may link, or compare, all pairs
NEAR = 16  # neighbours of a client, where no stage says how many
_KEPT = ("none", "epsilon", "knn", "mutual")
_ROWS = 512  # of a matrix of all pairs, sorted at a time


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


def neighbour_affinity(vectors: Sequence[Tensor], sparsify: str) -> sp.csr_array:
    """A symmetric csr_array [n, n] of the cosines of each vector with its nearest, after the stage `sparsify`.

    knn:K and mutual:K take the K nearest, other stages the 16 nearest.
    """
    return _linked(graph.nearest(points(vectors), _count(sparsify)), sparsify)


def sparsified(similar: Any, sparsify: str) -> sp.csr_array:
    """The same from similarities of all pairs [n, n], of which only the positive ones count; a few rows at a time."""
    n = len(similar)
    count = min(_count(sparsify), n - 1)
    columns, values = np.empty((n, count), dtype=np.int64), np.empty((n, count))
    for start in range(0, n, _ROWS):
        block = similar[start : start + _ROWS].astype(np.float64)
        block[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
        here = slice(start, start + len(block))
        columns[here] = np.argpartition(-block, count - 1, axis=1)[:, :count]
        values[here] = np.take_along_axis(block, columns[here], axis=1)
    kept = values > 0
    rows = np.repeat(np.arange(n), count)[kept.ravel()]
    return _linked(sp.csr_array((values[kept], (rows, columns[kept])), shape=(n, n)), sparsify)


def _count(sparsify: str) -> int:
    stage, _, argument = sparsify.partition(":")
    return int(argument) if stage in ("knn", "mutual") else NEAR


def _linked(directed: sp.csr_array, sparsify: str) -> sp.csr_array:
    """Both directions of each edge, and those that the stage keeps."""
    stage, _, argument = sparsify.partition(":")
    if stage == "epsilon":
        directed.data = np.where(directed.data >= float(argument), directed.data, 0.0)
        directed.eliminate_zeros()
    return sp.csr_array(graph.symmetrise(directed, mutual=stage == "mutual"))
