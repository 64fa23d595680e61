"""What a comparison found: each client's gain over local training, what communication adds, and a row per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.analysis.intervals import Added, added
from fedkin.analysis.paired import VERDICTS
from fedkin.records.controls import parted, without_exchange
from fedkin.records.metrics import largest_epsilon
from fedkin.records.run import Result

__all__ = ["added_by_exchange", "differences", "line", "table"]


def line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `table` for CSV: the seeds as text, and mean and standard deviation of each figure."""
    return {
        name: dict(zip(("mean", "sd"), value, strict=True)) if isinstance(value, tuple)
        else " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }  # fmt: skip


def differences(mine: Mapping[int, Result], theirs: Mapping[int, Result]) -> Added | None:
    """Return how much better one method's clients are than another's with the same seeds (see `added`)."""
    return added({seed: result.gains(theirs[seed]) for seed, result in mine.items() if seed in theirs})


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Result]]) -> Added | None:
    """Return what communication adds to a method: the method minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    alone = without_exchange(name, results)
    return None if alone is None else differences(results[name], alone)


def table(results: Mapping[str, Mapping[int, Result]]) -> list[dict[str, Any]]:
    """Return a row per method: mean and spread (sample standard deviation) over seeds of the runs' figures.

    metric: the name of the metric. weighted: the mean with the clients' numbers of test samples as weights. pooled:
    over all test samples together. gain: mean over clients of the metric's gain over Local with the same seed. hurt:
    share of clients that are worse off than with Local. surely: mean number of clients that gained, lost, cannot be
    told apart from Local, or have too few events or test samples (`fedkin.analysis.paired`). adds: what communication
    adds, with the interval of its mean over seeds (`added_by_exchange`). unseen: mean of the metric over unseen
    clients. gap: how much worse that mean is. epsilon: the largest of any client, under `[privacy]`. bytes_sent: bytes
    of all messages, each message taken once. metrics: mean, sd and gain of each further metric (`run.metrics`), if any.
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
        row["bytes_sent"] = _spread([result.sent for result in by_seed.values()])
        if private:
            row["epsilon"] = _spread([largest_epsilon(result.summary.get("privacy")) for result in by_seed.values()])
        for name in ("found", "ari", "ari_mean", "nmi"):
            row[name] = _spread([result.summary["groups"].get(name) for result in by_seed.values()])
        row["flops"] = _spread([result.summary["flops"]["local_training"] for result in by_seed.values()])
        row["seconds"] = _spread([result.summary["seconds"]["total"] for result in by_seed.values()])
        if told := sorted({text for result in by_seed.values() for text in result.summary.get("given", ())}):
            row["given"] = "; ".join(told)
        row |= _measured(by_seed, results.get("local") if method != "local" else None)
        row |= _against_local(method, by_seed, results.get("local"))
        row["adds"] = _added(method, results)
        rows.append(row)
    return rows


def _measured(by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    """Return each further metric that all runs have: mean and spread over seeds, and the gain over Local."""
    every = [result.summary.get("metrics") or {} for result in by_seed.values()]
    found: dict[str, Any] = {}
    for name in [name for name in every[0] if all(name in one for one in every)]:
        spread = _spread([one[name].get("mean") for one in every])
        if spread is None:
            continue
        found[name] = dict(zip(("mean", "sd"), spread, strict=True))
        alone = [(local[seed].summary.get("metrics") or {}).get(name) for seed in by_seed] if local is not None else []
        if alone and all(one is not None and one.get("mean") is not None for one in alone):
            sign = 1 if every[0][name]["higher"] else -1
            found[name]["gain"] = float(np.mean([sign * (one[name]["mean"] - other["mean"])  # type: ignore[index]
                                                 for one, other in zip(every, alone, strict=True)]))  # fmt: skip
    return {"metrics": found} if found else {}


def _against_local(method: str, by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    if local is None or method == "local":
        return {"gain": None, "hurt": None, "surely": None}
    each = [list(result.gains(local[seed]).values()) for seed, result in by_seed.items()]
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
