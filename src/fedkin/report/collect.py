"""From run folders to the plain data of one page."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkin.errors import RunError
from fedkin.report.fairness import Gains, entropy, gains, jain
from fedkin.report.features import FeatureBudget, features_of
from fedkin.report.graphs import GraphBudget, graph_of
from fedkin.report.headline import facts, subject
from fedkin.report.packing import pack_values
from fedkin.report.reading import Run, find_runs, read_run, unfinished
from fedkin.report.rerun import rerun
from fedkin.report.sentence import FEDAVG, LOCAL, sentence
from fedkin.report.sharing import sharing_of
from fedkin.report.traffic import phases_of

__all__ = ["collect"]

# Points of all clients' curves together; beyond, fewer rounds of each are kept.
_CURVE_POINTS = 600_000


def collect(places: Sequence[Path]) -> dict[str, Any]:
    """The page's data, of JSON's types only; raises RunError for a folder that is not a finished run."""
    folders = find_runs(places)
    if not folders:
        raise RunError("name at least one run folder")
    # What others are measured against comes first; else the order given.
    runs = sorted(map(read_run, folders), key=lambda run: (run.method != LOCAL, run.method != FEDAVG))
    metric = runs[0].metric
    if odd := next((run for run in runs if run.metric != metric), None):
        raise RunError(
            f"{odd.folder}: clients are compared by {odd.metric.title}, in {runs[0].folder} by {metric.title}; "
            "one report holds runs of one metric"
        )
    labels = _labels(runs)
    gained = [_gains(run, runs) for run in runs]
    budget = GraphBudget.shared(run for run in runs if run.graphs)
    places_left = FeatureBudget.shared(runs)
    points = max(2, _CURVE_POINTS // max(1, sum(len(run.clients) for run in runs)))
    federations = _Federations()
    entries = []
    for run, label, gain in zip(runs, labels, gained, strict=True):
        federation = federations.add(run)
        ids = federations.ids(federation)
        entries.append(
            {
                "label": label,
                "method": run.method,
                "seed": run.seed,
                "federation": federation,
                "curve": _curve(run),
                "clients": pack_values(run.values, ids, points, metric.share),
                "gain": None if gain is None else [_rounded(gain.by_client.get(id)) for id in ids],
                "graph": graph_of(run, ids, budget),
                "sharing": sharing_of(run, ids, budget),
                "features": features_of(run, ids, places_left),
            }
        )
    names = list(dict.fromkeys(labels))
    titles = {name: _title(name, runs, labels) for name in names}
    return {
        "title": str(runs[0].summary.get("name", "run")),
        "scenario": str(runs[0].summary.get("scenario", "")),
        "metric": {"title": metric.title, "higher": metric.higher, "share": metric.share},
        "sentence": sentence(facts(runs, labels, gained, titles)),
        "methods": [{"label": name, "title": titles[name]} for name in names],
        "shown": labels.index(subject(runs, labels)),
        "unfinished": unfinished(places),
        "seeds": sorted({run.seed for run in runs}),
        "runs": entries,
        "federations": federations.found,
        "table": [_row(name, runs, labels, gained) for name in names],
        "phases": [
            row
            for name in names
            for row in phases_of(name, [run for run, label in zip(runs, labels, strict=True) if label == name])
        ],
        "rerun": rerun(runs, labels),
    }


def _labels(runs: Sequence[Run]) -> list[str]:
    """What to call each run's method: its name, and the folder's where a method occurs twice for a seed."""
    taken = Counter((run.method, run.seed) for run in runs)
    twice = {method for (method, _), times in taken.items() if times > 1}
    by_parent = Counter((run.method, run.seed, run.folder.resolve().parent) for run in runs)
    labels = []
    for run in runs:
        home = run.folder.resolve()
        if run.method not in twice:
            labels.append(run.method)
        elif all(times == 1 for (method, *_), times in by_parent.items() if method == run.method):
            labels.append(f"{run.method} ({home.parent.name})")
        else:
            labels.append(f"{run.method} ({home.name})")
    return labels


def _title(label: str, runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The method's name as in its paper."""
    from fedkin.methods import METHODS

    method = next(run.method for run, other in zip(runs, labels, strict=True) if other == label)
    title = str(METHODS[method].title) if method in METHODS else method
    return title + label.removeprefix(method)


def _gains(run: Run, runs: Sequence[Run]) -> Gains | None:
    """Gain over Local of the same seed and the same clients, or None."""
    if run.method == LOCAL:
        return None
    for other in runs:
        same = other.seed == run.seed and other.federation == run.federation and set(other.clients) == set(run.clients)
        if other.method == LOCAL and same:
            return gains(run.last_values, other.last_values, run.metric)
    return None


class _Federations:
    """The clients' facts, each federation once."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def add(self, run: Run) -> int:
        facts = {
            "ids": list(run.clients),
            "planted": [None if (g := c.get("group")) is None else str(g) for c in run.clients.values()],
            "train": [c.get("n_train") for c in run.clients.values()],
            "test": [c.get("n_test") for c in run.clients.values()],
            "labels": [c.get("labels", {}) for c in run.clients.values()],
            "about": [{key: str(value) for key, value in c.get("about", {}).items()} for c in run.clients.values()],
            "classes": run.federation.get("task", {}).get("classes"),
        }
        if run.unseen:
            facts["unseen"] = [id in run.unseen for id in run.clients]
        if facts not in self.found:
            self.found.append(facts)
        return self.found.index(facts)

    def ids(self, number: int) -> list[str]:
        ids: list[str] = self.found[number]["ids"]
        return ids


def _curve(run: Run) -> dict[str, list[Any]]:
    """Figures of each evaluated round, against rounds, cumulative bytes and seconds."""
    seconds = {row["round"]: row.get("total") for row in run.timing}
    curve: dict[str, list[Any]] = defaultdict(list)
    sent = 0
    # What a peer sends another receives: counting both ways would count it twice.
    ways = ("up",) if any(phase.way == "peer" for phase in run.phases) else ("up", "down")
    for row in run.rounds:
        sent += sum(row["bytes"][way] for way in ways)
        own, groups, unseen = row[run.metric.name] or {}, row["groups"] or {}, row.get("unseen") or {}
        if "mean" not in own and "mean" not in unseen and not groups:
            continue
        curve["round"].append(row["round"])
        curve["bytes"].append(sent)
        curve["seconds"].append(seconds.get(row["round"]))
        for name in ("mean", "worst10", "worst20", "std"):
            curve[name].append(_rounded(own.get(name)))
        if run.unseen:
            curve["unseen"].append(_rounded(unseen.get("mean")))
            curve["gap"].append(_rounded(row.get("gap")))
        for name in ("found", "ari"):
            curve[name].append(_rounded(groups.get(name)))
    return dict(curve)


def _row(label: str, runs: Sequence[Run], labels: Sequence[str], gained: Sequence[Gains | None]) -> dict[str, Any]:
    """A method's line: [mean, sample standard deviation] over its seeds of each figure, None where unknown."""
    mine = [(run, gain) for run, other, gain in zip(runs, labels, gained, strict=True) if other == label]
    each: dict[str, list[float | None]] = defaultdict(list)
    for run, gain in mine:
        for name in ("mean", "worst10", "worst20", "std", "variance"):
            each[name].append(run.figures.get(name))
        if run.unseen:
            each["unseen"].append((run.summary.get("unseen") or {}).get("mean"))
            each["gap"].append(run.summary.get("gap"))
        # Shares of what is good: of an error they would say nothing about fairness.
        last = list(run.last_values.values()) if run.metric.higher else []
        each["entropy"].append(entropy(last) if last else None)
        each["jain"].append(jain(last) if last else None)
        each["gain"].append(None if gain is None else gain.mean)
        each["hurt"].append(None if gain is None else gain.hurt / len(gain.by_client))
        groups = run.summary.get("groups") or {}
        for name in ("found", "ari"):
            each[name].append(groups.get(name))
        each["bytes"].append(run.sent)
        each["seconds"].append((run.summary.get("seconds") or {}).get("total"))
    return {"label": label, "seeds": len(mine), **{name: _spread(values) for name, values in each.items()}}


def _spread(values: Sequence[float | None]) -> list[float] | None:
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return [statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0]


def _rounded(value: float | None) -> float | None:
    """Six digits: more than any figure has samples for, and half the size on the page."""
    return None if value is None else round(value, 6)
