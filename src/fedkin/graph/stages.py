"""Stages by name: "name" or "name:argument", as configurations and the command line write them.

    similarity_stage("cosine")(X) -> S                          vectors [n, d] to similarity [n, n]
    sparsify_stage("knn:10")(S, distances=None) -> A            affinity [n, n]
    control_stage("random")(A, seed=0, planted=None) -> A       the control graph that replaces A
    groups_stage("louvain")(A, seed=0, resolution=1.0, planted=None, distances=None, vectors=None, signatures=None)
        -> labels [n]

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

A spec that cannot be read raises ConfigError when the stage is made. Input that a stage cannot use raises
GraphError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from fedkin.errors import ConfigError, GraphError, nearest
from fedkin.graph import affinity, grouping_tests, groups, similarity
from fedkin.graph._check import Array, Labels, Matrix, as_dense, as_labels, as_matrix
from fedkin.graph.groups import canonical
from fedkin.untrusted import plain_word, said, shown

__all__ = [
    "Stage", "control_stage", "distance_stage", "groups_stage", "same_alpha", "similarity_stage", "sparsify_stage",
    "stage",
]  # fmt: skip


Kind: TypeAlias = Literal["similarity", "sparsify", "groups", "control"]

# fedkin's own stages, by kind, and their argument after the colon: "" is none, "?..." an optional one.
BUILT_IN: dict[str, dict[str, str]] = {
    "similarity": {
        **dict.fromkeys(("cosine", "dot", "l1", "l2", "matching", "minimum", "hausdorff"), ""), "rbf": "?GAMMA",
    },
    "sparsify": {
        "none": "", "epsilon": "THRESHOLD", "knn": "K", "mutual": "K", "gamma": "auto or gamma:DISTANCE",
        "soft": "auto or soft:SCALE",
    },
    "groups": {
        **dict.fromkeys(("louvain", "leiden", "components", "single", "alone", "planted"), ""),
        "hierarchical": "?N", "kmeans": "N", "bipartition": "THRESHOLD", "same": "?ALPHA",
    },
    "control": dict.fromkeys(("none", "random", "uniform", "oracle", "shuffled", "self"), ""),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of one's own. function: as `fedkin.graph.stages` says of its kind; it gets the keywords that it names.

    >>> Stage("control", "half", lambda a: a / 2)(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """

    kind: Kind
    name: str
    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not plain_word(self.name):
            raise ConfigError(f"stage {self.name!r}: this is no plain word: give it another, name='...'")
        for kind, known in BUILT_IN.items():
            if self.name in known:
                raise ConfigError(f"stage {self.name!r}: fedkin has a {kind} stage of this name: give it another")

    @property
    def part(self) -> Any:
        """What has a module and a docstring of its user's."""
        return self.function

    def __call__(self, first: Any, /, **more: Any) -> Any:
        """Return the stage's output for n clients; raises GraphError in one line for output that is none."""
        known = inspect.signature(self.function).parameters.values()
        every = any(one.kind is one.VAR_KEYWORD for one in known)
        taken = {name: value for name, value in more.items() if every or name in {one.name for one in known}}
        try:
            output = self.function(first, **taken)
        except GraphError:
            raise
        except Exception as error:  # whatever a function of the user's does
            raise GraphError(f"{self._who}: {type(error).__name__}: {said(error)}") from error
        return self._checked(output, first.shape[0] if hasattr(first, "shape") else len(first))

    @property
    def _who(self) -> str:
        return f"{self.kind} stage {self.name!r}"

    def _checked(self, output: Any, n: int) -> Any:
        try:
            table = np.asarray(output.toarray() if hasattr(output, "toarray") else output)
        except Exception as error:  # of whatever a function of the user's gave
            raise GraphError(f"{self._who}: expected one array, got {type(error).__name__}: {said(error)}") from error
        square = self.kind in ("similarity", "sparsify", "control")
        wanted = (n, n) if square else (n,)
        if table.shape != wanted:
            what = "a matrix" if square else "labels" if self.kind == "groups" else "values"
            raise GraphError(f"{self._who}: expected {what} of shape {wanted} for {n} clients, got {table.shape}")
        if self.kind == "groups":
            if table.dtype.kind not in "iuUSb" and not all(isinstance(one, (str, int)) for one in table.tolist()):
                raise GraphError(f"{self._who}: expected a whole number or a text for each client, got {table.dtype}")
            return canonical(np.unique(table.astype(str), return_inverse=True)[1])
        if table.dtype.kind not in "iufb" or not np.isfinite(table).all():
            raise GraphError(f"{self._who}: expected finite numbers, got {shown(str(table.dtype), 40)}")
        if self.kind == "sparsify" and not (np.array_equal(table, table.T) and not table.diagonal().any()):
            raise GraphError(f"{self._who}: expected a symmetric matrix with a zero diagonal")
        if self.kind in ("sparsify", "control") and (table < 0).any():
            raise GraphError(f"{self._who}: expected weights of at least 0, got {table.min():g}")
        return table.astype(np.float64)


STAGES: dict[str, Stage] = {}


def stage(kind: Kind, *, name: str | None = None) -> Callable[[Callable[..., Any]], Stage]:
    """Make a stage of a function; kind: which stage it is. name: in settings, by default that of the function.

    >>> @stage("groups")
    ... def by_sign(a):
    ...     return [int(row.sum() > 0) for row in a]
    >>> by_sign.name, by_sign(np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    ('by-sign', array([0, 1, 0]))
    """
    if kind not in BUILT_IN:
        raise ConfigError(f"stage: no kind {kind!r}; {nearest(str(kind), BUILT_IN)}")

    def made(function: Callable[..., Any]) -> Stage:
        own = (
            name
            if name is not None
            else getattr(function, "__name__", type(function).__name__).strip("_").replace("_", "-")
        )
        if own == "<lambda>":
            raise ConfigError(f"stage: a lambda has no name: fedkin.graph.stage({kind!r}, name='mine')(...)")
        return Stage(kind, own, function)

    return made


def own_stage(spec: str, kind: str) -> Stage | None:
    """Return the stage with this name, None if there is none; raises ConfigError for one of another kind."""
    stage = STAGES.get(spec.strip())
    if stage is not None and stage.kind != kind:
        raise ConfigError(f"{kind} {spec!r}: this is a {stage.kind} stage")
    return stage


# -- fedkin's own ------------------------------------------------------------------------------------------------------


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


_DISTANCES = {"matching": similarity.matching, "minimum": similarity.minimum, "hausdorff": similarity.hausdorff}


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


def sparsify_stage(spec: str) -> Callable[..., Matrix]:
    """Return a function (S, distances=None) from similarity [n, n] to affinity: symmetric, zero diagonal.

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
        return partial(_by_distance, affinity.gamma if name == "gamma" else affinity.soft, value)
    if name == "none":
        return lambda s, /, *, distances=None: affinity.nonnegative(s)
    if name == "epsilon":
        threshold = _real(spec, str(argument), 0)
        return lambda s, /, *, distances=None: affinity.epsilon(s, threshold)
    k = _whole(spec, str(argument))
    return lambda s, /, *, distances=None: affinity.knn(s, k, mutual=name == "mutual")


def _by_distance(
    measure: Callable[[Any, float | None], Matrix], value: float | None, s: Any, /, *, distances: Any = None
) -> Matrix:
    if distances is not None:
        return measure(distances, value)
    s = as_dense(s, "S")
    # Distances that were made from similarities link no pair with similarity 0, however wide the gap is.
    return np.where(np.asarray(s) > 0, np.asarray(measure(affinity.to_distance(s), value)), 0.0)


def groups_stage(spec: str) -> Callable[..., Labels]:
    """Return a function (A, seed=, resolution=, planted=, distances=, vectors=, signatures=) to canonical labels [n].

    >>> groups_stage("components")(np.eye(2))
    array([0, 1])
    """
    if (own := own_stage(spec, "groups")) is not None:
        return own
    name, argument = _read(spec, "groups", BUILT_IN["groups"])
    find = _GROUPS[name](spec, argument)

    def stage(a: Any, /, **more: Any) -> Labels:
        return find(as_matrix(a, symmetric=False), more)

    return stage


# Each makes, of (spec, argument), a function of the affinity and the keywords that the stage got.
_Finder: TypeAlias = Callable[[Matrix, dict[str, Any]], Labels]


def _modular(finder: Callable[..., Labels], spec: str, argument: str | None) -> _Finder:
    return lambda a, more: finder(a, resolution=more.get("resolution", 1.0), seed=more.get("seed", 0))


def _hierarchical(spec: str, argument: str | None) -> _Finder:
    choose: Any = "silhouette" if argument == "silhouette" else "gap"
    count = None if argument in (None, "auto", "silhouette") else _whole(spec, str(argument))

    def find(a: Matrix, more: dict[str, Any]) -> Labels:
        d = more.get("distances")
        return groups.hierarchical(affinity.to_distance(a) if d is None else d, count, choose=choose)

    return find


def _kmeans(spec: str, argument: str | None) -> _Finder:
    count = _whole(spec, str(argument))

    def find(a: Matrix, more: dict[str, Any]) -> Labels:
        vectors = more.get("vectors")
        rows = as_dense(a, symmetric=False) if vectors is None else vectors
        return groups.kmeans(rows, count, seed=more.get("seed", 0))

    return find


def _bipartition(spec: str, argument: str | None) -> _Finder:
    threshold = _real(spec, str(argument), -1)
    return lambda a, more: groups.recursive_bipartition(a, threshold)


def _same(spec: str, argument: str | None) -> _Finder:
    alpha = same_alpha(spec)

    def find(a: Matrix, more: dict[str, Any]) -> Labels:
        signatures, n = more.get("signatures"), a.shape[0]
        if signatures is None:
            raise GraphError(
                "groups 'same' needs signatures=, what fedkin.graph.sign makes of each client's samples, and there are "
                "none; a graph of similarities alone cannot tell chance from difference"
            )
        if len(signatures) != n:
            raise GraphError(f"groups 'same': {len(signatures)} signatures for {n} clients; expected one per row")
        return grouping_tests.find(signatures, alpha=alpha, seed=more.get("seed", 0)).labels

    return find


_GROUPS: dict[str, Callable[[str, str | None], _Finder]] = {
    "louvain": partial(_modular, groups.louvain),
    "leiden": partial(_modular, groups.leiden),
    "components": lambda spec, argument: lambda a, more: groups.components(a),
    "hierarchical": _hierarchical,
    "kmeans": _kmeans,
    "bipartition": _bipartition,
    "same": _same,
    "planted": lambda spec, argument: (
        lambda a, more: canonical(_needed(more.get("planted"), a.shape[0], "groups 'planted'"))
    ),
    "single": lambda spec, argument: lambda a, more: np.zeros(a.shape[0], dtype=np.int64),
    "alone": lambda spec, argument: lambda a, more: np.arange(a.shape[0]),
}


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


def control_stage(spec: str) -> Callable[..., Matrix]:
    """Return a function (A, seed=0, planted=None) from a learned affinity [n, n] to its control; "none" returns A.

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
            return affinity.random(a, seed=seed)
        if name == "uniform":
            return affinity.uniform(a)
        if name == "oracle":
            return affinity.oracle(_needed(planted, a.shape[0], "control 'oracle'"))
        if name == "shuffled":
            return affinity.shuffled(a, seed=seed)
        return affinity.self_only(a) if name == "self" else a

    return stage


def _needed(planted: Any, n: int, who: str) -> Labels:
    if planted is None:
        raise GraphError(f"{who} needs the planted groups, and they are not known")
    return as_labels(planted, n, "planted")
