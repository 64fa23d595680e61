"""Graph stages of one's own: functions that are used by name like fedkin's, and whose output is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fedkin.errors import ConfigError, GraphError, nearest
from fedkin.graph.groups import canonical
from fedkin.untrusted import plain_word, said, shown

__all__ = ["Stage", "stage"]

Kind: TypeAlias = Literal["similarity", "sparsify", "groups", "control", "centrality"]

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
    "centrality": dict.fromkeys(
        ("degree", "closeness", "betweenness", "eigenvector", "current-flow", "current-flow-closeness", "pagerank"), ""
    ),
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
            found = self.function(first, **taken)
        except GraphError:
            raise
        except Exception as error:  # whatever a function of the user's does
            raise GraphError(f"{self._who}: {type(error).__name__}: {said(error)}") from error
        return self._checked(found, first.shape[0] if hasattr(first, "shape") else len(first))

    @property
    def _who(self) -> str:
        return f"{self.kind} stage {self.name!r}"

    def _checked(self, found: Any, n: int) -> Any:
        try:
            table = np.asarray(found.toarray() if hasattr(found, "toarray") else found)
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
    found = STAGES.get(spec.strip())
    if found is not None and found.kind != kind:
        raise ConfigError(f"{kind} {spec!r}: this is a {found.kind} stage")
    return found
