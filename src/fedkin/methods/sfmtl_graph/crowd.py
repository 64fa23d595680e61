"""SFMTL-Graph's similarity, Eq. (7-10), of very many clients: with near ones only, and no matrix of all pairs.

Candidates are near by a vector of each client whose products are about the similarity; theirs is then the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.flow import Message
from fedkin.graph.similarity import unit
from fedkin.keys import rng
from fedkin.methods.blocks import crowd
from fedkin.methods.sfmtl_graph.similarity import GraphSettings, alpha_of, stacked_anchors
from fedkin.views import ServerView

__all__ = ["Near", "check", "near"]

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_CANDIDATES = 4  # times so many as neighbours are compared by the exact similarity
_WIDTH = 256  # of the vectors by which candidates are found
_CHECKED = 32  # clients whose true neighbours are found, to state the recall
_GROUPS = ("louvain", "leiden", "components", "planted", "single", "alone", "same")


class Near(NamedTuple):
    """affinity: a csr_array [n, n], symmetric. recall: the share of true neighbours found; None if not measured."""

    affinity: Any
    recall: float | None


class _Heads:
    """Responses of clients' heads to clients' anchors [n, C, d], as cosines with the owner's own response."""

    def __init__(self, server: ServerView[Any], replies: Sequence[Message], anchors: Tensor, own: Any) -> None:
        self.module = server.net.scratch().eval()
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.places = {name: named[name] for name in replies[0]["head"]}
        self.replies, self.own = replies, own
        self.anchors = anchors.to(server.net.dtype)
        every = range(len(replies))
        self.itself = np.concatenate([unit(self._said(k, self.anchors[k : k + 1])) for k in every])

    def _said(self, k: int, anchors: Tensor) -> Array:
        """What head k says of anchors [m, C, d]: [m, C, outputs]."""
        with torch.no_grad():
            for name, place in self.places.items():
                place.copy_(self.replies[k]["head"][name])
            said = self.module.head(anchors.flatten(0, 1)).reshape(*anchors.shape[:2], -1)
            return np.asarray(said.double().numpy())

    def probed(self, probes: Tensor) -> Array:
        """What each head says of these anchors [C, d], as directions: [n, C, outputs]."""
        said = [unit(self._said(k, probes[None])) for k in range(len(self.replies))]
        return np.concatenate(said)

    def __call__(self, k: int, others: Rows) -> Array:
        """[m, C]: head k on the anchors of these clients, zero for classes that they do not own."""
        said = unit(self._said(k, self.anchors[torch.from_numpy(others)]))
        return np.asarray(np.einsum("mcd,mcd->mc", said, self.itself[others]) * self.own[others])


def check(clients: int, how: GraphSettings) -> None:
    """Raise ConfigError for settings that compare all pairs of so many clients."""
    crowd.check_all_pairs(clients, control=how.control)
    ours = how.similarity in ("both", "heads", "anchors")
    crowd.check_measure(clients, "similarity", "cosine" if ours else how.similarity, how.sparsify)
    if ours and how.match == "rows":
        raise ConfigError(
            f"method.graph.match: 'rows' compares all pairs of {clients:,} clients; above {crowd.LARGEST:,}, take "
            "'union' or 'shared'"
        )
    if how.groups.partition(":")[0] not in _GROUPS:
        raise ConfigError(
            f"method.graph.groups: {how.groups!r} compares all pairs of {clients:,} clients; above {crowd.LARGEST:,}, "
            f"take {', '.join(map(repr, _GROUPS))}"
        )


def near(server: ServerView[Any], replies: Sequence[Message], how: GraphSettings, alpha: float) -> Near:
    """Similarities of each client with those near it, after the stage `how.sparsify`.

    knn:K and mutual:K link the K nearest, other stages the 16 nearest.
    """
    check(len(replies), how)
    seed = server.key("cells")
    if how.similarity not in ("both", "heads", "anchors"):
        flat = [torch.cat([t.flatten() for _, t in sorted(reply["head"].items())]) for reply in replies]
        return Near(crowd.neighbour_affinity(flat, how.similarity, how.sparsify, seed), None)
    anchors, own = stacked_anchors(server, replies, how.match)
    heads = _Heads(server, replies, anchors, own)
    alpha = alpha_of(how, alpha)
    stage, _, argument = how.sparsify.partition(":")
    count = min(int(argument) if stage in ("knn", "mutual") else crowd.NEAR, len(replies) - 1)
    units = unit(anchors.numpy())
    pairs = _candidates(_vectors(heads, units, own, alpha, seed), count, seed)
    similar = _of_pairs(pairs, heads, units, own, alpha, how.match)
    kept = similar if stage in ("knn", "mutual") else graph.sparsify_stage(f"knn:{count}")(similar)
    affinity = graph.sparsify_stage(how.sparsify)(kept)
    return Near(affinity, _recall(similar, count, heads, units, own, alpha, how.match, seed))


def _vectors(heads: _Heads, units: Array, own: Any, alpha: float, seed: int) -> list[Tensor]:
    """A vector for each client; the cosine of two is about their similarity.

    It has the directions of a client's anchors, and those of its head's responses to the mean anchor of each class.
    """
    n, owned = len(own), own.astype(np.float64)
    mean = np.einsum("nc,ncd->cd", owned, heads.anchors.double().numpy()) / np.maximum(owned.sum(0), 1)[:, None]
    said = heads.probed(torch.from_numpy(mean).to(heads.anchors.dtype)) / own.shape[1] ** 0.5
    held = units * owned[:, :, None] / np.sqrt(np.maximum(owned.sum(1), 1))[:, None, None]
    parts = [alpha**0.5 * said.reshape(n, -1), (1 - alpha) ** 0.5 * held.reshape(n, -1)]
    made = [_narrow(part, rng(seed, name)) for part, name in zip(parts, ("heads", "anchors"), strict=True)]
    return list(torch.from_numpy(np.concatenate(made, axis=1)))


def _narrow(x: Array, draw: np.random.Generator) -> Array:
    """Vectors of at most `_WIDTH` numbers with about the same products."""
    if x.shape[1] <= _WIDTH:
        return x
    return np.asarray(x @ (draw.normal(size=(x.shape[1], _WIDTH)) / _WIDTH**0.5))


def _candidates(vectors: list[Tensor], count: int, seed: int) -> sp.csr_array:
    """Pairs to compare, a csr_array [n, n] with both directions of each; entry (k, l) is its own number."""
    most = min(_CANDIDATES * count, len(vectors) - 1)
    order = crowd.by_content(vectors)
    if most == len(vectors) - 1:
        found = sp.csr_array(1.0 - np.eye(len(vectors)))
    else:
        x = crowd.points([vectors[row] for row in order.tolist()])
        # Vectors may point away from each other: one more number makes all products positive, in the same order.
        x = np.concatenate([unit(x), np.ones((len(x), 1))], axis=1)
        back = np.argsort(order)
        found = graph.approximate_nearest(x, most, seed=seed).graph[back][:, back]
    both = sp.csr_array(found + found.T)
    both.setdiag(0)
    both.eliminate_zeros()
    both.sort_indices()
    both.data = np.arange(both.nnz, dtype=np.float64)
    return both


def _of_pairs(pairs: sp.csr_array, heads: _Heads, units: Array, own: Any, alpha: float, match: str) -> sp.csr_array:
    """The exact similarity of these pairs, a csr_array [n, n]."""
    column, starts = pairs.indices.astype(np.int64), pairs.indptr
    row = np.repeat(np.arange(len(own)), np.diff(starts))
    back = sp.csr_array(pairs.T)
    back.sort_indices()
    asked = [heads(k, column[starts[k] : starts[k + 1]]) for k in range(len(own))]
    q = np.concatenate(asked)
    value = np.empty(len(q))
    for start in range(0, len(q), 4096):
        here = slice(start, start + 4096)
        other = q[back.data[here].astype(np.int64)]
        value[here] = _similar(q[here] + other, units[row[here]], units[column[here]], own[row[here]],
                               own[column[here]], alpha, match)  # fmt: skip
    return sp.csr_array((value, column, starts), shape=pairs.shape)


def _similar(q: Array, one: Array, two: Array, own_one: Any, own_two: Any, alpha: float, match: str) -> Array:
    """Eq. (7) before it is cut at 0, for pairs [m]; q: both heads' cosines, added [m, C]."""
    owners = own_one.astype(np.int64) + own_two
    counted = owners > (1 if match == "shared" else 0)
    classes = np.maximum(counted.sum(-1), 1)
    said = np.where(counted, q / np.maximum(owners, 1), 0.0).sum(-1) / classes
    held = np.einsum("mcd,mcd,mc->m", one, two, (owners > 1).astype(np.float64)) / classes
    return np.asarray(alpha * np.clip(said, -1, 1) + (1 - alpha) * np.clip(held, -1, 1))


def _recall(
    similar: sp.csr_array, count: int, heads: _Heads, units: Array, own: Any, alpha: float, match: str, seed: int
) -> float:
    """The share of some clients' true neighbours among those compared; of equally near ones, any counts."""
    n = len(own)
    rows, every = np.sort(rng(seed, "recall").permutation(n)[:_CHECKED]), np.arange(n)
    theirs = np.stack([heads(k, rows) for k in range(n)])
    hits = []
    for at, row in enumerate(rows.tolist()):
        q = heads(row, every) + theirs[:, at]
        of_all = _similar(q, units[[row]].repeat(n, 0), units, own[[row]].repeat(n, 0), own, alpha, match)
        of_all[row] = -np.inf
        least = np.partition(of_all, n - count)[n - count]
        found = np.sort(similar.data[similar.indptr[row] : similar.indptr[row + 1]])[::-1][:count]
        hits.append(float((found >= least - 1e-9).sum()) / count)
    return float(np.mean(hits))
