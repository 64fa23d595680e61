"""Comparison of several methods on the same federations for each seed, and each client's gain over local training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.analysis.added import Added, added
from fedkin.analysis.paired import VERDICTS
from fedkin.data.dataset import Dataset
from fedkin.engines import Score
from fedkin.errors import ConfigError, RunError
from fedkin.folders import held
from fedkin.records import reading, schema
from fedkin.records.checkpoints import ANEW, say
from fedkin.records.files import json_bytes, read_json
from fedkin.records.finishing import tidy, untidy
from fedkin.records.kept import INDEX, Kept
from fedkin.records.metrics import metric_of, value_of
from fedkin.records.outcomes import read_outcomes, with_outcomes
from fedkin.records.privacy import largest
from fedkin.records.recorder import MESSAGES, client_schema, rows_of
from fedkin.records.seals import RESULT, add_sealed, faults, seal_of
from fedkin.records.tables import csv_text
from fedkin.running.controls import named, parted
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Result, Watcher, execute
from fedkin.tasks import Metric

__all__ = [
    "added_by_exchange",
    "compare",
    "differences",
    "finished",
    "gains",
    "line",
    "read_finished",
    "read_result",
    "run_experiment",
    "table",
]


def run_experiment(
    experiment: Experiment,
    data_root: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
) -> Result:
    """Run one experiment; a finished run in `folder` is read instead of run again.

    Data and settings are checked before the folder is made. restart: whether a run in `folder` that is damaged, so that
    it can neither be read nor be gone on with, begins anew at round 0; else it is refused.
    """
    if folder is not None and (done := finished(experiment, folder, resume, restart)) is not None:
        return done
    dataset = dataset if dataset is not None else experiment.data.load(data_root)
    setup = experiment.setup(experiment.scenario.federation(dataset, experiment.run.seed), data_root)
    with nullcontext() if folder is None else experiment.claimed(folder, resume, data_root):
        return execute(
            setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
            watcher=watcher, restart=restart, model=experiment.model,
        )  # fmt: skip


def finished(experiment: Experiment, folder: Path, resume: bool, restart: bool) -> Result | None:
    """Read the run in this folder if it is a finished run of this experiment, as `read_finished`; None if it is not."""
    if not (folder / "summary.json").exists():
        return None
    experiment.check_claim(folder, resume)
    if untidy(folder):
        with suppress(RunError), held(folder):  # where it cannot be done, it is read all the same
            tidy(folder)
    return read_finished(folder, restart)


def read_finished(folder: Path, restart: bool) -> Result | None:
    """Read a finished run as `read_result`; one that is damaged is made an unfinished one if `restart` says so."""
    try:
        return read_result(folder)
    except RunError as error:
        if not restart:
            raise RunError(f"{error}; {ANEW}") from None
        say("%s", f"{error}; beginning anew at round 0")
        (folder / "summary.json").unlink()
        return None


def read_result(folder: Path) -> Result:
    """Read a finished run from its folder; raises RunError for any other folder."""
    if not (folder / "summary.json").exists():
        raise RunError(f"{folder}: no summary.json, so this is no finished run; --resume {folder} goes on with it")
    # Before anything is read: a reader of a table may stumble over a single bit.
    if wrong := faults(folder, seal_of(folder).files, RESULT):
        raise RunError(f"{wrong[0]}; {reading.MEND}")
    summary = reading.summary_in(folder / "summary.json", schema.Finished)
    rounds = reading.lines_in(folder / "rounds.jsonl", schema.Line)
    metric = metric_of(summary)
    tables = {
        "clients": rows_of(folder / "clients.parquet", client_schema(metric.name)),
        "messages": rows_of(folder / "messages.parquet", MESSAGES),
    }
    last = max((row[0] for row in tables["clients"]), default=0)
    kept = read_outcomes(folder, metric)
    scores = {
        row[1]: with_outcomes(_score(metric, *row[2:]), kept.get(row[1])) for row in tables["clients"] if row[0] == last
    }
    federation = folder / "federation.json"
    known = reading.checked(schema.Facts, read_json(federation), federation) if federation.exists() else {}
    clients = known.get("clients", {})
    unseen = tuple(sorted(id for id, facts in clients.items() if not facts.get("seen", True)))
    return Result(
        summary=summary, rounds=rounds, clients=tables["clients"], messages=tables["messages"], scores=scores,
        models=Kept(folder) if (folder / INDEX).exists() else {}, folder=folder, unseen=unseen,
    )  # fmt: skip


def _score(metric: Metric, n: int, loss: float | None, *figures: float | None) -> Score:
    """Return a client's score from its line in the records."""
    known = loss if loss is not None else float("nan")
    if metric.name == "accuracy":
        return Score(n, known, round((figures[0] or 0.0) * n))
    return Score(n, known, 0, figures if n else ())


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    data_root: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Callable[[str, int, int, int], Watcher] | None = None,
    validation: Mapping[str, Any] | None = None,
) -> dict[str, dict[int, Result]]:
    """Run each method with each seed; returns the results by method and seed.

    restart: whether runs that are damaged begin anew (see `run_experiment`). validation: what a tuning of these methods
    found on held-out data (`fedkin.records.schema.Validation`), which `folder` keeps for the report's headline.
    watcher(method, seed, runs done, runs in all) returns the watcher of a run. `folder` gets `experiment.toml`,
    `plan.json` (methods and seeds) and a folder per run. At the end it gets `compare.json` (the summaries of the runs)
    and `compare.csv` (a line per method).
    """
    if not methods or len(set(methods)) < len(methods) or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError("--methods and --seeds: each must be named once, and at least one of each")
    plans = {name: experiment.for_method(name) for name in methods}
    dataset = experiment.data.load(data_root)
    first = experiment.scenario.federation(dataset, seeds[0])
    for plan in plans.values():
        plan.setup(first, data_root)
    cells = [(seed, name) for seed in seeds for name in plans]
    results: dict[str, dict[int, Result]] = {name: {} for name in methods}
    asked = {"methods": list(methods), "seeds": list(seeds)}
    with nullcontext() if folder is None else experiment.claimed(folder, resume, data_root, asked):
        if folder is not None and validation is not None:
            add_sealed(folder, {schema.VALIDATION: json_bytes(dict(validation))})
        for done, (seed, name) in enumerate(cells):
            results[name][seed] = run_experiment(
                plans[name].with_changes(**{"run.seed": seed}),
                data_root,
                folder / f"{name}-seed{seed}" if folder is not None else None,
                resume=resume,
                restart=restart,
                watcher=watcher(name, seed, done, len(cells)) if watcher is not None else None,
                dataset=dataset,
            )
        if folder is not None:
            every = json_bytes([row.summary for by_seed in results.values() for row in by_seed.values()])
            lines = csv_text([line(row) for row in table(results)]).encode()
            add_sealed(folder, {"compare.json": every, "compare.csv": lines})
    return results


def line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `table` for CSV: the seeds as text, and mean and standard deviation of each figure."""
    return {
        name: dict(zip(("mean", "sd"), value, strict=True)) if isinstance(value, tuple)
        else " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }  # fmt: skip


def gains(result: Result, local: Result) -> dict[str, float]:
    """Return the gain of each client that takes part over local training in the metric; below 0 it is worse off."""
    found = {}
    for id, score in sorted(result.scores.items()):
        value, alone = value_of(score), value_of(local.scores[id])
        if value is not None and alone is not None and id not in result.unseen:
            found[id] = result.metric.better(value, alone)
    return found


def differences(mine: Mapping[int, Result], theirs: Mapping[int, Result]) -> Added | None:
    """Return how much better one method's clients are than another's with the same seeds (see `added`)."""
    return added({seed: gains(result, theirs[seed]) for seed, result in mine.items() if seed in theirs})


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Result]]) -> Added | None:
    """Return what communication adds to a method: the method minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    method, control = parted(name)
    alone = results[name] if method == "local" or control == "self" else results.get(named(method, "self"))
    return None if alone is None else differences(results[name], alone)


def table(results: Mapping[str, Mapping[int, Result]]) -> list[dict[str, Any]]:
    """Return a row per method: mean and spread (sample standard deviation) over seeds of the runs' figures.

    metric: the name of the metric. weighted: the mean with the clients' numbers of test samples as weights. pooled:
    over all test samples together. gain: mean over clients of the metric's gain over Local with the same seed. hurt:
    share of clients that are worse off than with Local. surely: mean number of clients that gained, lost, cannot be
    told apart from Local, or have too few events or test samples (`fedkin.analysis.paired`). adds: what communication
    adds, with the interval of its mean over seeds (`added_by_exchange`). unseen: mean of the metric over unseen
    clients. gap: how much worse that mean is. epsilon: the largest of any client, under `[privacy]`. bytes_sent: bytes
    of all messages, each message taken once.
    """
    rows = []
    private = any("privacy" in result.summary for by_seed in results.values() for result in by_seed.values())
    for method, by_seed in results.items():
        metric = next(iter(by_seed.values())).metric
        row: dict[str, Any] = {"method": method, "seeds": sorted(by_seed), "metric": metric.name}
        for name in ("mean", "pooled", "std", "worst10", "worst20", "variance"):
            row[name] = _spread([result.summary[metric.name].get(name) for result in by_seed.values()])
        # The mean of accuracies, weighted by test samples, is that of all samples together.
        every = [result.summary[metric.name] for result in by_seed.values()]
        row["weighted"] = _spread([one.get("weighted", one.get("pooled")) for one in every])
        row["unseen"] = _spread([(result.summary.get("unseen") or {}).get("mean") for result in by_seed.values()])
        row["gap"] = _spread([result.summary.get("gap") for result in by_seed.values()])
        for name in ("up", "down"):
            row[f"bytes_{name}"] = _spread([result.summary["bytes"][name] for result in by_seed.values()])
        # Between peers, each message is the upload of one and the download of another, but it is sent once.
        row["bytes_sent"] = _spread([sum(message[4] for message in result.messages) for result in by_seed.values()])
        if private:
            row["epsilon"] = _spread([largest(result.summary.get("privacy")) for result in by_seed.values()])
        for name in ("found", "ari", "ari_mean", "nmi"):
            row[name] = _spread([result.summary["groups"].get(name) for result in by_seed.values()])
        row["flops"] = _spread([result.summary["flops"]["local_training"] for result in by_seed.values()])
        row["seconds"] = _spread([result.summary["seconds"]["total"] for result in by_seed.values()])
        if told := sorted({text for result in by_seed.values() for text in result.summary.get("given", ())}):
            row["given"] = "; ".join(told)
        row |= _against_local(method, by_seed, results.get("local"))
        row["adds"] = _added(method, results)
        rows.append(row)
    return rows


def _against_local(method: str, by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    if local is None or method == "local":
        return {"gain": None, "hurt": None, "surely": None}
    each = [list(gains(result, local[seed]).values()) for seed, result in by_seed.items()]
    if not all(each):
        return {"gain": None, "hurt": None, "surely": None}
    return {
        "gain": _spread([float(np.mean(values)) for values in each]),
        "hurt": _spread([float(np.mean([value < -1e-12 for value in values])) for values in each]),
        "surely": _surely([(result, local[seed]) for seed, result in by_seed.items()]),
    }


def _added(name: str, results: Mapping[str, Mapping[int, Result]]) -> dict[str, float | None] | None:
    found = added_by_exchange(name, results) if any(parted(other)[1] == "self" for other in results) else None
    return None if found is None else {"mean": found.value, "low": found.low, "high": found.high}


def _surely(pairs: Sequence[tuple[Result, Result]]) -> dict[str, float] | None:
    """Return the mean number of clients of each verdict over the seeds; None if a run has no outcomes."""
    counts = dict.fromkeys(("gained", "lost", "apart", "few"), 0.0)
    for result, local in pairs:
        found = {id: word for id, (_, word) in result.difference(local).items() if id not in result.unseen}
        if not found:
            return None
        for name, word in zip(counts, VERDICTS, strict=True):
            counts[name] += sum(each == word for each in found.values()) / len(pairs)
    return {name: round(count, 9) for name, count in counts.items()}


def _spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return (mean, sample standard deviation or 0 for one value), or None if any value is unknown."""
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
