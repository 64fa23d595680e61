"""Clients' classes in feature space, and the similarity of their heads (SFMTL-Graph, Fig. 4; MAPL, Fig. 4c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.analysis.embeddings import Cloud, Features, read_features
from fedkin.analysis.projection import project, separation
from fedkin.errors import RunError
from fedkin.report.drawing import evenly
from fedkin.report.packing import pack
from fedkin.report.reading import Run

__all__ = ["FeatureBudget", "features_of"]

_ROUNDS = 6
_POINTS = 5000  # of all projections of a page: t-SNE takes some seconds for this number
_LEAST, _MOST = 200, 2000
_HEADS = 100
# For all runs of a page together: rounds, and cells of the heads' matrices.
_ALL_ROUNDS = 120
_CELLS = 400_000


@dataclass(frozen=True)
class FeatureBudget:
    """Limits: points of each projection, rounds of each run, clients of each matrix of heads.

    t-SNE is computed for the runs of one seed.
    """

    points: int
    seed: int
    rounds: int = _ROUNDS
    heads: int = _HEADS

    @classmethod
    def shared(cls, runs: Sequence[Run]) -> FeatureBudget:
        """Equal parts for each round of each run of the lowest seed, as if all of them had features and anchors."""
        seed = min(run.seed for run in runs)
        rounds = max(1, min(_ROUNDS, _ALL_ROUNDS // max(1, sum(bool(run.features) for run in runs))))
        kept = [(run.seed, min(len(run.features), rounds)) for run in runs]
        count = 2 * sum(number for of, number in kept if of == seed)
        heads = isqrt(_CELLS // max(1, sum(number for _, number in kept)))
        return cls(
            min(_MOST, max(_LEAST, _POINTS // max(1, count))), seed, rounds, max(2, min(_HEADS, heads))
        )  # fmt: skip


def features_of(run: Run, ids: Sequence[str], budget: FeatureBudget) -> dict[str, Any] | None:
    """The page's data of a run's features, with clients numbered as in `ids`; None if none were recorded.

    Every kept round has its clouds (positions by t-SNE, starting from the previous round) with silhouettes by class,
    planted and found group, and the similarity of heads. `drawn` is false for seeds that have only these figures.
    """
    if not run.features:
        return None
    number = {id: i for i, id in enumerate(ids)}
    drawn = run.seed == budget.seed
    before: dict[str, dict[tuple[int, int], npt.NDArray[np.float64]]] = {}
    rounds = []
    for round in evenly(sorted(run.features), budget.rounds):
        found = read_features(run.features[round])
        strangers = [id for id in found.ids if id not in number]
        if strangers:
            raise RunError(
                f"{run.features[round]}: features of client {strangers[0]!r}, which the run does not have; is the file "
                "another run's? Put the run's own back, or remove it"
            )
        place = [number[id] for id in found.ids]
        entry: dict[str, Any] = {"round": round, "clouds": {}, "heads": _heads(found, place, run, budget.heads)}
        for name, cloud in (("features", found.features), ("anchors", found.anchors)):
            if cloud is None:
                continue
            few = _few(cloud, budget.points)
            entry["clouds"][name] = {
                "separation": _separations(run, found, cloud, round),
                **(_drawn(few, place, before.setdefault(name, {})) if drawn else {}),
            }
        rounds.append({**entry, "kept": len(found.ids), "clients": found.clients})
    return {"rounds": rounds, "allRounds": len(run.features), "drawn": drawn}


def _few(cloud: Cloud, most: int) -> Cloud:
    """The points of the server and of the first clients, up to the limit."""
    counts = np.bincount(cloud.client[cloud.client >= 0], minlength=1)
    kept = max(int(np.searchsorted(np.cumsum(counts), most, side="right")), 1)
    rows = cloud.client < kept
    return Cloud(cloud.client[rows], cloud.label[rows], cloud.points[rows])


def _drawn(
    cloud: Cloud, place: Sequence[int], before: dict[tuple[int, int], npt.NDArray[np.float64]]
) -> dict[str, Any]:
    """Positions of the points; `before` holds those of the last round, and receives these."""
    client = [-1 if c < 0 else place[c] for c in cloud.client.tolist()]
    keys = list(zip(client, cloud.label.tolist(), strict=True))
    start = np.array([before[key] for key in keys]) if all(key in before for key in keys) else None
    found = project(cloud.points, start)
    before.clear()
    before.update(zip(keys, found, strict=True))
    return {
        "client": client,
        "label": cloud.label.tolist(),
        "x": np.round(found[:, 0], 3).tolist(),
        "y": np.round(found[:, 1], 3).tolist(),
    }


def _separations(run: Run, found: Features, cloud: Cloud, round: int) -> dict[str, float | None]:
    """Mean silhouettes of the clients' points, in all dimensions: by class, planted group and last found group."""
    own = cloud.client >= 0
    points, ids = cloud.points[own], [found.ids[c] for c in cloud.client[own].tolist()]
    told: dict[str, float | None] = {"class": separation(points, cloud.label[own].tolist())}
    told["planted"] = None if run.planted is None else separation(points, [run.planted[id] for id in ids])
    graphs = [at for at in run.graphs if at <= round]
    groups = run.graph(max(graphs)).groups if graphs else None
    known = [i for i, id in enumerate(ids) if groups and id in groups]
    told["found"] = separation(points[known], [groups[ids[i]] for i in known]) if groups and known else None
    return {name: None if value is None else float(f"{value:.4f}") for name, value in told.items()}


def _heads(found: Features, place: Sequence[int], run: Run, most: int) -> dict[str, Any] | None:
    """Similarity of heads, clients ordered by planted group and classes."""
    if found.heads is None:
        return None
    count = min(len(found.heads), most)

    def key(row: int) -> tuple[str, list[str], str]:
        facts = run.clients[found.ids[row]]
        return str(facts.get("group")), sorted(facts.get("labels", {})), found.ids[row]

    order = sorted(range(count), key=key)
    matrix = found.heads[np.ix_(order, order)]
    apart = matrix[~np.eye(count, dtype=bool)]
    low, high = float(apart.min()), float(apart.max())
    scaled = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.ones_like(matrix)
    return {
        "clients": [place[row] for row in order], "low": low, "high": high, "matrix": pack(np.round(255 * scaled), "u1")
    }  # fmt: skip
