"""Groups: a partition of clients, as one integer label per client.

Labels are canonical: 0 is the largest group, and groups of equal size are in the order of their first client. A
client without edges is a group of its own. `by_id` turns labels into {id: group}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_counts, as_dense, as_labels, as_sparse, as_vectors, only

# scikit-network and scikit-learn take seeds below this.
_SEEDS = 2**32
Linkage = Literal["single", "complete", "average", "weighted", "ward"]


def canonical(labels: Any) -> Labels:
    """Number the groups 0.. by decreasing size; groups of equal size are in the order of their first row.

    >>> canonical(["b", "a", "a", "c"])
    array([1, 0, 0, 2])
    """
    group = as_labels(labels)
    size = np.bincount(group)
    first = np.full(len(size), len(group))
    np.minimum.at(first, group, np.arange(len(group)))
    rank = np.empty(len(size), dtype=np.int64)
    rank[np.lexsort((first, -size))] = np.arange(len(size))
    return rank[group]


def by_id(ids: Sequence[str], labels: Any) -> dict[str, int]:
    """Return {client id: group} from the labels of rows; the labels are not renumbered.

    >>> by_id(["ann", "bob"], np.array([1, 0]))
    {'ann': 1, 'bob': 0}
    """
    array = np.asarray(labels)
    if array.shape != (len(ids),) or array.dtype.kind not in "iu":
        raise GraphError(f"labels: expected {len(ids)} whole numbers, one per id, got {array.dtype} {array.shape}")
    if len(set(ids)) != len(ids):
        raise GraphError("ids: an id occurs twice; expected one row per client")
    return dict(zip(ids, array.tolist(), strict=True))


def components(a: Any) -> Labels:
    """Return the connected components of affinity `a` [n, n].

    >>> components(np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0]]))
    array([1, 0, 0])
    """
    a = as_sparse(a, nonnegative=True)
    return canonical(csgraph.connected_components(a, directed=False)[1])


def louvain(a: Any, *, resolution: float = 1.0, seed: int | None = 0) -> Labels:
    """Find groups of high modularity in affinity `a` [n, n] (Blondel et al. 2008), by scikit-network.

    resolution: above 1 gives more and smaller groups. seed: seed of the order in which clients are visited. This order
    depends on the clients' weights and not on their rows, so that relabelled clients get the same groups.

    >>> louvain(np.kron(np.eye(2), np.ones((2, 2))))
    array([0, 0, 1, 1])
    """
    from sknetwork.clustering import Louvain

    return _modular(Louvain, a, resolution, seed)


def leiden(a: Any, *, resolution: float = 1.0, seed: int | None = 0) -> Labels:
    """Find connected groups of high modularity (Traag et al. 2019), by scikit-network; arguments as in `louvain`.

    Refinement takes the best merge instead of a random one, so that the seed determines the result.

    >>> leiden(np.kron(np.eye(2), np.ones((2, 2))))
    array([0, 0, 1, 1])
    """
    labels = _modular(_greedy_leiden(), a, resolution, seed)
    inside = as_sparse(a).tocoo()
    # Repeated moves can leave a group in two pieces. As two groups they have a higher modularity.
    pieces = only(inside, labels[inside.row] == labels[inside.col])
    return canonical(csgraph.connected_components(pieces, directed=False)[1])


def _modular(finder: Any, a: Any, resolution: float, seed: int | None) -> Labels:
    a = as_sparse(a, nonnegative=True)
    if not (np.isfinite(resolution) and resolution > 0):
        raise GraphError(f"resolution: expected a number above 0, got {resolution}")
    # Isolated clients are left out: scikit-network treats them as any other, and divides by the total weight.
    joined = np.flatnonzero(np.diff(a.indptr))
    linked = a[joined][:, joined] if len(joined) < a.shape[0] else a
    if len(joined) == 0 or linked.data.max() <= 0:
        return np.arange(a.shape[0])
    # Weights are scaled, since scikit-network computes in single precision, which cannot hold every weight.
    order = _order_by_weights(linked)
    matrix = sp.csr_matrix((linked / linked.data.max())[order][:, order])
    model = finder(
        resolution, modularity="newman", tol_optimization=1e-6, tol_aggregation=1e-6, return_probs=False,
        return_aggregate=False, shuffle_nodes=seed is not None, random_state=(seed or 0) % _SEEDS,
    )  # fmt: skip
    labels = np.arange(a.shape[0]) + len(joined)
    labels[joined[order]] = model.fit_predict(matrix)
    return canonical(labels)


def _greedy_leiden() -> Any:
    """Return scikit-network's Leiden with a deterministic refinement."""
    from sknetwork.clustering import Leiden

    class GreedyLeiden(Leiden):  # type: ignore[misc]
        """Leiden that refines groups by the best merge inside each group.

        scikit-network draws merges from the C library's unseeded rand(), and repeats them until no merge gains. In
        single precision this may never end. Here scikit-network's compiled local search refines a group, on the
        edges inside groups and with the weights of the whole graph: Traag et al.'s rule at temperature 0.
        """

        def _optimize_refine(
            self, labels: Any, labels_refined: Any, adjacency: Any, out_weights: Any, in_weights: Any
        ) -> Any:
            coo = sp.coo_matrix(adjacency)
            within = sp.csr_matrix(only(coo, labels[coo.row] == labels[coo.col]))
            refined, _ = self._optimize(np.asarray(labels_refined), within, out_weights, in_weights)
            return np.asarray(refined)

    return GreedyLeiden


def _order_by_weights(a: sp.csr_array) -> Labels:
    """Sort clients by their weights alone: the result of a finder depends on the order of its rows.

    Clients are sorted by number of edges, then total weight, then the largest weights. Clients that are equal in all
    of these keep their order. Sums are taken over sorted weights, so that the order of the rows changes no bit.
    """
    count = np.diff(a.indptr)
    row = np.repeat(np.arange(a.shape[0]), count)
    data = a.data[np.lexsort((a.data, row))]
    total = np.add.reduceat(data, a.indptr[:-1])
    largest = [data[a.indptr[1:] - np.minimum(k, count)] for k in (1, 2, 3)]
    return np.lexsort((*largest, total, count)).astype(np.int64)


def hierarchical(
    d: Any,
    clusters: int | None = None,
    *,
    linkage: Linkage = "average",
    choose: Literal["gap", "ratio", "silhouette"] = "gap",
    most: int | None = None,
) -> Labels:
    """Find agglomerative groups from distances `d` [n, n], by scipy.

    clusters: number of groups. If it is None, `choose` finds the number, from 2 to `most` (default n - 1): "gap" cuts
    at the largest rise of the merge heights, "ratio" at their growth by the largest factor, and "silhouette" takes
    the best mean silhouette. If all merge heights are equal, all clients are one group.

    >>> points = np.array([0.0, 1.0, 10.0, 11.0])
    >>> hierarchical(abs(points[:, None] - points))
    array([0, 0, 1, 1])
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    d = as_dense(d, "D", nonnegative=True)
    n = len(d)
    if np.diag(d).any():
        row = int(np.argmax(np.diag(d) != 0))
        raise GraphError(f"D: the distance of row {row} to itself is {d[row, row]:.4g}; expected a zero diagonal")
    if clusters is not None and not 1 <= clusters <= n:
        raise GraphError(f"clusters: expected 1 to {n} (the number of clients), got {clusters}")
    if linkage not in ("single", "complete", "average", "weighted", "ward"):
        raise GraphError(f"linkage: expected single, complete, average, weighted or ward, got {linkage!r}")
    if choose not in ("gap", "ratio", "silhouette"):
        raise GraphError(f"choose: expected gap, ratio or silhouette, got {choose!r}")
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    tree = hierarchy.linkage(squareform((d + d.T) / 2, checks=False), method=linkage)
    most = max(min(most or n - 1, n - 1), 1)
    if clusters is None:
        clusters = _silhouette_count(d, tree, most) if choose == "silhouette" else _height_count(tree, most, choose)
    return _cut(tree, clusters)


def _cut(tree: Array, clusters: int) -> Labels:
    """Return the groups after all but the last `clusters` - 1 merges, also when merge heights are equal."""
    from scipy.cluster.hierarchy import fcluster

    # The criterion is the number of a merge, not its height.
    return canonical(fcluster(tree, len(tree) - clusters, "monocrit", monocrit=np.arange(len(tree), dtype=np.float64)))


def _height_count(tree: Array, most: int, choose: str) -> int:
    """Return the number of groups if the merges stop before the largest rise ("gap") or growth ("ratio") in height."""
    # Rises that rounding can make do not count.
    rounding = 1e-12 * tree[:, 2].max()
    if choose == "gap":
        rises, smallest = np.diff(tree[:, 2]), rounding
    else:
        heights = np.maximum(tree[:, 2], rounding if rounding > 0 else 1.0)
        rises, smallest = np.log(heights[1:] / heights[:-1]), 1e-12
    last = rises[::-1][: most - 1]
    return int(np.argmax(last)) + 2 if len(last) and last.max() > smallest else 1


def _silhouette_count(d: Array, tree: Array, most: int) -> int:
    from sklearn.metrics import silhouette_score

    labels = {count: _cut(tree, count) for count in range(2, most + 1)}
    scores = {count: float(silhouette_score(d, labels[count], metric="precomputed")) for count in labels}
    best = max(scores, key=lambda count: (scores[count], -count), default=1)
    return best if scores and scores[best] > 0 else 1


def kmeans(x: Any, clusters: int, *, seed: int = 0) -> Labels:
    """Find k-means groups of vectors `x` [n, d], by scikit-learn (k-means++, the best of 10 starts).

    >>> kmeans([[0.0], [1.0], [10.0], [11.0]], 2)
    array([0, 0, 1, 1])
    """
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    x = as_vectors(x)
    if not 1 <= clusters <= len(x):
        raise GraphError(f"clusters: expected 1 to {len(x)} (the number of clients), got {clusters}")
    with warnings.catch_warnings():
        # With fewer distinct vectors than clusters there are fewer groups, as the labels show.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return canonical(KMeans(clusters, n_init=10, random_state=seed % _SEEDS).fit_predict(x))


def bipartition(s: Any) -> Labels:
    """Split `s` [n, n] into two groups with the least maximum similarity between them (Sattler et al. 2020).

    The split is exact: the weakest edge of a maximum spanning tree is cut. At least two clients are needed.

    >>> bipartition(np.array([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]]))
    array([0, 1, 0])
    """
    s = as_dense(s, "S")
    if len(s) < 2:
        raise GraphError("S: expected at least two clients to split, got 1")
    # Any order-preserving distance gives the same tree.
    d = float(s.max()) - s
    np.fill_diagonal(d, 0.0)
    return hierarchical(d, 2, linkage="single")


def cfl(inner: Any, *, eps1: float, eps2: float, counts: Any = None, gamma_max: float = 0.0) -> Labels:
    """Split one cluster by the rule of clustered federated learning (Sattler et al. 2020); all 0 means no split.

    inner: inner products [n, n] of the members' updates, `x @ x.T` for updates x [n, d]. The cluster is split by
    `bipartition` of the updates' cosines if |mean update, weighted by counts| < eps1, max |update| > eps2, and
    gamma_max < sqrt((1 - across) / 2), where `across` is the largest cosine between the two parts. eps1 and eps2 are
    lengths of updates; gamma_max is in [0, 1].

    >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    >>> cfl(x @ x.T, eps1=0.5, eps2=0.5)
    array([0, 0, 1])
    """
    inner = as_dense(inner, "inner")
    weight = as_counts(counts, len(inner))
    together = np.zeros(len(inner), dtype=np.int64)
    if len(inner) < 2 or not weight.sum() > 0:
        return together
    weight = weight / weight.sum()
    lengths = np.sqrt(np.maximum(np.diag(inner), 0.0))
    mean = np.sqrt(max(float(weight @ inner @ weight), 0.0))
    if not (mean < eps1 and lengths.max() > eps2):
        return together
    scale = np.where(lengths > 0, lengths, 1.0)
    cosine = np.clip(inner / np.outer(scale, scale), -1.0, 1.0)
    labels = bipartition(cosine)
    across = float(cosine[np.ix_(labels == 0, labels == 1)].max())
    return labels if gamma_max < np.sqrt((1.0 - across) / 2) else together
