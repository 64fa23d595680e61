"""A comparison's rows: figures of runs over seeds, clients' gains over local training, and what exchange adds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkin.analysis.intervals import Added, added
from fedkin.analysis.paired import VERDICTS, Difference, Verdict
from fedkin.records.controls import split_control, without_exchange
from fedkin.records.metrics import value_of
from fedkin.records.run import Result
from fedkin.settings import flat

# The tables' names for the counts of verdicts.
COUNTED: Mapping[str, Verdict] = dict(zip(("gained", "lost", "apart", "few"), VERDICTS, strict=True))
# Metrics are of the same samples, so values closer than this differ by rounding.
_EQUAL = 1e-12


def mean_and_sd(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and sample standard deviation (0 for one value); None if any value is unknown.

    >>> mean_and_sd([1.0, 3.0]), mean_and_sd([1.0, None]), mean_and_sd([])
    ((2.0, 1.4142135623730951), None, None)
    """
    numbers = [float(value) for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


@dataclass(frozen=True)
class Gains:
    """How much better the metric is than with local training, by client id.

    sure: each client's paired difference with its verdict, also if the metric is not determined ("too few"); empty if
    the runs stored no outcomes of single samples.
    """

    by_client: Mapping[str, float]
    sure: Mapping[str, tuple[Difference, Verdict]] = field(default_factory=dict)

    @property
    def gaining(self) -> int:
        """Number of clients that are better than with local training."""
        return sum(value > _EQUAL for value in self.by_client.values())

    @property
    def hurt(self) -> int:
        """Number of clients that are worse than with local training."""
        return sum(value < -_EQUAL for value in self.by_client.values())

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of clients for each verdict; empty without verdicts."""
        words = [word for _, word in self.sure.values()]
        return {word: words.count(word) for word in VERDICTS} if words else {}

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return math.fsum(self.by_client.values()) / len(self.by_client)


def gains_over(run: Result, alone: Result) -> Gains | None:
    """Gains of the clients that take part, over a run of Local; None if the runs have no common client.

    Raises ValueError if the runs' test samples differ.
    """
    by_client = run.gains(alone)
    sure = {id: verdict for id, verdict in run.difference(alone).items() if id not in run.unseen}
    return Gains(by_client, sure) if by_client else None


def figures_of(run: Result, gain: Gains | None) -> dict[str, float | None]:
    """The figures of a run, in the order of compare.csv; None for an unknown figure.

    gain: over the run of Local, if there is one. weighted: the mean with the clients' numbers of test samples as
    weights. pooled: over all test samples together. unseen: mean over unseen clients. gap: how much worse that mean
    is. bytes_sent: of all messages, each counted once: between peers, each is one peer's upload and another's
    download. hurt: share of clients below Local. gained, lost, apart, few: number of clients with each verdict.
    """
    summary, statistics = run.summary, run.figures
    groups, counts = summary.get("groups") or {}, {} if gain is None else gain.counts
    private = summary.get("privacy")
    return {
        **{name: statistics.get(name) for name in ("mean", "pooled", "std", "worst10", "worst20", "variance")},
        # The mean of accuracies, weighted by test samples, equals the accuracy over all samples together.
        "weighted": statistics.get("pooled" if run.metric.name == "accuracy" else "weighted"),
        "unseen": (summary.get("unseen") or {}).get("mean"),
        "gap": summary.get("gap"),
        "bytes_up": summary["bytes"]["up"],
        "bytes_down": summary["bytes"]["down"],
        "bytes_sent": run.sent,
        "epsilon": private["epsilon"]["max"] if private else None,
        **{name: groups.get(name) for name in ("found", "ari", "ari_mean", "nmi")},
        "flops": summary["flops"]["local_training"],
        "seconds": summary["seconds"]["total"],
        "gain": None if gain is None else gain.mean,
        "hurt": None if gain is None else gain.hurt / len(gain.by_client),
        **{name: counts.get(verdict) for name, verdict in COUNTED.items()},
    }


def csv_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `comparison_rows` for CSV: the seeds as text, and mean and standard deviation of each figure."""
    return {
        name: dict(zip(("mean", "sd"), value, strict=True)) if isinstance(value, tuple)
        else " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }  # fmt: skip


def differences(runs: Mapping[int, Result], others: Mapping[int, Result]) -> Added | None:
    """Return how much better one method's clients are than another's with the same seeds (see `added`)."""
    return added({seed: run.gains(others[seed]) for seed, run in runs.items() if seed in others})


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Result]]) -> Added | None:
    """Return what exchange adds to a method: the method minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    alone = without_exchange(name, results)
    return None if alone is None else differences(results[name], alone)


def comparison_rows(results: Mapping[str, Mapping[int, Result]]) -> list[dict[str, Any]]:
    """Return a row per method: mean and spread (sample standard deviation) over seeds of the runs' figures.

    metric: the name of the metric. The figures are those of `figures_of`, epsilon only under `[privacy]`. surely: mean
    number of clients with each verdict. adds: what exchange adds, with the interval of its mean over seeds
    (`added_by_exchange`). metrics: mean, sd and gain of each further metric (`run.metrics`), if any.
    """
    private = any("privacy" in result.summary for by_seed in results.values() for result in by_seed.values())
    later = {"gain", "hurt", *COUNTED, *(() if private else ("epsilon",))}
    return [_comparison_row(method, results, later) for method in results]


def _comparison_row(
    method: str, results: Mapping[str, Mapping[int, Result]], later: Container[str]
) -> dict[str, Any]:  # fmt: skip
    """Return the row of a method; later: figures that are left out, or come after the others."""
    by_seed, local = results[method], results.get("local") if method != "local" else None
    runs = list(by_seed.values())
    gains = [None if local is None else gains_over(run, local[seed]) for seed, run in by_seed.items()]
    figures = figures_over_seeds([figures_of(run, gain) for run, gain in zip(runs, gains, strict=True)])
    row: dict[str, Any] = {"method": method, "seeds": sorted(by_seed), "metric": runs[0].metric.name}
    row |= {name: pair for name, pair in figures.items() if name not in later}
    if given := sorted({text for run in runs for text in run.summary.get("given", ())}):
        row["given"] = "; ".join(given)
    counts = {name: pair[0] for name in COUNTED if (pair := figures[name]) is not None}
    with_control = any(split_control(other)[1] == "self" for other in results)
    adds = added_by_exchange(method, results) if with_control else None
    return row | {
        **_further_metrics(by_seed, local), "gain": figures["gain"], "hurt": figures["hurt"],
        "surely": counts if len(counts) == len(COUNTED) else None,
        "adds": None if adds is None else {"mean": adds.value, "low": adds.low, "high": adds.high},
    }  # fmt: skip


def figures_over_seeds(figures: Sequence[Mapping[str, float | None]]) -> dict[str, tuple[float, float] | None]:
    """Mean and standard deviation of each figure of a method's runs (`mean_and_sd`); figures: of each run, by name."""
    return {name: mean_and_sd([of_run[name] for of_run in figures]) for name in figures[0]}


def _further_metrics(by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    """Return each further metric that all runs have: mean and spread over seeds, and the gain over Local.

    The gain is that of the clients that have a value in both runs.
    """
    runs = list(by_seed.values())
    rows: dict[str, Any] = {}
    for name, facts in (runs[0].summary.get("metrics") or {}).items():
        pair = mean_and_sd([_metric_mean(run, name) for run in runs])
        if pair is None:
            continue
        rows[name] = {"mean": pair[0], "sd": pair[1]}
        gains = [] if local is None else [_metric_gain(run, local[seed], name) for seed, run in by_seed.items()]
        if gain := mean_and_sd(gains):
            rows[name]["gain"] = gain[0] if facts["higher"] else -gain[0]
    return {"metrics": rows} if rows else {}


def _metric_gain(run: Result, other: Result, name: str) -> float | None:
    pairs = [
        (value, other.metrics[name].get(id)) for id, value in run.metrics[name].items() if id not in run.unseen
    ]  # fmt: skip
    differences = [one - two for one, two in pairs if one is not None and two is not None]
    return statistics.fmean(differences) if differences else None


def _metric_mean(run: Result, name: str) -> float | None:
    mean: float | None = (run.summary.get("metrics") or {}).get(name, {}).get("mean")
    return mean


# Why clients have no value of a metric.
_UNDEFINED = {
    "auc": "the test samples of the others are of one class only, or none",
    "dice": "the test samples of the others have no foreground",
}


def over_how_many(runs: Sequence[Result], unseen: bool = False) -> str:
    """Say over how many of the clients that take part the figures are; empty if they are over all, or over none.

    unseen: of the clients that do not take part instead.
    """
    counts = set()
    for run in runs:
        known = [value_of(one) is not None for id, one in run.scores.items() if (id in run.unseen) == unseen]
        counts.add((sum(known), len(known)))
    fewer = [f"{known} of {every}" for known, every in sorted(counts) if known < every]
    if not fewer or not any(known for known, _ in counts):
        return ""
    metric, kind = runs[0].metric, "unseen clients" if unseen else "clients"
    why = _UNDEFINED.get(metric.name, "the others have no test samples")
    return f"{metric.title}: figures are over {' or '.join(fewer)} {kind}, since {why}"


def unequal_conditions(runs: Mapping[str, Result]) -> list[str]:
    """Warn if methods differ in a setting of training or in prior knowledge; runs: one run of each, by its name."""
    methods = {name: run for name, run in runs.items() if split_control(name)[1] is None}
    training = {name: flat(run.settings.get("training", {})) for name, run in methods.items()}
    sentences = []
    for key in dict.fromkeys(key for settings in training.values() for key in settings):
        if named := _unlike({name: settings.get(key) for name, settings in training.items()}):
            if key == "lr":
                sentences.append(f"learning rates differ ({named}): fedkin tune --equal gives all the same budget")
            else:
                sentences.append(f"training.{key} differs ({named})")
    if named := _unlike({name: ", ".join(run.summary.get("given", ())) or "nothing" for name, run in methods.items()}):
        sentences.append(f"not all methods are told the same ({named})")
    return sentences


def _unlike(values: Mapping[str, Any]) -> str:
    """List methods by their value, if not all have the same; empty if they have."""
    methods: dict[str, list[str]] = {}
    for name, value in values.items():
        text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        methods.setdefault(text, []).append(name)
    return _named_but_most(methods) if len(methods) > 1 else ""


def _named_but_most(methods: Mapping[str, list[str]]) -> str:
    """List methods by a common text; the largest set, if it has several methods, is "others" and comes last.

    >>> _named_but_most({"0.3": ["local", "fedavg"], "0.01": ["mapl"]})
    'mapl: 0.01; others: 0.3'
    """
    *first, (most, others) = sorted(methods.items(), key=lambda pair: len(pair[1]))
    each = [f"{', '.join(names)}: {text}" for text, names in first]
    return "; ".join([*each, f"{'others' if len(others) > 1 else others[0]}: {most}"])
