"""FLT's server side without a server: from every client's centres to distances, a graph and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.settings import Settings

__all__ = ["Array", "Labels", "RelatednessSettings", "Stage", "attach", "continued", "relate", "threshold"]

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
_DISTANCES = {"matching": graph.matching, "min": graph.minimum}


class RelatednessSettings(Settings):
    """From centres to a graph of clients and to groups; each stage can be swapped.

    embedding: "none" (distances between the centres as they are), "umap" (the paper's) or "pca", of `dims`
    dimensions, fitted on the centres of all clients; neighbours and min_dist are UMAP's.
    distance: between two clients' sets of centres, "matching" (the released code's) or "min" (the paper's text).
    gamma: clients nearer than this are neighbours; "groups" finds it halfway between the mean distance inside the
    groups and that to the nearest other group, "gap" in the widest gap between all distances.
    adjacency: "hard" (1 below gamma) or "soft" (exp(-(distance / gamma)^2)).
    groups: how many, or how their number is found from the merge heights: "ratio", "gap", "silhouette"; at most
    `most` (None: half as many as clients, and no more than 30). linkage: of the hierarchy.
    cluster: on the "distances", or (the paper's) on the distances between the "rows" of the adjacency.
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    embedding: Literal["none", "pca", "umap"] = "none"
    dims: int = Field(2, ge=1)
    neighbours: int = Field(15, ge=2)
    min_dist: float = Field(0.1, ge=0, le=1)
    distance: Literal["matching", "min"] = "matching"
    gamma: float | Literal["groups", "gap"] = "groups"
    adjacency: Literal["hard", "soft"] = "hard"
    groups: int | Literal["ratio", "gap", "silhouette"] = "ratio"
    most: int | None = Field(None, ge=2)
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    cluster: Literal["distances", "rows"] = "distances"
    control: str = "none"

    @field_validator("gamma", "groups")
    @classmethod
    def _in_range(cls, value: float | str, info: Any) -> float | str:
        least = 0 if info.field_name == "gamma" else 1
        if not isinstance(value, str) and value < least:
            raise ValueError(f"expected a number of at least {least}")
        return value

    @field_validator("control")
    @classmethod
    def _known(cls, spec: str) -> str:
        try:
            graph.control_stage(spec)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return spec


@dataclass(frozen=True, eq=False)
class Stage:
    """What a stage found: adjacency [n, n] with a zero diagonal, groups [n], the threshold that was used."""

    adjacency: Array
    labels: Labels
    gamma: float


def relate(sets: Sequence[Array], settings: RelatednessSettings, seed: int, planted: Any = None) -> Stage:
    """Distances, groups and adjacency of all clients, FLT's Algorithm 2 from line 13 on."""
    between = _DISTANCES[settings.distance](_placed(sets, None, settings, seed))
    labels = _groups(between, settings)
    gamma = threshold(between, labels, settings.gamma)
    linked = _linked(between, gamma, settings)
    if settings.cluster == "rows":
        labels = _groups(_row_distances(linked), settings)
    if settings.control == "none":
        return Stage(linked, labels, gamma)
    return Stage(*_controlled(linked, labels, settings.control, seed, planted), gamma)


def attach(
    new: Sequence[Array], founders: Sequence[Array], others: Sequence[Array], labels: Labels, gamma: float,
    settings: RelatednessSettings, seed: int,
) -> tuple[Array, Labels, Labels]:  # fmt: skip
    """Newcomers beside clients that stay as they are: (rows of the adjacency, group of each, nearest founder of each).

    founders: sets that the last stage was made from, with their `labels`; others: those attached since. A newcomer
    goes to the group whose founders are nearest on average. Rows run over founders, others and newcomers.
    """
    measure = _DISTANCES[settings.distance]
    late = _placed(founders, [*others, *new], settings, seed)
    fresh, first = late[len(others) :], len(founders) + len(others)
    rows = measure(fresh, [*_placed(founders, None, settings, seed), *late])
    themselves = np.arange(len(fresh)), first + np.arange(len(fresh))
    weights = (rows < gamma).astype(np.float64) if settings.adjacency == "hard" else _soft(rows, gamma)
    weights[themselves] = 0.0
    member = np.eye(int(labels.max()) + 1)[labels]
    known = rows[:, : len(founders)]
    return weights, (known @ member / member.sum(0)).argmin(1), known.argmin(1)


def _placed(
    sets: Sequence[Array], new: Sequence[Array] | None, settings: RelatednessSettings, seed: int
) -> list[Array]:
    """The sets, or `new` ones, in the embedding that is fitted on the centres of `sets`."""
    wanted = sets if new is None else new
    if settings.embedding == "none":
        return list(wanted)
    points, asked = np.concatenate(sets), None if new is None else np.concatenate(new)
    if settings.embedding == "pca":
        placed = graph.pca(points, asked, dims=settings.dims)
    else:
        placed = graph.umap(
            points, asked, dims=settings.dims, neighbours=settings.neighbours, min_dist=settings.min_dist, seed=seed
        )
    return np.split(placed, np.cumsum([len(one) for one in wanted])[:-1])


def _groups(between: Array, settings: RelatednessSettings) -> Labels:
    n = len(between)
    if isinstance(settings.groups, int):
        return graph.hierarchical(between, min(settings.groups, n), linkage=settings.linkage)
    most = max(min(n // 2, 30), 2) if settings.most is None else settings.most
    return graph.hierarchical(between, linkage=settings.linkage, choose=settings.groups, most=most)


def threshold(between: Array, labels: Labels, gamma: float | str) -> float:
    """The distance below which two clients are neighbours.

    "groups": halfway between the mean distance inside groups and the mean, over clients, of their group's distance to
    the nearest other group. With one group it is just above the largest distance.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "gap":
        return graph.gap_threshold(between)
    member = np.eye(int(labels.max()) + 1)[labels]
    size = member.sum(0)
    if len(size) == 1:
        return float(np.nextafter(between.max(), np.inf))
    total = member.T @ between @ member
    mean = total / np.outer(size, size)
    np.fill_diagonal(mean, np.inf)
    outside = float((mean.min(1) * size).sum() / size.sum())
    pairs = float((size * (size - 1)).sum())
    inside = float(np.trace(total)) / pairs if pairs else 0.0
    return (inside + outside) / 2


def _linked(between: Array, gamma: float, settings: RelatednessSettings) -> Array:
    if settings.adjacency == "hard":
        return np.asarray(graph.gamma(between, gamma))
    soft = _soft(between, gamma)
    np.fill_diagonal(soft, 0.0)
    return soft


def _soft(between: Array, gamma: float) -> Array:
    """exp(-(distance / gamma)^2); with gamma 0 nothing is linked, as in the hard graph."""
    if gamma == 0:
        return np.zeros_like(between)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.square(between / gamma)))


def _row_distances(linked: Array) -> Array:
    """Euclidean distances between rows of the adjacency with self-loops, as the released code clusters them."""
    from scipy.spatial.distance import cdist

    rows = linked + np.eye(len(linked))
    between = cdist(rows, rows)
    between = (between + between.T) / 2
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def _controlled(linked: Array, labels: Labels, control: str, seed: int, planted: Any) -> tuple[Array, Labels]:
    """The control graph and the groups that go with it; random and shuffled keep the groups' sizes."""
    changed = np.asarray(graph.control_stage(control)(linked, seed=seed, planted=planted))
    if control == "oracle":
        return changed, graph.canonical(planted)
    if control in ("self", "uniform"):
        return changed, np.arange(len(labels)) if control == "self" else np.zeros(len(labels), dtype=np.int64)
    # The permutation that `graph.shuffled` draws from this seed.
    return changed, labels[np.random.default_rng(seed).permutation(len(labels))]


def continued(
    labels: Sequence[int], before: Sequence[int | None], used: Mapping[int, Any]
) -> list[tuple[int, int | None]]:
    """(number, parent) of each new group, in the order of its label, when groups are made anew.

    A new group's parent is the old group of most of its members (None: it has only new members). Of several children
    the one with most members from it takes on the parent's number; the others get new ones, above all `used`.
    """
    count = max(labels) + 1
    shared: dict[tuple[int, int], int] = {}
    for label, old in zip(labels, before, strict=True):
        if old is not None:
            shared[label, old] = shared.get((label, old), 0) + 1
    parents: list[int | None] = [None] * count
    numbers: list[int | None] = [None] * count
    taken: set[int] = set()
    for label, old in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if parents[label] is None:
            parents[label] = old
            if old not in taken:
                taken.add(old)
                numbers[label] = old
    free = max(used, default=-1)
    made = []
    for label in range(count):
        number = numbers[label]
        if number is None:
            free += 1
            number = free
        made.append((number, parents[label]))
    return made
