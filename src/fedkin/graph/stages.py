"""Stages by name: "name" or "name:argument", as configurations and the command line write them.

    similarity_stage("cosine")(X) -> S                          vectors [n, d] to similarity [n, n]
    sparsify_stage("knn:10")(S) -> A                            affinity [n, n]
    control_stage("random")(A, seed=0, planted=None) -> A       the control graph that replaces A
    groups_stage("louvain")(A, seed=0, resolution=1.0, planted=None, vectors=None, signatures=None)
        -> labels [n]

All arguments but the first are keyword arguments. A stage ignores those that it does not need.

similarity: cosine | dot | l1 | l2 | rbf | rbf:GAMMA. All but cosine and rbf are min-max scaled over pairs to [0, 1]
with a zero diagonal, so that a threshold means the same for each.

sparsify: none | epsilon:E | knn:K | mutual:K | gamma:auto | gamma:D. gamma reads distances 1 - S, and links only pairs
with S > 0.

groups: louvain | leiden | components | hierarchical | hierarchical:silhouette | hierarchical:N | kmeans:N |
same | same:ALPHA | single (one group of all clients) | alone (each client its own group) | planted.
hierarchical reads distances 1 - A; kmeans reads `vectors`, or the rows of A without them; same
reads `signatures`, one per row. same calls fedkin.graph.find, which also returns the verdicts and the tree of tests.

control: none | random | uniform | oracle | shuffled | self.

A spec that cannot be read raises ConfigError when the stage is made. Input that a stage cannot use raises
GraphError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedkin.errors import ConfigError, GraphError, nearest
from fedkin.graph import affinity, groups, similarity
from fedkin.graph._check import Array, Labels, Matrix, as_dense, as_labels, as_matrix
from fedkin.graph.grouping_tests import find
from fedkin.untrusted import error_text, escaped, plain_word

Kind: TypeAlias = Literal["similarity", "sparsify", "groups", "control"]


# -- a user's stages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stage:
    """A user's graph stage. function: as `fedkin.graph.stages` says; it gets only the keywords that it names.

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
        """The user's function, with its module and docstring."""
        return self.function

    def __call__(self, first: Any, /, **more: Any) -> Any:
        """Return the stage's output for n clients; raises GraphError in one line for invalid output."""
        try:
            output = self.function(first, **_accepted(self.function, more))
        except GraphError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise GraphError(f"{self._who}: {type(error).__name__}: {error_text(error)}") from error
        return self._checked(output, first.shape[0] if hasattr(first, "shape") else len(first))

    @property
    def _who(self) -> str:
        return f"{self.kind} stage {self.name!r}"

    def _checked(self, output: Any, n: int) -> Any:
        try:
            table = np.asarray(output.toarray() if hasattr(output, "toarray") else output)
        except Exception as error:  # a user's function may return anything
            got = f"{type(error).__name__}: {error_text(error)}"
            raise GraphError(f"{self._who}: expected one array, got {got}") from error
        what, wanted = ("labels", (n,)) if self.kind == "groups" else ("a matrix", (n, n))
        if table.shape != wanted:
            raise GraphError(f"{self._who}: expected {what} of shape {wanted} for {n} clients, got {table.shape}")
        return self._checked_labels(table) if self.kind == "groups" else self._checked_matrix(table)

    def _checked_labels(self, table: Array) -> Labels:
        if table.dtype.kind not in "iuUSb" and not all(isinstance(label, (str, int)) for label in table.tolist()):
            raise GraphError(f"{self._who}: expected a whole number or a text for each client, got {table.dtype}")
        return groups.canonical(np.unique(table.astype(str), return_inverse=True)[1])

    def _checked_matrix(self, table: Array) -> Array:
        if table.dtype.kind not in "iufb" or not np.isfinite(table).all():
            raise GraphError(f"{self._who}: expected finite numbers, got {escaped(str(table.dtype), 40)}")
        if self.kind == "sparsify" and not (np.array_equal(table, table.T) and not table.diagonal().any()):
            raise GraphError(f"{self._who}: expected a symmetric matrix with a zero diagonal")
        if self.kind in ("sparsify", "control") and (table < 0).any():
            raise GraphError(f"{self._who}: expected weights of at least 0, got {table.min():g}")
        return table.astype(np.float64)


STAGES: dict[str, Stage] = {}


def stage(kind: Kind, *, name: str | None = None) -> Callable[[Callable[..., Any]], Stage]:
    """Turn a function into a stage of this kind. name: its name in settings, by default that of the function.

    >>> @stage("groups")
    ... def by_sign(a):
    ...     return [int(row.sum() > 0) for row in a]
    >>> by_sign.name, by_sign(np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    ('by-sign', array([0, 1, 0]))
    """
    if kind not in BUILT_IN:
        raise ConfigError(f"stage: no kind {kind!r}; {nearest(str(kind), BUILT_IN)}")

    def mark(function: Callable[..., Any]) -> Stage:
        if name is not None:
            return Stage(kind, name, function)
        own_name = getattr(function, "__name__", type(function).__name__)
        if own_name == "<lambda>":
            raise ConfigError(f"stage: a lambda has no name: fedkin.graph.stage({kind!r}, name='mine')(...)")
        return Stage(kind, own_name.strip("_").replace("_", "-"), function)

    return mark


def _accepted(function: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that the function names, or all if it takes any."""
    parameters = inspect.signature(function).parameters
    all_keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in keywords.items() if all_keywords or name in parameters}


# -- stages by name ----------------------------------------------------------------------------------------------------


def similarity_stage(spec: str) -> Callable[[Any], Array]:
    """Return a function from vectors [n, d] to similarity [n, n] of at most 1.

    spec: "cosine", "dot", "l1", "l2", "rbf", "rbf:GAMMA" or the name of a user's stage; raises ConfigError for others.

    >>> similarity_stage("l2")([[0.0], [1.0], [3.0]]).round(2)
    array([[0. , 1. , 0. ],
           [1. , 0. , 0.5],
           [0. , 0.5, 0. ]])
    """
    return _stage("similarity", spec)


def sparsify_stage(spec: str) -> Callable[..., Matrix]:
    """Return a function (S) from similarity [n, n] to affinity: symmetric, at least 0, zero diagonal.

    spec: "none", "epsilon:E", "knn:K", "mutual:K", "gamma:auto", "gamma:D" or the name of a user's stage; raises
    ConfigError for others.

    >>> sparsify_stage("knn:1")(np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]]))
    array([[0. , 0.5, 0. ],
           [0.5, 0. , 0.4],
           [0. , 0.4, 0. ]])
    """
    return _stage("sparsify", spec)


def groups_stage(spec: str) -> Callable[..., Labels]:
    """Return a function (A, seed=, resolution=, planted=, vectors=, signatures=) to canonical labels [n].

    spec: "louvain", "leiden", "components", "hierarchical", "hierarchical:N", "kmeans:N", "same", "same:ALPHA",
    "single", "alone", "planted" or the name of a user's stage (`fedkin.graph.stages` explains them); raises ConfigError
    for others.

    >>> groups_stage("components")(np.eye(2))
    array([0, 1])
    """
    return _stage("groups", spec)


def control_stage(spec: str) -> Callable[..., Matrix]:
    """Return a function (A, seed=0, planted=None) from a learned affinity [n, n] to its control.

    spec: "none" (A itself), "random", "uniform", "oracle", "shuffled", "self" or the name of a user's stage; raises
    ConfigError for others.

    >>> control_stage("oracle")(np.zeros((2, 2)), planted=["a", "a"])
    array([[0., 1.],
           [1., 0.]])
    """
    return _stage("control", spec)


def _stage(kind: Kind, spec: str) -> Callable[..., Any]:
    user_stage = STAGES.get(spec.strip())
    if user_stage is not None:
        if user_stage.kind != kind:
            raise ConfigError(f"{kind} {spec!r}: this is a {user_stage.kind} stage")
        return user_stage
    function = _built_in(kind, spec)

    def stage(first: Any, /, **keywords: Any) -> Any:
        matrix = first if kind == "similarity" else as_matrix(first, symmetric=False)
        return function(matrix, **_accepted(function, keywords))

    return stage


def _built_in(kind: Kind, spec: str) -> Callable[..., Any]:
    """Return the function of a spec "name" or "name:argument"; raises ConfigError if it cannot be read."""
    name, colon, argument = spec.strip().partition(":")
    if name not in BUILT_IN[kind]:
        names = [*BUILT_IN[kind], *(name for name, stage in STAGES.items() if stage.kind == kind)]
        raise ConfigError(f"unknown {kind} {name!r} in {spec!r}; {nearest(name, names)}")
    expected, make = BUILT_IN[kind][name]
    if colon and not expected:
        raise ConfigError(f"{kind} {spec!r}: {name!r} takes no argument")
    if not argument and expected[:1] not in ("", "?"):
        raise ConfigError(f"{kind} {spec!r}: expected {name}:{expected}")
    if colon and not argument:
        raise ConfigError(f"{kind} {spec!r}: nothing after the colon")
    try:
        return make(argument or None)
    except ValueError as error:
        raise ConfigError(f"{spec!r}: {error} after the colon, got {argument!r}") from None


# -- fedkin's own ------------------------------------------------------------------------------------------------------


class BuiltIn(NamedTuple):
    """A built-in stage.

    argument: what stands after the colon; "" for nothing, "?..." for an optional one. make: from that argument (None:
    there is none) to the stage's function; raises ValueError for an argument that it cannot read.
    """

    argument: str
    make: Callable[[Any], Callable[..., Any]]


def _plain(function: Callable[..., Any]) -> BuiltIn:
    return BuiltIn("", lambda argument: function)


def _integer(argument: str) -> int:
    if not (argument.isascii() and argument.isdigit() and int(argument) >= 1):
        raise ValueError("expected a whole number of at least 1")
    return int(argument)


def _number(argument: str, low: float, *, above: bool = False) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value) or value < low or (above and value == low):
        raise ValueError(f"expected a number {'above' if above else 'of at least'} {low:g}")
    return value


def _gamma(argument: str) -> Callable[..., Matrix]:
    value = None if argument == "auto" else _number(argument, 0, above=True)

    def sparsify(s: Any) -> Matrix:
        s = as_dense(s, "S")
        # A pair with similarity 0 is not linked, however wide the gap of the distances is.
        return np.where(s > 0, np.asarray(affinity.gamma(affinity.to_distance(s), value)), 0.0)

    return sparsify


def _hierarchical(argument: str | None) -> Callable[..., Labels]:
    choose: Any = "silhouette" if argument == "silhouette" else "gap"
    clusters = None if argument in (None, "auto", "silhouette") else _integer(str(argument))

    return lambda a: groups.hierarchical(affinity.to_distance(a), clusters, choose=choose)


def _kmeans(argument: str) -> Callable[..., Labels]:
    clusters = _integer(argument)

    def group(a: Matrix, vectors: Any = None, seed: int = 0) -> Labels:
        return groups.kmeans(as_dense(a, symmetric=False) if vectors is None else vectors, clusters, seed=seed)

    return group


def same_alpha(spec: str) -> float:
    """Return the test level of the groups "same" or "same:ALPHA"; .001 if ALPHA is not given.

    >>> same_alpha("same"), same_alpha("same:0.01")
    (0.001, 0.01)
    """
    if spec.partition(":")[0] != "same":
        raise ConfigError(f"unknown groups {spec!r}; expected same or same:ALPHA")
    alpha: float = _built_in("groups", spec).keywords["alpha"]  # type: ignore[attr-defined]
    return alpha


def _alpha(argument: str | None) -> float:
    alpha = 0.001 if argument is None else _number(argument, 0, above=True)
    if alpha >= 1:
        raise ValueError("expected a level below 1")
    return alpha


def _same(a: Matrix, *, alpha: float, signatures: Any = None, seed: int = 0) -> Labels:
    if signatures is None:
        raise GraphError(
            "groups 'same' needs signatures=, what fedkin.graph.sign makes of each client's samples, and there are "
            "none; a graph of similarities alone cannot tell chance from difference"
        )
    if len(signatures) != a.shape[0]:
        raise GraphError(f"groups 'same': {len(signatures)} signatures for {a.shape[0]} clients; expected one per row")
    return find(signatures, alpha=alpha, seed=seed).labels


def _planted(planted: Any, n: int, stage: str) -> Labels:
    if planted is None:
        raise GraphError(f"{stage} needs the planted groups, and they are not known")
    return as_labels(planted, n, "planted")


BUILT_IN: dict[str, dict[str, BuiltIn]] = {
    "similarity": {
        "cosine": _plain(similarity.cosine),
        "dot": _plain(similarity.dot),
        "l1": _plain(lambda x: similarity.minmax(similarity.negative_l1(x))),
        "l2": _plain(lambda x: similarity.minmax(similarity.negative_l2(x))),
        "rbf": BuiltIn("?GAMMA", lambda g: partial(similarity.rbf, gamma=g and _number(g, 0, above=True))),
    },
    "sparsify": {
        "none": _plain(affinity.nonnegative),
        "epsilon": BuiltIn("THRESHOLD", lambda e: partial(affinity.epsilon, threshold=_number(e, 0))),
        "knn": BuiltIn("K", lambda k: partial(affinity.knn, k=_integer(k))),
        "mutual": BuiltIn("K", lambda k: partial(affinity.knn, k=_integer(k), mutual=True)),
        "gamma": BuiltIn("auto or gamma:DISTANCE", _gamma),
    },
    "groups": {
        "louvain": _plain(groups.louvain),
        "leiden": _plain(groups.leiden),
        "components": _plain(groups.components),
        "single": _plain(lambda a: np.zeros(a.shape[0], dtype=np.int64)),
        "alone": _plain(lambda a: np.arange(a.shape[0])),
        "planted": _plain(lambda a, planted=None: groups.canonical(_planted(planted, a.shape[0], "groups 'planted'"))),
        "hierarchical": BuiltIn("?N", _hierarchical),
        "kmeans": BuiltIn("N", _kmeans),
        "same": BuiltIn("?ALPHA", lambda alpha: partial(_same, alpha=_alpha(alpha))),
    },
    "control": {
        "none": _plain(lambda a: a),
        "random": _plain(affinity.random),
        "uniform": _plain(affinity.uniform),
        "oracle": _plain(lambda a, planted=None: affinity.oracle(_planted(planted, a.shape[0], "control 'oracle'"))),
        "shuffled": _plain(affinity.shuffled),
        "self": _plain(affinity.self_only),
    },
}
