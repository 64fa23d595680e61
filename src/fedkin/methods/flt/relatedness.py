"""The single steps of FLT's Algorithm 2, lines 13 to 19, at the server: one pure function each, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from fedkin import graph
from fedkin.methods.blocks.signatures import LEAST, SameStage, found_among
from fedkin.methods.blocks.stages import ControlStage
from fedkin.settings import Settings

__all__ = [
    "Array", "Labels", "Related", "RelatednessSettings", "Sets", "adjacency", "clusters", "controlled", "distances",
    "embedded", "row_distances", "tested", "threshold",
]  # fmt: skip

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
# Of each client its centres [k, d], or its signature of moments.
Sets = Sequence[Any]
_DISTANCES = {"matching": graph.matching, "min": graph.minimum}


class RelatednessSettings(Settings):
    """From centres to a graph of clients and to groups.

    embedding: "none" (distances between the original centres), "umap" (the paper's) or "pca", to `dims` dimensions,
    fitted on the centres of all clients. neighbours, min_dist: UMAP's.
    distance: between two clients' sets of centres, "matching" (the released code's) or "min" (the paper's text).
    gamma: clients nearer than this are neighbours. "groups" finds it halfway between the mean distance inside the
    groups and that to the nearest other group, "gap" in the widest gap between all distances.
    adjacency: "hard" (1 below gamma) or "soft" (exp(-(distance / gamma)^2)).
    groups: "same[:alpha]", clients that no test of their signatures of moments tells apart (ours, `fedkin.graph.find`);
    or a number of groups; or how it is found from the hierarchy: "ratio", "gap", "silhouette", at most `most` (None:
    half the number of clients, and at most 30). linkage: of the hierarchy.
    cluster: the hierarchy is made from the "distances", or (the paper's) from distances between the adjacency's "rows".
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    embedding: Literal["none", "pca", "umap"] = "none"
    dims: int = Field(2, ge=1)
    neighbours: int = Field(15, ge=2)
    min_dist: float = Field(0.1, ge=0, le=1)
    distance: Literal["matching", "min"] = "matching"
    gamma: float | Literal["groups", "gap"] = "groups"
    adjacency: Literal["hard", "soft"] = "hard"
    groups: int | Literal["ratio", "gap", "silhouette"] | SameStage = "same"
    most: int | None = Field(None, ge=2)
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    cluster: Literal["distances", "rows"] = "distances"
    control: ControlStage = "none"

    @field_validator("gamma", "groups")
    @classmethod
    def _in_range(cls, value: float | str, info: Any) -> float | str:
        least = 0 if info.field_name == "gamma" else 1
        if not isinstance(value, str) and value < least:
            raise ValueError(f"expected a number of at least {least}")
        return value

    @property
    def from_test(self) -> bool:
        """Whether groups are found by the test."""
        return isinstance(self.groups, str) and self.groups.split(":")[0] == "same"


class Related(NamedTuple):
    """What Algorithm 2 returns: adjacency [n, n] with a zero diagonal, groups [n], and the threshold that was used.

    adjacency: a csr_array if it is of neighbours only.
    verdicts: of the tests that the groups are from, if any; its ids are places among `drawn`, as text. drawn: rows of
    the clients that made groups and threshold. recall: the share of neighbours that were found, None if all were.
    """

    adjacency: Any
    groups: Labels
    gamma: float
    verdicts: graph.Verdicts | None
    drawn: Labels
    recall: float | None


def embedded(fitted: Sets, settings: RelatednessSettings, seed: int, new: Sets | None = None) -> Sets:
    """Lines 13 and 14: the sets of centres in an embedding that is fitted on `fitted`.

    new: other sets to place in this embedding; None: those that it is fitted on.
    """
    wanted = fitted if new is None else new
    if settings.embedding == "none":
        return list(wanted)
    points, asked = np.concatenate(fitted), None if new is None else np.concatenate(new)
    if settings.embedding == "pca":
        placed = graph.pca(points, asked, dims=settings.dims)
    else:
        placed = graph.umap(
            points, asked, dims=settings.dims, neighbours=settings.neighbours, min_dist=settings.min_dist, seed=seed
        )
    return np.split(placed, np.cumsum([len(one) for one in wanted])[:-1])


def distances(sets: Sets, settings: RelatednessSettings, others: Sets | None = None) -> Array:
    """Lines 15 and 16: A, the distance of every two sets [n, n]; with `others`, of each set to each of them."""
    measure: Any = graph.apart if isinstance(sets[0], graph.Signature) else _DISTANCES[settings.distance]
    return np.asarray(measure(sets) if others is None else measure(sets, others))


def threshold(between: Array, labels: Labels, gamma: float | str) -> float:
    """The gamma of line 17: the distance below which two clients are neighbours.

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


def adjacency(between: Array, gamma: float, settings: RelatednessSettings) -> Array:
    """Line 17: the thresholded matrix, or its soft form exp(-(distance / gamma)^2); the diagonal is kept.

    With gamma 0 nothing is linked, in the soft form as in the hard one.
    """
    if settings.adjacency == "hard":
        return (between < gamma).astype(np.float64)
    if gamma == 0:
        return np.zeros_like(between)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.square(between / gamma)))


def tested(signed: Sets, settings: RelatednessSettings, seed: int) -> graph.Verdicts:
    """Ours, in place of lines 18 and 19: clients that no test of their signatures of moments tells apart."""
    every = {str(row): one for row, one in enumerate(signed)}
    return found_among(every, graph.same_alpha(str(settings.groups)), LEAST, seed)


def clusters(between: Array, settings: RelatednessSettings) -> Labels:
    """Lines 18 and 19: hierarchical clustering of these distances; the number of groups is given or found."""
    n = len(between)
    if isinstance(settings.groups, int):
        return graph.hierarchical(between, min(settings.groups, n), linkage=settings.linkage)
    most = max(min(n // 2, 30), 2) if settings.most is None else settings.most
    choose: Any = settings.groups
    return graph.hierarchical(between, linkage=settings.linkage, choose=choose, most=most)


def row_distances(linked: Array) -> Array:
    """Euclidean distances between rows of the adjacency with self-loops, which the released code clusters."""
    from scipy.spatial.distance import cdist

    rows = linked + np.eye(len(linked))
    between = cdist(rows, rows)
    between = (between + between.T) / 2
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def controlled(linked: Any, labels: Labels, control: str, seed: int, planted: Any) -> tuple[Any, Labels]:
    """The control graph in place of the learned one, and its groups; random and shuffled keep the groups' sizes."""
    if control == "none":
        return linked, labels
    changed = graph.control_stage(control)(linked, seed=seed, planted=planted)
    if control == "oracle":
        return changed, graph.canonical(planted)
    if control in ("self", "uniform"):
        return changed, np.arange(len(labels)) if control == "self" else np.zeros(len(labels), dtype=np.int64)
    # The permutation that `graph.shuffled` draws from this seed.
    return changed, labels[np.random.default_rng(seed).permutation(len(labels))]
