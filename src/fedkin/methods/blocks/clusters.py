"""What clustered methods share: one model per cluster, sums over clients' weights, the graph of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.flow import Message, Params
from fedkin.graph import Graph, canonical
from fedkin.learning.aggregate import weighted_mean

__all__ = ["Array", "Labels", "Weights", "aggregated", "centre", "counts", "gram", "members_graph", "ordered",
           "squared_distances"]  # fmt: skip

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Weights = Literal["samples", "equal"]

_BLOCK = 1 << 24  # numbers held at once in double precision: 128 MB


def counts(replies: Mapping[str, Message], weights: Weights) -> dict[str, float]:
    """What each reply weighs in a mean: its n, or 1."""
    return {id: float(reply["n"]) if weights == "samples" else 1.0 for id, reply in replies.items()}


def aggregated(
    models: Mapping[str, Params], where: Mapping[str, str], replies: Mapping[str, Message], weights: Weights
) -> dict[str, Params]:
    """One model per cluster: the weighted mean of its members' replies; a cluster that none answered keeps its own.

    models: {cluster: params}; where: {client id: cluster}, of every reply.
    """
    share = counts(replies, weights)
    new = dict(models)
    for cluster in sorted({where[id] for id in replies}):
        members = [id for id in replies if where[id] == cluster]
        new[cluster] = weighted_mean({id: replies[id]["params"] for id in members}, share)
    return new


def centre(models: Mapping[str, Params], where: Mapping[str, str]) -> Params:
    """The mean of the clusters' models, each weighted by its members; with one cluster its very model."""
    size = {cluster: sum(1 for place in where.values() if place == cluster) for cluster in models}
    present = {cluster: model for cluster, model in models.items() if size[cluster] or not where}
    if len(present) == 1:
        return next(iter(present.values()))
    return weighted_mean(present, {cluster: max(size[cluster], 1) for cluster in present})


def _blocks(rows: Sequence[Params], origin: Params, names: Iterable[str]) -> Iterator[tuple[Tensor, str, slice]]:
    """The rows minus the origin as double [m, some], piece by piece; which tensor and which of its entries."""
    width = max(1, _BLOCK // max(len(rows), 1))
    for name in names:
        flat = [row[name].reshape(-1) for row in rows]
        base = origin[name].reshape(-1)
        for start in range(0, len(base), width):
            part = slice(start, start + width)
            yield torch.stack([tensor[part] for tensor in flat]).double() - base[part].double(), name, part


def gram(rows: Sequence[Params], origin: Params, names: Iterable[str]) -> Array:
    """Inner products [m, m] of (row - origin) over the named tensors."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block, _, _ in _blocks(rows, origin, names):
        total += block @ block.T
    return np.asarray(((total + total.T) / 2).numpy())


def squared_distances(rows: Sequence[Params], centres: Sequence[Params], names: Iterable[str]) -> Array:
    """|row_i - centre_j|^2 over the named tensors, [m, C]."""
    total = torch.zeros(len(rows), len(centres), dtype=torch.float64)
    if not centres:
        return np.asarray(total.numpy())
    for block, name, part in _blocks(rows, centres[0], names):
        base = centres[0][name].reshape(-1)[part].double()
        for j, other in enumerate(centres):
            total[:, j] += (block - (other[name].reshape(-1)[part].double() - base)).square().sum(1)
    return np.asarray(total.numpy())


def ordered(labels: npt.ArrayLike, *keys: npt.ArrayLike) -> Labels:
    """The same groups numbered by size, then by each key's sum over the members, largest first, then by first row.

    Keys come from data, so that other ids give the same numbers.
    """
    found = canonical(labels)
    each = [np.ones(len(found)), *(np.asarray(key, dtype=np.float64) for key in keys)]
    falling = [-np.bincount(found, weights=key) for key in each]
    rank = np.empty(int(found.max()) + 1, dtype=np.int64)
    rank[np.lexsort([np.arange(len(rank)), *reversed(falling)])] = np.arange(len(rank))
    return np.asarray(rank[found])


def members_graph(where: Mapping[str, str], clusters: Iterable[str], number: int) -> Graph:
    """Weight 1 between the members of a cluster; groups are numbered in the order of `clusters`."""
    ids = tuple(sorted(where))
    place = {cluster: index for index, cluster in enumerate(clusters)}
    labels = np.array([place[where[id]] for id in ids], dtype=np.int64)
    # Written out: a product of membership matrices takes ten times as long, and clusters may hold thousands.
    members = [np.flatnonzero(labels == number) for number in range(len(place))]
    starts = np.concatenate([[0], np.cumsum([len(members[label]) - 1 for label in labels])])
    columns = np.empty(starts[-1], dtype=np.int32)
    for own in members:
        for row in own:
            columns[starts[row] : starts[row + 1]] = own[own != row]
    weights = sp.csr_array((np.ones(starts[-1]), columns, starts), shape=(len(ids), len(ids)))
    return Graph(ids, weights, groups=dict(zip(ids, labels.tolist(), strict=True)), round=number)
