"""Run folders made up for tests of the report: the real records, without training."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fedkin.analysis import Cloud, Features
from fedkin.engines import Outcome, Score
from fedkin.engines.results import SERVER, Traffic
from fedkin.graph import Graph, Plan, Spread, find, sign
from fedkin.records import metrics
from fedkin.records.files import write_json
from fedkin.records.recorder import Records
from fedkin.tasks import Task

SIZES = {"local": 0, "fedavg": 400_000, "sfmtl-graph": 5_000, "kin": 400_000}
SKILL = {"local": 0.70, "fedavg": 0.65, "sfmtl-graph": 0.85, "kin": 0.80}


def make_run(
    folder: Path, method: str = "sfmtl-graph", seed: int = 0, *, clients: int = 8, rounds: int = 4,
    groups: int = 2, clients_per_round: int | None = None, planted: bool = True, tested: int = 20,
    names: Mapping[int, str] | None = None, wandering: float = 0.1, features: Collection[int] = (),
    owned: int = 10, skill: float | None = None, still: int | None = None,
) -> Path:  # fmt: skip
    """Write a finished run; `wandering`: share of clients that the graph puts elsewhere in a round.

    features: rounds that leave features; owned: classes of a client, those of its planted group; skill: mean accuracy,
    if not the method's own; still: the last round that changes the graph.
    """
    rng = np.random.default_rng(seed)
    ids = [(names or {}).get(i, f"site-{i:03d}") for i in range(clients)]
    group = {id: i % groups for i, id in enumerate(ids)}
    records = Records(folder)
    folder.mkdir(parents=True)
    facts = {
        id: {
            "n_train": 100 + i, "n_test": tested, "group": f"rot{90 * group[id]}" if planted else None,
            "labels": {str((y + owned * group[id]) % 10): 10 + (y + i) % 5 for y in range(owned)},
            "about": {"rotation": 90 * group[id]},
        }
        for i, id in enumerate(ids)
    }  # fmt: skip
    write_json(folder / "federation.json", {"name": "made", "task": {"classes": 10, "shape": [64]}, "clients": facts})
    (folder / "experiment.toml").write_text(
        f'name = "made"\n[data]\nsource = "digits"\n[method]\nname = "{method}"\n[run]\nseed = {seed}\n'
    )
    level = {id: float(np.clip(rng.normal(SKILL[method] if skill is None else skill, 0.1), 0, 1)) for id in ids}
    scores: dict[str, Score] = {}
    graph: Graph | None = None
    for number in range(1, rounds + 1):
        here = sorted(rng.permutation(ids)[: clients_per_round or clients].tolist())
        found = {id: group[id] if rng.random() > wandering else int(rng.integers(groups)) for id in here}
        if method == "sfmtl-graph" and number <= (still or rounds):
            graph = _graph(here, found, number, rng)
        if method == "kin" and number == 1:
            graph = told_graph(ids, group)
        traffic = _traffic(here, number, SIZES[method])
        if method == "fedavg" and number == 1:
            traffic += tuple(Traffic(1, id, SERVER, "sign", 1000, 250) for id in ids)
        if number in features:
            records.keep_features(_features(ids, group, number, rng, method == "sfmtl-graph"))
        outcome = Outcome(number, tuple(here), graph, traffic, dict.fromkeys(here, 160))
        growth = 1 - 0.6 * np.exp(-3 * number / rounds)
        scores = {id: Score(tested, 1 - level[id] * growth, round(tested * level[id] * growth)) for id in ids}
        row = {
            "round": number, "sampled": here, "accuracy": metrics.figures(scores, Task(10, (4,))),
            "groups": metrics.groups(graph, {id: f"g{group[id]}" for id in ids} if planted else None),
            **metrics.traffic(traffic), "samples": 160 * len(here),
            **({"figures": {"level": 2, "pull_weights": None, "pull_bias": None}} if method == "kin" else {}),
        }  # fmt: skip
        records.add(row, {"round": number, "total": 0.5 * number}, outcome, scores)
    records.finish({})
    write_json(folder / "summary.json", _summary(method, seed, clients, rounds, records, scores))
    return folder


def make_comparison(
    folder: Path, seeds: Sequence[int] = (0,), methods: Sequence[str] = ("local", "fedavg", "sfmtl-graph"), **more: Any
) -> Path:
    """These methods with these seeds, as `fedkin compare` lays them out."""
    for seed in seeds:
        for method in methods:
            make_run(folder / f"{method}-seed{seed}", method, seed, **more)
    write_json(folder / "plan.json", {"methods": list(methods), "seeds": list(seeds)})
    (folder / "experiment.toml").write_text('name = "made"\n[data]\nsource = "digits"\n')
    return folder


def told_graph(ids: Sequence[str], group: Mapping[str, int]) -> Graph:
    """What tests find where the groups' inputs lie 3 apart, and the last client's far away from all of them."""
    rng = np.random.default_rng(7)
    data = {id: rng.normal(size=(60, 6)) + (30 if id == ids[-1] else 3 * group[id]) for id in ids}
    plan = Plan.of(Spread.of(x) for x in data.values())
    found = find({id: sign(plan, x) for id, x in data.items()})
    weights = np.equal.outer(found.labels, found.labels) - np.eye(len(ids))
    return Graph(tuple(ids), weights, groups=found.groups, round=1).tested(found.by_client, found.evidence)


def last(folder: Path) -> dict[str, float]:
    """Each client's accuracy after the last round of a run."""
    rows = pq.read_table(folder / "clients.parquet").to_pylist()
    return {row["client"]: row["accuracy"] for row in rows}


def data_in(html: str) -> Any:
    """The data embedded in a report."""
    data = html.partition('<script type="application/json" id="data">')[2]
    return json.loads(data.partition("</script>")[0])


def run_in(data: Any, label: str, seed: int = 0) -> Any:
    """The data of one run."""
    return next(run for run in data["runs"] if run["label"] == label and run["seed"] == seed)


def _graph(here: list[str], found: Mapping[str, int], number: int, rng: np.random.Generator) -> Graph:
    label = np.array([found[id] for id in here])
    weights = rng.uniform(0, 0.4, (len(here), len(here))) + 0.5 * (label[:, None] == label[None, :])
    weights = np.triu(weights, 1)
    central = {"centrality": np.arange(len(here)) / len(here), "prior": np.full(len(here), 1 / len(here))}
    return Graph(tuple(here), weights + weights.T, groups=dict(found), round=number, values=central)


def _features(ids: list[str], group: Mapping[str, int], number: int, rng: Any, personal: bool) -> Features:
    """Three classes of each client: the closer to their class's place, the later."""
    client, label = np.repeat(np.arange(len(ids)), 3), np.tile(np.arange(3), len(ids))
    points = np.eye(3)[label] * number + 0.2 * rng.normal(size=(len(label), 3))
    cloud = Cloud(client, label, points.astype(np.float32))
    same = np.array([[group[a] == group[b] for a in ids] for b in ids])
    heads = np.where(same, 0.9, 0.1) + 0.1 * np.eye(len(ids))
    anchors, heads_known = (cloud, heads) if personal else (None, None)
    return Features(number, tuple(ids), len(ids), cloud, anchors, heads_known)


def _traffic(here: list[str], number: int, size: int) -> tuple[Traffic, ...]:
    if not size:
        return ()
    ways = ((one, other) for id in here for one, other in ((SERVER, id), (id, SERVER)))
    return tuple(Traffic(number, *way, "train", size, size // 4) for way in ways)


def _summary(method: str, seed: int, clients: int, rounds: int, records: Records, scores: dict[str, Score]) -> Any:
    lines = records.rows["rounds"]
    groups = [row["groups"] for row in lines if row["groups"]]
    return {
        "name": "made", "method": method, "scenario": "made-up", "seed": seed, "rounds": rounds, "clients": clients,
        "accuracy": metrics.figures(scores, Task(10, (4,))),
        "bytes": {way: sum(line["bytes"][way] for line in lines) for way in ("up", "down")},
        "flops": {"local_training": None},
        "groups": groups[-1] if groups else {"found": None, "ari": None, "nmi": None, "modularity": None},
        "seconds": {"total": 0.5 * rounds, "local": 0.0, "graph": 0.0, "evaluate": 0.0},
        "engine": "local", "dtype": "float32", "parameters": 1000,
        "versions": {"fedkin": "0", "python": "3"}, "machine": {"system": "test"},
    }  # fmt: skip
