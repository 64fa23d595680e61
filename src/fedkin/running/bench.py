"""Where a method stands: its figures on a suite of federations, among the stored results of all methods."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedkin.analysis.intervals import Added, added
from fedkin.errors import FedkinError, RunError
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.records.files import write_bytes
from fedkin.running.api import run
from fedkin.running.holdout import HoldOut, held_out
from fedkin.running.loop import Result
from fedkin.running.suites import Entry, Suite

__all__ = ["REFERENCE", "Bench", "Place", "bench", "points", "read_lines", "standing", "store"]

Line = dict[str, Any]
# Simple methods that are told nothing: the best of them, by its mean, is what a method has to reach.
REFERENCE = ("local", "fedavg", "fedavg-ft", "ditto", "fedper")
_HELD = HoldOut("samples", 0.2)


def read_lines(path: Path) -> list[Line]:
    """Return the finished runs in a file; a last line that was cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def points(federation: Federation, result: Result) -> dict[str, float | None]:
    """Return each client's figure, higher is better, by id; None for a client without one.

    100 x accuracy, 100 x ROC-AUC, or percent of variance explained: 100 (1 - squared error / variance of all clients'
    training targets, summed over targets).
    """
    if federation.task.kind == "classification":
        return {id: 100 * score.right / score.n for id, score in sorted(result.scores.items()) if score.n}
    values = {id: score.figures[0] for id, score in sorted(result.scores.items())}
    if federation.task.kind == "risk":
        return {id: None if value is None else 100 * value for id, value in values.items()}
    targets = torch.cat([client.train.labels().double() for client in federation.values()])
    whole = float(targets.var(0, correction=0).sum())
    return {id: None if value is None else 100 * (1 - value / whole) for id, value in values.items()}


@dataclass
class Bench:
    """A method on a suite: runs what `path` does not have yet, a line for each run.

    label: the name under which results are kept; progress: told what has been done.
    """

    suite: Suite
    method: ServerMethod | PeerMethod
    label: str
    path: Path
    progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")  # a line that was cut off stays, and is not read
        self.lines = [line for line in read_lines(self.path) if line["method"] == self.label]
        self.federation = lru_cache(maxsize=8)(lambda name, seed: self.suite.federations[name].make(seed))

    def runs(self) -> list[Line]:
        """Run all that is missing, and return the lines of all runs, those of the choice of a rate too."""
        for name, entry in self.suite.federations.items():
            rate = self._rate(name, entry)
            if rate is not None:
                for seed in self.suite.seeds:
                    self._once(name, entry, "run", rate, seed)
        return self.lines

    def _rate(self, name: str, entry: Entry) -> float | None:
        """The best rate on held-out samples, the smaller one of equal ones; None if none works."""
        tried = {lr: self._once(name, entry, "rate", lr, self.suite.seeds[0]) for lr in entry.rates}
        means = {lr: line["mean"] for lr, line in tried.items() if line["mean"] is not None}
        return max(means, key=lambda lr: means[lr]) if means else None

    def _once(self, name: str, entry: Entry, stage: str, lr: float, seed: int) -> Line:
        """One run, or its line from an earlier start."""
        known = {"federation": name, "method": self.label, "stage": stage, "lr": lr, "seed": seed}
        for earlier in self.lines:
            if known.items() <= earlier.items():
                return earlier
        federation = self.federation(name, seed)
        if stage == "rate":
            federation = held_out(federation, _HELD, seed)
        rounds = self.suite.rounds if stage == "run" else max(1, self.suite.rounds // 2)
        training = {"lr": lr, "local_steps": self.suite.local_steps, "batch_size": self.suite.batch_size}
        begun = time.process_time()
        line: Line = {**known, "mean": None, "points": {}, "data": federation.fingerprint()[:16]}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # rates that are too large for a method are part of what is tried
                result = run(
                    self.method, federation, rounds=rounds, seed=seed, model=entry.model, training=training,
                    settings={"evaluate_every": rounds},
                )  # fmt: skip
        except FedkinError as error:
            line["failed"] = str(error)
        else:
            values = points(federation, result)
            line["points"] = {id: None if value is None else round(value, 3) for id, value in values.items()}
            judged = [value for value in line["points"].values() if value is not None]
            line["mean"] = round(sum(judged) / len(judged), 4) if judged and np.isfinite(judged).all() else None
            line["bytes"] = result.summary["bytes"]["up"] + result.summary["bytes"]["down"]
        line["seconds"] = round(time.process_time() - begun, 2)
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        failed = f" failed: {line['failed']}" if "failed" in line else ""
        mean = "-" if line["mean"] is None else f"{line['mean']:.2f}"
        if self.progress is not None:
            self.progress(f"{self.label} on {name}: {stage} seed {seed} rate {lr:g}: {mean}{failed}")
        return line


class Place(NamedTuple):
    """A method on one federation.

    mean, seeds: its figure, and the number of seeds. rank: among all methods with results, 1 is the best; of: how many
    they are. reference: the best simple method, and gain: the paired difference from it. hurt: clients whose mean over
    seeds lies below that of Local; clients: how many there are. lr: the chosen rate; border: whether it is the first or
    last that was tried.
    """

    federation: str
    mean: float | None
    rank: int | None
    of: int
    reference: str | None
    gain: Added | None
    hurt: int | None
    clients: int
    lr: float | None
    border: bool
    failed: str = ""


def standing(suite: Suite, label: str, lines: Sequence[Line]) -> list[Place]:
    """Return the place of a method on each federation, from the runs of all methods."""
    table: dict[str, dict[str, dict[int, Line]]] = {}
    for line in lines:
        if line["stage"] == "run" and line["mean"] is not None:
            table.setdefault(line["federation"], {}).setdefault(line["method"], {})[line["seed"]] = line
    places = []
    for name, entry in suite.federations.items():
        rows = {m: runs for m, runs in table.get(name, {}).items() if set(suite.seeds) <= set(runs)}
        failed = next((x.get("failed", "") for x in lines if x["federation"] == name and x["method"] == label), "")
        if label not in rows:
            places.append(Place(name, None, None, len(rows), None, None, None, 0, None, False, failed))
            continue
        means = {m: float(np.mean([runs[seed]["mean"] for seed in suite.seeds])) for m, runs in rows.items()}
        others = {m: value for m, value in means.items() if m != label}
        simple = [m for m in REFERENCE if m in others]
        reference = max(simple, key=lambda m: others[m]) if simple else None
        lr = rows[label][suite.seeds[0]]["lr"]
        mine = _by_client(rows[label])
        local = _by_client(rows["local"]) if "local" in rows else {}
        places.append(
            Place(
                name, means[label], 1 + sum(value > means[label] for value in others.values()), len(means), reference,
                None if reference is None else difference(rows[label], rows[reference]),
                sum(mine[id] < local[id] for id in mine if id in local) if local else None, len(mine), lr,
                lr in (min(entry.rates), max(entry.rates)),
            )
        )  # fmt: skip
    return places


def difference(one: Mapping[int, Line], other: Mapping[int, Line]) -> Added | None:
    """The paired difference of clients' figures, with Student's interval over seeds."""
    return added(
        {
            seed: {
                id: value - other[seed]["points"][id]
                for id, value in line["points"].items()
                if value is not None and other[seed]["points"].get(id) is not None
            }
            for seed, line in one.items()
            if seed in other
        }
    )


def _by_client(runs: Mapping[int, Line]) -> dict[str, float]:
    """Each client's mean over seeds."""
    values: dict[str, list[float]] = {}
    for line in runs.values():
        for id, value in line["points"].items():
            if value is not None:
                values.setdefault(id, []).append(value)
    return {id: float(np.mean(one)) for id, one in values.items()}


def bench(
    suite: Suite,
    method: ServerMethod | PeerMethod,
    label: str,
    out: Path,
    progress: Callable[[str], None] | None = None,
) -> list[Place]:
    """Run a method on a suite and place it; writes OUT/runs.jsonl and OUT/bench.json. Goes on where it was stopped."""
    mine = Bench(suite, method, label, out / "runs.jsonl", progress).runs()
    stored = [line for line in read_lines(suite.stored) if line["method"] != label]
    data = {(line["federation"], line["seed"]): line["data"] for line in mine if line["stage"] == "run"}
    changed = sorted(
        {
            line["federation"]
            for line in stored
            if data.get((line["federation"], line["seed"]), line["data"]) != line["data"]
        }
    )
    if changed:
        raise RunError(
            f"{suite.stored}: its results are of other data than this version makes for {', '.join(changed)}; "
            "make them anew with fedkin bench METHOD --store"
        )
    places = standing(suite, label, [*stored, *mine])
    text = {
        "suite": suite.name, "method": label, "settings": method.model_dump(mode="json"),
        "versions": {name: version(name) for name in ("fedkin", "torch", "numpy")},
        "budget": {"rounds": suite.rounds, "local_steps": suite.local_steps, "seeds": list(suite.seeds)},
        "data": {name: {str(s): d for (n, s), d in data.items() if n == name} for name in suite.federations},
        "federations": [
            {**place._asdict(), "gain": None if place.gain is None else place.gain._asdict()} for place in places
        ],
    }  # fmt: skip
    (out / "bench.json").write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    return places


def store(suite: Suite, label: str, out: Path) -> None:
    """Put the runs of a method into the stored results of its suite, in the place of those that it had."""
    others = [line for line in read_lines(suite.stored) if line["method"] != label]
    mine = [line for line in read_lines(out / "runs.jsonl") if line["method"] == label and line["stage"] == "run"]
    kept = [{key: value for key, value in line.items() if key != "seconds"} for line in mine]
    lines = sorted([*others, *kept], key=lambda line: (line["method"], line["federation"], line["seed"]))
    write_bytes(suite.stored, "".join(json.dumps(line) + "\n" for line in lines).encode())
