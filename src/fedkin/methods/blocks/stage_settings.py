"""Stages of `fedkin.graph` as settings of a method: their types, and what they need from the federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import WrapValidator
from scipy import sparse

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.federation import AnyRoster
from fedkin.settings import Settings
from fedkin.views import ServerView

LARGEST = 5000  # up to this many clients, a graph of all pairs is made


def known_stage(make: Callable[[str], object], *own: str) -> WrapValidator:
    """A pydantic validator of text that `make` can read as a stage; `own`: more names, which the method reads itself.

    A function, or a stage that `fedkin.graph.stage` made of one, becomes a stage of its name. An unknown stage is
    refused when the settings are read, not in the middle of a run.

    >>> from fedkin.settings import Settings, parse
    >>> class Own(Settings):
    ...     source: Annotated[str, known_stage(graph.similarity_stage, "uniform")] = "uniform"
    >>> parse(Own, {"source": "rbf:0.5"}, "method").source
    'rbf:0.5'
    """
    kind: Any = make.__name__.removesuffix("_stage")

    def check(given: Any, handler: Callable[[Any], str]) -> str:
        spec = handler(_put_among(given, kind, own) if callable(given) else given)
        if spec in own:
            return spec
        try:
            make(spec)
        except ConfigError as error:
            raise ValueError(f"{error}, or {', '.join(own)}" if own else str(error)) from None
        return spec

    return WrapValidator(check)


def _put_among(given: Any, kind: graph.stages.Kind, own: Sequence[str]) -> str:
    """Register a function as a stage, in place of its older version in a notebook; return its name."""
    try:
        stage = given if isinstance(given, graph.stages.Stage) else graph.stages.stage(kind)(given)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if stage.name in own:
        raise ValueError(f"stage {stage.name!r}: this setting has this name already: give yours another")
    before = graph.stages.STAGES.get(stage.name)
    if before is not None and before is not stage:
        one, other = ((each.part.__module__, each.part.__qualname__) for each in (before, stage))
        if one != other:
            raise ValueError(f"there is a graph stage {stage.name!r} already: give yours another name")
    graph.stages.STAGES[stage.name] = stage
    return stage.name


SimilarityStage = Annotated[str, known_stage(graph.similarity_stage)]
SparsifyStage = Annotated[str, known_stage(graph.sparsify_stage)]
GroupsStage = Annotated[str, known_stage(graph.groups_stage)]
ControlStage = Annotated[str, known_stage(graph.control_stage)]


class ControlledGraph(Settings):
    """Settings of a method's graph that a control may replace.

    For a method with `graph: ControlledGraph = ControlledGraph()`, or a subclass, that passes its affinities through
    `controlled`, comparisons offer the controls @one, @random and @oracle.
    control: "random", "uniform", "oracle", "shuffled" or "self" replaces the graph; "none" keeps it.
    """

    control: ControlStage = "none"

    def controlled(self, server: ServerView, ids: Sequence[str], affinity: Any) -> npt.NDArray[np.float64]:
        """Return the affinities [n, n] of these clients, at least 0 and symmetric, or those of the control."""
        planted = planted_labels(server, ids)
        result = graph.control_stage(self.control)(affinity, planted=planted, seed=server.key("control"))
        return np.asarray(result.toarray() if sparse.issparse(result) else result, dtype=np.float64)


def needs_planted(federation: AnyRoster, **stages: str | None) -> None:
    """Raise ConfigError, naming the setting, when a stage needs planted groups that are not known.

    stages: by name in [method.graph], the stage that is set; "oracle" and "planted" need the planted groups.
    """
    for name, stage in stages.items():
        if stage in ("oracle", "planted") and federation.planted is None:
            raise ConfigError(
                f"method.graph.{name}: {stage!r} needs planted groups, and those of {federation.name} are not known"
            )


def check_size(clients: int, what: str, instead: str) -> None:
    """Raise ConfigError if all pairs of too many clients would be compared."""
    if clients > LARGEST:
        how = f"compares all pairs of {clients:,} clients, and is made of at most {LARGEST:,}"
        raise ConfigError(f"{what} {how}: {instead}")


def planted_labels(server: ServerView, ids: Sequence[str]) -> npt.NDArray[np.str_] | None:
    """The planted groups of these clients [n], for a stage that reads them; None if they are not known."""
    return None if server.planted is None else np.array([server.planted[id] for id in ids])
