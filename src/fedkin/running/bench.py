"""Benchmark a method: its figures on a suite of federations, compared with the stored results of all methods.

Methods see neither test samples nor planted groups here.
"""

from __future__ import annotations

import gzip
import json
import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin import graph
from fedkin.analysis.intervals import added, over
from fedkin.analysis.ranking import Diagram, diagram
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Federation
from fedkin.flow import AnyMethod
from fedkin.records.controls import controls_of, named, split_control
from fedkin.records.files import write_bytes
from fedkin.records.reading import PlanFile
from fedkin.records.run import Result
from fedkin.running.api import program_experiment
from fedkin.running.grid import Cell, Choice, HoldOut, Runs, Watchers, run_plan
from fedkin.running.suites import Entry, Suite
from fedkin.running.tune import RATE, best, tune
from fedkin.untrusted import error_text, json_of

Line = dict[str, Any]
BySeed = Mapping[int, Line]
# Simple methods without prior knowledge of groups: the one with the best mean is the baseline.
REFERENCE = ("local", "fedavg", "fedavg-ft", "ditto", "fedper")
_HOLD_OUT = HoldOut("samples", 0.2)
_NEEDED = {"federation", "method", "stage", "seed"}
_DECIMALS = 2  # stored digits of a client's figure


def read_lines(path: Path) -> list[Line]:
    """Return the runs in a file, which may be a .gz; an empty list if there is no file. Raises RunError."""
    if not path.exists():
        return []
    data, lines, where = path.read_bytes(), list[Line](), str(path)
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        for number, content in enumerate(text.splitlines(), 1):
            where = f"{path}, line {number}"
            line = json_of(content)
            if not isinstance(line, dict) or not line.keys() >= _NEEDED:
                raise ValueError(f"expected a run with {', '.join(sorted(_NEEDED))}")
            lines.append(line)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        again = "delete it, and run fedkin bench METHOD --store again"
        raise RunError(f"{where}: is damaged ({error_text(error)}); {again}") from None
    return lines


def points(federation: Federation, result: Result) -> dict[str, float | None]:
    """Return each client's figure by id; higher is better, and None means that it is not determined.

    100 x accuracy, 100 x ROC-AUC, or percent of variance explained: 100 (1 - squared error / variance of all clients'
    training targets, summed over targets).
    """
    if federation.task.kind == "classification":
        return {id: 100 * score.right / score.n for id, score in sorted(result.scores.items()) if score.n}
    percent = _percent_of(federation)
    values = {id: score.figures[0] for id, score in sorted(result.scores.items())}
    return {id: None if value is None else percent(value) for id, value in values.items()}


def _percent_of(federation: Federation) -> Callable[[float], float]:
    """Return the function from a ROC-AUC or a squared error to a figure in percent."""
    if federation.task.kind == "risk":
        return lambda auc: 100 * auc
    targets = torch.cat([client.train.labels().double() for client in federation.values()])
    whole = float(targets.var(0, correction=0).sum())
    return lambda error: 100 * (1 - error / whole)


# -- runs -------------------------------------------------------------------------------------------------------------


def _lines(suite: Suite, name: str, method: AnyMethod, label: str, folder: Path, watch: Watchers | None) -> list[Line]:
    """Choose a method's learning rate on a federation, run it and its controls, and return a line for each run."""
    entry = suite.federations[name]
    federation = lru_cache(maxsize=8)(entry.make)
    key: Line = {"federation": name, "method": label, "stage": "rate", "lr": None, "seed": suite.seeds[0], "mean": None,
                 "points": {}}  # fmt: skip

    try:
        experiment = program_experiment(
            lambda seed: _without_groups(federation(seed)), method, rounds=suite.rounds, seed=suite.seeds[0],
            model=entry.model, training={"local_steps": suite.local_steps, "batch_size": suite.batch_size},
            settings={"evaluate_every": max(1, suite.rounds), "models": "none"},
        ).with_method(method)  # fmt: skip
        tried = tune(
            experiment.with_changes(**{"training.rounds": max(1, suite.rounds // 2)}), [method.name],
            [Choice(RATE, entry.rates)], _HOLD_OUT, suite.seeds[:1], None, folder / "rates", watch=watch,
        )[method.name]  # fmt: skip
    except ConfigError as error:
        return [{**key, "failed": str(error)}]
    chosen = best(tried, federation(suite.seeds[0]).task.metric.higher)
    if chosen is None:
        return [{**key, "failed": next((one.failed for one in tried if one.failed), "no rate works")}]
    rate = chosen.settings[RATE]
    base = Runs(experiment.with_changes(**{RATE: rate}), None)
    of_method = controls_of(type(method))
    suffixes = ["", *(named("", control) for control in suite.controls if control in of_method)]
    names = [method.name + suffix for suffix in suffixes]
    cells = [Cell(name, {RATE: rate}, base.for_method(name), name) for name in names]

    results = run_plan(
        base, cells, folder / "runs", PlanFile(methods=names, seeds=list(suite.seeds)),
        lambda result: _figures(federation(result.seed), result), watch, failed=lambda why: {"failed": why},
    )  # fmt: skip
    return [
        {**key, "method": label + suffix, "stage": "run", "lr": rate, "seed": seed, **line}
        for suffix, by_seed in zip(suffixes, results, strict=True) for seed, line in by_seed.items()
    ]  # fmt: skip


def _without_groups(federation: Federation) -> Federation:
    """The clients without their planted groups, which no method may know."""
    return Federation([replace(client, group=None) for client in federation.values()], federation.task)


def _figures(federation: Federation, result: Result) -> Line:
    """The figures of a run that are stored."""
    values, groups, planted = points(federation, result), result.groups, federation.planted
    present = [value for value in values.values() if value is not None]
    return {
        "data": federation.fingerprint()[:16],
        "points": {id: None if value is None else round(value, _DECIMALS) for id, value in values.items()},
        "mean": round(sum(present) / len(present), 4) if present and np.isfinite(present).all() else None,
        "bytes": result.sent,
        "trained": sum(row["samples"] for row in result.rounds),
        "given": list(result.summary.get("given", ())),
        "groups": result.summary["groups"]["found"],
        "ari": round(graph.ari([planted[id] for id in groups], list(groups.values())), 4)
        if planted and groups else None,
    }  # fmt: skip


# -- places -----------------------------------------------------------------------------------------------------------


# The fields of bench.json for a method on one federation.
#
# mean: its figure. rank: among all methods with results, 1 is the best; of: number of these methods. reference: the
# best simple method; gain: the paired difference from it. adds: the paired difference from each control, by its name.
# hurt: number of clients whose mean over seeds is below Local's; surely: ids of those whose whole interval is below it;
# clients: number of all clients. given: what the method was told of the clients. lr: the chosen rate; border: whether
# it is the smallest or largest that was tried. trained: samples in all local steps, as a multiple of FedAvg's. bytes:
# of all messages. ari: agreement of the method's groups with the planted groups.
_UNKNOWN: Line = {
    "mean": None, "rank": None, "of": 0, "reference": None, "gain": None, "adds": {}, "hurt": None, "surely": None,
    "clients": 0, "given": [], "lr": None, "border": False, "trained": None, "bytes": None, "ari": None, "failed": "",
}  # fmt: skip


def rank_on_suite(suite: Suite, label: str, lines: Sequence[Line]) -> tuple[list[Line], Diagram | None]:
    """Return (the method's place on each federation; the ranks of methods that finished on all federations).

    The ranks are None without this method, or for fewer than 3 methods.
    """
    finished = {name: _finished(suite, name, lines) for name in suite.federations}
    places = []
    for name, entry in suite.federations.items():
        if label in finished[name]:
            standing = _place(entry, label, finished[name])
        else:
            mine = (line for line in lines if (line["federation"], line["method"]) == (name, label))
            failed = next((line["failed"] for line in mine if "failed" in line), "")
            standing = {"of": len(finished[name]), "failed": failed}
        places.append({"federation": name, **_UNKNOWN, **standing})
    everywhere = set.intersection(*map(set, finished.values()))
    methods = sorted(method for method in everywhere if split_control(method)[1] is None)
    means = {method: [_mean(rows[method]) for rows in finished.values()] for method in methods}
    return places, diagram(means) if label in means and len(means) > 2 else None


def mean_gain(places: Sequence[Line]) -> Line | None:
    """The mean over federations of the difference from the best simple method, with Student's interval over them."""
    gains = [standing["gain"]["value"] for standing in places if standing["gain"] is not None]
    interval = over(gains)
    if interval is None:
        return None
    return {"value": float(np.mean(gains)), "low": interval.low, "high": interval.high, "federations": len(gains)}


def _finished(suite: Suite, federation: str, lines: Sequence[Line]) -> dict[str, dict[int, Line]]:
    """The lines of a federation by method and seed, of the methods that finished with all seeds."""
    runs: dict[str, dict[int, Line]] = {}
    for line in lines:
        if line["federation"] == federation and line["stage"] == "run" and line["mean"] is not None:
            runs.setdefault(line["method"], {})[line["seed"]] = line
    return {method: by_seed for method, by_seed in runs.items() if set(suite.seeds) <= set(by_seed)}


def _place(entry: Entry, label: str, rows: Mapping[str, BySeed]) -> Line:
    mine, fedavg = rows[label], rows.get("fedavg")
    first = mine[min(mine)]
    standing = _rank(label, rows) | {
        "adds": _adds(label, rows), "clients": len(first["points"]), "lr": first["lr"],
        "given": sorted({text for line in mine.values() for text in line.get("given", ())}),
        "border": first["lr"] in (min(entry.rates), max(entry.rates)),
    }  # fmt: skip
    if "local" in rows:
        lost = _losses(mine, rows["local"])
        standing |= {
            "hurt": sum(value > 0 for value, _ in lost.values()),
            "surely": [id for id, (_, is_sure) in lost.items() if is_sure],
        }  # fmt: skip
    if fedavg is not None and all("trained" in line for line in (*mine.values(), *fedavg.values())):
        standing["trained"] = _total(mine, "trained") / _total(fedavg, "trained")
    if "bytes" in first:
        standing["bytes"] = _total(mine, "bytes") / len(mine)
    aris = [line.get("ari") for line in mine.values()]
    return standing | ({} if None in aris else {"ari": float(np.mean(aris))})  # type: ignore[arg-type]


def _rank(label: str, rows: Mapping[str, BySeed]) -> Line:
    """The rank of a method among all methods, and its gain over the best simple one."""
    mean = _mean(rows[label])
    others = {name: _mean(runs) for name, runs in rows.items() if name != label and split_control(name)[1] is None}
    reference = max((name for name in REFERENCE if name in others), key=lambda name: others[name], default=None)
    return {
        "mean": mean, "rank": 1 + sum(value > mean for value in others.values()), "of": 1 + len(others),
        "reference": reference, "gain": None if reference is None else difference(rows[label], rows[reference]),
    }  # fmt: skip


def _adds(label: str, rows: Mapping[str, BySeed]) -> dict[str, Any]:
    """The paired difference of a method from each of its controls, by the control's name."""
    adds = {}
    for name, runs in rows.items():
        method, control = split_control(name)
        if method == label and control and (gain := difference(rows[label], runs)) is not None:
            adds[control] = gain
    return adds


def _mean(runs: BySeed) -> float:
    return float(np.mean([line["mean"] for line in runs.values()]))


def _total(runs: BySeed, key: str) -> float:
    return float(sum(line[key] for line in runs.values()))


def difference(one: BySeed, other: BySeed) -> dict[str, Any] | None:
    """The paired difference of clients' figures, with Student's interval over seeds, as a table."""
    gain = added(_gaps(one, other))
    return None if gain is None else gain._asdict()


def _losses(one: BySeed, other: BySeed) -> dict[str, tuple[float, bool]]:
    """{client id: (points lost, mean over seeds; whether Student's 95 % interval is all above 0)}."""
    gaps = _gaps(one, other)
    lost = {}
    for id in sorted(set().union(*gaps.values())):
        gain = added({seed: {id: by_client[id]} for seed, by_client in gaps.items() if id in by_client})
        if gain is not None:
            lost[id] = (-gain.value, gain.high is not None and gain.high < 0)
    return lost


def _gaps(one: BySeed, other: BySeed) -> dict[int, dict[str, float]]:
    """For each common seed, the difference for each client that has both figures."""
    gaps = {}
    for seed, line in one.items():
        if seed in other:
            mine, theirs = line["points"], other[seed]["points"]
            gaps[seed] = {id: mine[id] - theirs[id] for id in mine if None not in (mine[id], theirs.get(id))}
    return gaps


def bench(
    suite: Suite, method: AnyMethod, label: str, out: Path, watch: Watchers | None = None
) -> dict[str, Any]:  # fmt: skip
    """Run a method on a suite and rank it; writes runs.jsonl and bench.json in `out`, and returns bench.json's content.

    The same call resumes a stopped benchmark.
    """
    mine: list[Line] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some candidate rates are too large on purpose
        for name in suite.federations:
            mine += _lines(suite, name, method, label, out / re.sub(r"[^\w.+-]+", "-", name), watch)
    write_bytes(out / "runs.jsonl", _text(mine).encode())
    stored = [line for line in read_lines(suite.stored) if split_control(line["method"])[0] != label]
    data: dict[str, dict[str, str]] = {name: {} for name in suite.federations}
    for line in mine:
        if "data" in line:
            data[line["federation"]][str(line["seed"])] = line["data"]
    _check_same_data(stored, data, suite.stored)
    places, ranks = rank_on_suite(suite, label, [*stored, *mine])
    content = {
        "suite": suite.name, "method": label, "settings": method.model_dump(mode="json"),
        "versions": {name: version(name) for name in ("fedkin", "torch", "numpy")},
        "budget": {"rounds": suite.rounds, "local_steps": suite.local_steps, "seeds": list(suite.seeds),
                   "rates": max(len(entry.rates) for entry in suite.federations.values())},
        "data": data,
        "federations": places,
        "mean_gain": mean_gain(places),
        "ranks": None if ranks is None else {
            "mean_ranks": dict(zip(ranks.methods, ranks.ranks, strict=True)),
            "critical_difference": ranks.difference, "friedman_p": ranks.friedman,
        },
    }  # fmt: skip
    write_bytes(out / "bench.json", (json.dumps(content, indent=1) + "\n").encode())
    return content


def _check_same_data(stored: Sequence[Line], data: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Raise RunError if stored runs are of other samples; data: the hash of each federation's samples by seed."""
    changed = set()
    for line in stored:
        now = data.get(line["federation"], {}).get(str(line["seed"]))
        if now is not None and line.get("data", now) != now:
            changed.add(line["federation"])
    if changed:
        raise RunError(
            f"{path}: its results are of other data than this version makes for {', '.join(sorted(changed))}; "
            "measure them again with fedkin bench METHOD --store"
        )


def store(suite: Suite, label: str, out: Path) -> None:
    """Replace a method's runs in the stored results of its suite by its new runs."""
    others = [line for line in read_lines(suite.stored) if split_control(line["method"])[0] != label]
    mine = [line for line in read_lines(out / "runs.jsonl") if split_control(line["method"])[0] == label]
    kept = [line for line in mine if line["stage"] == "run"]
    data = _text(sorted([*others, *kept], key=lambda line: (line["method"], line["federation"], line["seed"]))).encode()
    write_bytes(suite.stored, gzip.compress(data, mtime=0) if suite.stored.suffix == ".gz" else data)


def _text(lines: Sequence[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
