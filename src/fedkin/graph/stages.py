"""Stages by name: "name" or "name:argument", as configurations and the command line write them.

    similarity_stage("cosine")(X) -> S                          vectors [n, d] to similarity [n, n]
    sparsify_stage("knn:10")(S, distances=None) -> A            affinity [n, n]
    control_stage("random")(A, seed=0, planted=None) -> A       the control graph that replaces A
    groups_stage("louvain")(A, seed=0, resolution=1.0, planted=None, distances=None, vectors=None, signatures=None)
        -> labels [n]
    centrality_stage("betweenness")(A) -> values [n]

All arguments but the first are keyword arguments. A stage ignores those that it does not need.

similarity: cosine | dot | l1 | l2 | rbf | rbf:GAMMA | matching | minimum | hausdorff. The last three compare sets
[n, k, d]. All but cosine and rbf are min-max scaled over pairs to [0, 1] with a zero diagonal, so that a
threshold means the same for each.

sparsify: none | epsilon:E | knn:K | mutual:K | gamma:auto | gamma:D | soft:auto | soft:SCALE. gamma and soft
read `distances`. Without `distances` they read 1 - S, and link only pairs with S > 0.

groups: louvain | leiden | components | hierarchical | hierarchical:silhouette | hierarchical:N | kmeans:N |
bipartition:T | same | same:ALPHA | single (one group of all clients) | alone (each client its own group) | planted.
hierarchical reads `distances`, or 1 - A without them; kmeans reads `vectors`, or the rows of A without them;
bipartition reads A as a similarity; same reads `signatures`, one per row. same calls fedkin.graph.find, which also
returns the verdicts and the tree of tests.

control: none | random | uniform | oracle | shuffled | self.

centrality: degree | closeness | betweenness | eigenvector | current-flow | current-flow-closeness | pagerank.

A spec that cannot be read raises ConfigError when the stage is made. Input that a stage cannot use raises
GraphError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedkin.errors import ConfigError, GraphError, nearest
from fedkin.graph import centrality, control, distances, groups, same, similarity, sparsify
from fedkin.graph._check import Array, Labels, Matrix, as_dense, as_labels, as_matrix
from fedkin.graph.own import BUILT_IN, STAGES, own_stage

__all__ = [
    "Control", "Groups", "Sparsify", "centrality_stage", "control_stage", "distance_stage", "groups_stage",
    "same_alpha", "similarity_stage", "sparsify_stage",
]  # fmt: skip


class Sparsify(Protocol):
    """A function from similarity to affinity; gamma and soft read `distances`, in the distances' own units."""

    def __call__(self, s: Any, /, *, distances: Any = None) -> Matrix: ...


class Groups(Protocol):
    """A function from affinity to canonical labels."""

    def __call__(
        self, a: Any, /, *, seed: int = 0, resolution: float = 1.0, planted: Any = None, distances: Any =
        None, vectors: Any = None, signatures: Any = None,
    ) -> Labels: ...  # fmt: skip


class Control(Protocol):
    """A function from a learned affinity to the control graph that replaces it."""

    def __call__(self, a: Any, /, *, seed: int = 0, planted: Any = None) -> Matrix: ...


def _read(spec: str, kind: str, known: dict[str, str]) -> tuple[str, str | None]:
    """Return the name and the argument of `spec`; known: as each kind of `BUILT_IN`."""
    name, colon, argument = spec.strip().partition(":")
    if name not in known:
        mine = [own for own, stage in STAGES.items() if stage.kind == kind]
        raise ConfigError(f"unknown {kind} {name!r} in {spec!r}; {nearest(name, [*known, *mine])}")
    needs = known[name]
    if colon and not needs:
        raise ConfigError(f"{kind} {spec!r}: {name!r} takes no argument")
    if needs and not needs.startswith("?") and not argument:
        raise ConfigError(f"{kind} {spec!r}: expected {name}:{needs}")
    if colon and not argument:
        raise ConfigError(f"{kind} {spec!r}: nothing after the colon")
    return name, argument if colon else None


def _whole(spec: str, argument: str) -> int:
    if not (argument.isascii() and argument.isdigit() and int(argument) >= 1):
        raise ConfigError(f"{spec!r}: expected a whole number of at least 1 after the colon, got {argument!r}")
    return int(argument)


def _real(spec: str, argument: str, low: float, *, above: bool = False) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value) or value < low or (above and value == low):
        word = "above" if above else "of at least"
        raise ConfigError(f"{spec!r}: expected a number {word} {low:g} after the colon, got {argument!r}")
    return value


_DISTANCES = {"matching": distances.matching, "minimum": distances.minimum, "hausdorff": distances.hausdorff}


def similarity_stage(spec: str) -> Callable[[Any], Array]:
    """Return a function from vectors [n, d] (or sets of vectors) to similarity [n, n] of at most 1.

    >>> similarity_stage("l2")([[0.0], [1.0], [3.0]]).round(2)
    array([[0. , 1. , 0. ],
           [1. , 0. , 0.5],
           [0. , 0.5, 0. ]])
    """
    if (own := own_stage(spec, "similarity")) is not None:
        return own
    name, argument = _read(spec, "similarity", BUILT_IN["similarity"])
    if name == "rbf":
        return partial(similarity.rbf, gamma=None if argument is None else _real(spec, argument, 0, above=True))
    if name in _DISTANCES:
        measure = _DISTANCES[name]
        return lambda sets: similarity.minmax(0.0 - measure(sets))
    raw: dict[str, Callable[[Any], Array]] = {
        "cosine": similarity.cosine,
        "dot": similarity.dot,
        "l1": lambda x: similarity.minmax(similarity.negative_l1(x)),
        "l2": lambda x: similarity.minmax(similarity.negative_l2(x)),
    }
    return raw[name]


def distance_stage(spec: str) -> Callable[[Any], Array]:
    """Return a function from sets of centres [n, k, d] to distances [n, n]: matching | minimum | hausdorff.

    >>> distance_stage("minimum")([[[0.0], [5.0]], [[6.0], [9.0]]])
    array([[0., 1.],
           [1., 0.]])
    """
    return _DISTANCES[_read(spec, "distance", dict.fromkeys(_DISTANCES, ""))[0]]


def sparsify_stage(spec: str) -> Sparsify:
    """Return a function from similarity [n, n] to affinity [n, n]: non-negative, symmetric, zero diagonal.

    >>> sparsify_stage("knn:1")(np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]]))
    array([[0. , 0.5, 0. ],
           [0.5, 0. , 0.4],
           [0. , 0.4, 0. ]])
    """
    if (own := own_stage(spec, "sparsify")) is not None:
        return own
    name, argument = _read(spec, "sparsify", BUILT_IN["sparsify"])
    if name in ("gamma", "soft"):
        value = None if argument == "auto" else _real(spec, str(argument), 0, above=True)
        return partial(_by_distance, sparsify.gamma if name == "gamma" else sparsify.soft, value)
    if name == "none":
        return partial(_by_similarity, sparsify.nonnegative)
    if name == "epsilon":
        return partial(_by_similarity, partial(sparsify.epsilon, threshold=_real(spec, str(argument), 0)))
    return partial(_by_similarity, partial(sparsify.knn, k=_whole(spec, str(argument)), mutual=name == "mutual"))


def _by_similarity(stage: Callable[[Any], Matrix], s: Any, /, *, distances: Any = None) -> Matrix:
    return stage(s)


def _by_distance(
    stage: Callable[[Any, float | None], Matrix], value: float | None, s: Any, /, *, distances: Any = None
) -> Matrix:
    if distances is not None:
        return stage(distances, value)
    s = as_dense(s, "S")
    # Distances that were made from similarities link no pair with similarity 0, however wide the gap is.
    return np.where(np.asarray(s) > 0, np.asarray(stage(sparsify.to_distance(s), value)), 0.0)


def groups_stage(spec: str) -> Groups:
    """Return a function from affinity [n, n] to canonical labels [n].

    >>> groups_stage("components")(np.eye(2))
    array([0, 1])
    """
    if (own := own_stage(spec, "groups")) is not None:
        return own
    name, argument = _read(spec, "groups", BUILT_IN["groups"])
    number: float | None = None
    if name == "same":
        number = same_alpha(spec)
    elif name == "bipartition":
        number = _real(spec, str(argument), -1)
    elif argument is not None and argument not in ("auto", "silhouette"):
        number = _whole(spec, argument)
    elif name == "kmeans":
        raise ConfigError(f"{spec!r}: expected a whole number of at least 1 after the colon, got {argument!r}")

    def stage(
        a: Any, /, *, seed: int = 0, resolution: float = 1.0, planted: Any = None, distances: Any = None,
        vectors: Any = None, signatures: Any = None,
    ) -> Labels:  # fmt: skip
        n = as_matrix(a, symmetric=False).shape[0]
        if name in ("louvain", "leiden"):
            return getattr(groups, name)(a, resolution=resolution, seed=seed)  # type: ignore[no-any-return]
        if name == "components":
            return groups.components(a)
        if name == "hierarchical":
            d = sparsify.to_distance(a) if distances is None else distances
            choose: Any = "silhouette" if argument == "silhouette" else "gap"
            return groups.hierarchical(d, None if number is None else int(number), choose=choose)
        if name == "kmeans":
            rows = as_dense(a, symmetric=False) if vectors is None else vectors
            return groups.kmeans(rows, int(number or 1), seed=seed)
        if name == "bipartition":
            return groups.recursive_bipartition(a, float(number or 0.0))
        if name == "same":
            return _same(signatures, n, float(number or 0.0), seed)
        if name == "planted":
            return groups.canonical(_known(planted, n, "groups 'planted'"))
        return np.zeros(n, dtype=np.int64) if name == "single" else np.arange(n)

    return stage


def same_alpha(spec: str) -> float:
    """Return the test level of the groups "same" or "same:ALPHA"; .001 if ALPHA is not given.

    >>> same_alpha("same"), same_alpha("same:0.01")
    (0.001, 0.01)
    """
    argument = _read(spec, "groups", {"same": "?ALPHA"})[1]
    alpha = 0.001 if argument is None else _real(spec, argument, 0, above=True)
    if alpha >= 1:
        raise ConfigError(f"{spec!r}: expected a level below 1 after the colon, got {argument!r}")
    return alpha


def _same(signatures: Any, n: int, alpha: float, seed: int) -> Labels:
    if signatures is None:
        raise GraphError(
            "groups 'same' needs signatures=, what fedkin.graph.sign makes of each client's samples, and there are "
            "none; a graph of similarities alone cannot tell chance from difference"
        )
    if len(signatures) != n:
        raise GraphError(f"groups 'same': {len(signatures)} signatures for {n} clients; expected one per row")
    return same.find(signatures, alpha=alpha, seed=seed).labels


def control_stage(spec: str) -> Control:
    """Return a function from a learned affinity [n, n] to its control; "none" returns the learned affinity.

    >>> control_stage("oracle")(np.zeros((2, 2)), planted=["a", "a"])
    array([[0., 1.],
           [1., 0.]])
    """
    if (own := own_stage(spec, "control")) is not None:
        return own
    name, _ = _read(spec, "control", BUILT_IN["control"])

    def stage(a: Any, /, *, seed: int = 0, planted: Any = None) -> Matrix:
        a = as_matrix(a, symmetric=False)
        if name == "random":
            return control.random(a, seed=seed)
        if name == "uniform":
            return control.uniform(a)
        if name == "oracle":
            return control.oracle(_known(planted, a.shape[0], "control 'oracle'"))
        if name == "shuffled":
            return control.shuffled(a, seed=seed)
        return control.self_only(a) if name == "self" else a

    return stage


def _known(planted: Any, n: int, who: str) -> Labels:
    if planted is None:
        raise GraphError(f"{who} needs the planted groups, and they are not known")
    return as_labels(planted, n, "planted")


def centrality_stage(spec: str) -> Callable[[Any], Array]:
    """Return a function from affinity [n, n] to one value per client [n], high = central.

    >>> centrality_stage("degree")(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]))
    array([1. , 0.5, 0.5])
    """
    if (own := own_stage(spec, "centrality")) is not None:
        return own
    known: dict[str, Callable[[Any], Array]] = {
        "degree": centrality.degree,
        "closeness": centrality.closeness,
        "betweenness": centrality.betweenness,
        "eigenvector": centrality.eigenvector,
        "current-flow": centrality.current_flow_betweenness,
        "current-flow-closeness": centrality.current_flow_closeness,
        "pagerank": centrality.pagerank,
    }
    return known[_read(spec, "centrality", BUILT_IN["centrality"])[0]]
