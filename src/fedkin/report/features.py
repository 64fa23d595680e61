"""Clients' classes in feature space, and the similarity of their heads (SFMTL-Graph, Fig. 4; MAPL, Fig. 4c)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.analysis.embeddings import Cloud, Features, read_features
from fedkin.analysis.figures import separation
from fedkin.errors import RunError
from fedkin.graph import pca
from fedkin.records.run import Result
from fedkin.report.graphs import evenly, pack_matrix

Points = npt.NDArray[np.float64]

_ROUNDS = 6
_POINTS = 5000  # in all pictures of a page together
_LEAST, _MOST = 200, 2000
_HEADS = 100
# For all runs of a page together: rounds, and cells of the heads' matrices.
_ALL_ROUNDS = 120
_CELLS = 400_000


@dataclass(frozen=True)
class FeatureBudget:
    """Limits: points of each picture, rounds of each run, clients of each matrix of heads.

    Pictures are made for the runs of one seed.
    """

    points: int
    seed: int
    rounds: int = _ROUNDS
    heads: int = _HEADS

    @classmethod
    def shared(cls, runs: Sequence[Result]) -> FeatureBudget:
        """Divide the page equally among the rounds of all runs with the lowest seed, for features and anchors."""
        seed = min(run.seed for run in runs)
        rounds = max(1, min(_ROUNDS, _ALL_ROUNDS // max(1, sum(bool(run.features) for run in runs))))
        kept = [(run.seed, min(len(run.features), rounds)) for run in runs]
        count = 2 * sum(number for of, number in kept if of == seed)
        heads = isqrt(_CELLS // max(1, sum(number for _, number in kept)))
        points = min(_MOST, max(_LEAST, _POINTS // max(1, count)))
        return cls(points, seed, rounds, max(2, min(_HEADS, heads)))


def features_of(run: Result, ids: Sequence[str], budget: FeatureBudget) -> dict[str, Any] | None:
    """The page's data of a run's features, with clients numbered as in `ids`; None if none were recorded.

    Every kept round has its clouds with silhouettes by class, planted and found group, and the similarity of heads.
    Positions are along the principal axes of the last round's points.
    `drawn` is false for seeds with figures but without pictures.
    """
    if not run.features:
        return None
    number = {id: i for i, id in enumerate(ids)}
    drawn = run.seed == budget.seed
    kept = evenly(sorted(run.features), budget.rounds)
    last = _read(run, kept[-1], number)
    rounds = []
    for round in kept:
        features = last if round == kept[-1] else _read(run, round, number)
        indices = [number[id] for id in features.ids]
        clouds: dict[str, Any] = {}
        for name in ("features", "anchors"):
            if (cloud := getattr(features, name)) is not None:
                clouds[name] = {"separation": _separations(run, features, cloud, round)}
                clouds[name] |= _drawn(cloud, getattr(last, name), indices, budget.points) if drawn else {}
        heads = _heads(features, indices, run, budget.heads)
        rounds.append({
            "round": round, "clouds": clouds, "heads": heads, "kept": len(features.ids), "clients": features.clients,
        })  # fmt: skip
    return {"rounds": rounds, "allRounds": len(run.features), "drawn": drawn}


def _read(run: Result, round: int, clients: Container[str]) -> Features:
    """Read the features of a round; raises RunError if they belong to clients that are not in the run."""
    features = read_features(run.unchanged(run.features[round]))
    if strangers := [id for id in features.ids if id not in clients]:
        raise RunError(
            f"{run.features[round]}: features of client {strangers[0]!r}, which the run does not have; is the file "
            "another run's? Put the run's own back, or remove it"
        )
    return features


def _drawn(whole: Cloud, final: Cloud | None, indices: Sequence[int], most: int) -> dict[str, Any]:
    """Positions of at most this number of points in -1..1, along the principal axes of the `final` points."""
    # Points of the server, and of as many first clients as the limit allows.
    counts = np.bincount(whole.client[whole.client >= 0], minlength=1)
    kept = max(int(np.searchsorted(np.cumsum(counts), most, side="right")), 1)
    rows = whole.client < kept
    cloud = Cloud(whole.client[rows], whole.label[rows], whole.points[rows])
    same = final is not None and final.points.shape[1] == cloud.points.shape[1]
    at = pca(final.points if final is not None and same else cloud.points, cloud.points)
    x, y = np.round(at / max(float(np.abs(at).max(initial=0.0)), 1e-12), 3).T.tolist()
    client = [-1 if c < 0 else indices[c] for c in cloud.client.tolist()]
    return {"client": client, "label": cloud.label.tolist(), "x": x, "y": y}


def _separations(run: Result, features: Features, cloud: Cloud, round: int) -> dict[str, float | None]:
    """Mean silhouettes of the clients' points, in all dimensions: by class, planted group and last found group."""
    of_clients = cloud.client >= 0
    points, ids = cloud.points[of_clients], [features.ids[c] for c in cloud.client[of_clients].tolist()]
    silhouettes: dict[str, float | None] = {"class": separation(points, cloud.label[of_clients].tolist())}
    silhouettes["planted"] = None if run.planted is None else separation(points, [run.planted[id] for id in ids])
    graphs = [at for at in run.graphs if at <= round]
    groups = (run.graph_at(max(graphs)).groups if graphs else None) or {}
    of_groups = [i for i, id in enumerate(ids) if id in groups]
    silhouettes["found"] = separation(points[of_groups], [groups[ids[i]] for i in of_groups])
    return {name: None if value is None else float(f"{value:.4f}") for name, value in silhouettes.items()}


def _heads(features: Features, indices: Sequence[int], run: Result, most: int) -> dict[str, Any] | None:
    """Similarity of heads, with clients ordered by planted group and classes."""
    if features.heads is None:
        return None
    count = min(len(features.heads), most)

    def key(row: int) -> tuple[str, list[str], str]:
        facts = run.client_facts[features.ids[row]]
        return str(facts.get("group")), sorted(facts.get("labels", {})), features.ids[row]

    order = sorted(range(count), key=key)
    return {"clients": [indices[row] for row in order], **pack_matrix(features.heads[np.ix_(order, order)], 1)}
