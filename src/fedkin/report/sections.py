"""Data and tables for sections of the report: risks, traffic, missing messages, and further metrics."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow.compute as pc
from markupsafe import Markup

from fedkin.analysis.calibration import brier, calibration, curve, decision_curve
from fedkin.analysis.intervals import LEVEL, Interval, normal, student
from fedkin.engines.results import SERVER, Missing
from fedkin.records.outcomes import risks_in
from fedkin.records.run import Result
from fedkin.report.html import NONE, small
from fedkin.report.runs import ReportRun
from fedkin.report.units import half_interval, megabytes, number_range

# -- calibration of predicted risks ------------------------------------------------------------------------------------

# With fewer events, a point of a calibration curve says little; ten points are enough to see the curve's shape.
_EVENTS_OF_A_POINT, _POINTS = 5, 10

RISK_HEADS = (
    ("method", ""),
    ("samples", "test samples of all clients that take part, together"),
    ("events", "how many of them are events"),
    ("Brier score", "mean squared difference of risk and event: 0 is best"),
    ("one risk for all", "Brier score of giving everyone the share of events"),
    ("slope", "calibration slope: 1 is ideal; below 1, high risks are too high and low ones too low"),
    ("intercept", "calibration in the large: 0 is ideal; below 0, risks are too high on average"),
)


def risks_of(run: Result) -> dict[str, Any] | None:
    """Calibration and decision curve over the last test outcomes of all participating clients; None if no risk task.

    bins: [mean risk, share of events, its interval, samples] of 2 to 10 groups of about equal size, by risk. slope and
    large: with Wald's intervals, None if undefined. net: the net benefit at the thresholds 0.01 to 0.99.
    """
    if (pair := risks_in(outcomes for id, outcomes in run.outcomes.items() if id not in run.unseen)) is None:
        return None
    risks, labels, persons = pair
    fit, share, events = calibration(risks, labels, persons), float(labels.mean()), int(labels.sum())
    points = min(_POINTS, max(2, min(events, len(labels) - events) // _EVENTS_OF_A_POINT))
    return {
        "n": len(labels), "events": events, "brier": brier(risks, labels), "none": share * (1 - share),
        "bins": [[round(value, 6) for value in bin[:4]] + [bin.n] for bin in curve(risks, labels, points, persons)],
        "net": [round(value, 6) for value in decision_curve(risks, labels).tolist()],
        "slope": fit and [fit.slope, *fit.slope_interval], "large": fit and [fit.large, *fit.large_interval],
    }  # fmt: skip


def risk_rows(runs: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[list[str]]:
    """The table's rows, one per method: means over seeds, with intervals (`over_seeds`)."""
    rows = []
    for label, title in titles.items():
        risks = [run["risks"] for run in runs if run["label"] == label and run["risks"]]
        if risks:
            rows.append([title, *_risk_cells(risks)])
    return rows


def _risk_cells(risks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells of a method, from its runs' `risks_of`."""
    figures = {name: [risk[name] for risk in risks] for name in risks[0]}
    mean = f"{statistics.fmean(figures['brier']):.4f}"
    return [
        number_range(figures["n"]), number_range(figures["events"]),
        small(mean, f"± {half_interval(figures['brier']):.4f}") if len(risks) > 1 else mean,
        f"{statistics.fmean(figures['none']):.4f}",
        _with_interval(figures["slope"]), _with_interval(figures["large"]),
    ]  # fmt: skip


def over_seeds(fits: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """The mean over seeds of estimates [value, low, high], and its interval by Rubin's rules (1987).

    The seeds share the test samples or draw them from one data set, so more seeds do not reduce the samples' part of
    the variance: this part is the mean of the seeds' variances. The variance between the m seeds is added, times
    (1 + 1/m), and Student's quantile has Rubin's degrees of freedom, (m - 1) (1 + within / between)^2.

    >>> mean, (low, high) = over_seeds([[1.0, 0.5, 1.5], [1.0, 0.5, 1.5]])
    >>> mean, round(low, 6), round(high, 6)
    (1.0, 0.5, 1.5)
    """
    z, values, several = normal(LEVEL), [fit[0] for fit in fits], len(fits) > 1
    mean = statistics.fmean(values)
    within = statistics.fmean(((high - low) / (2 * z)) ** 2 for _, low, high in fits)
    between = (1 + 1 / len(fits)) * statistics.variance(values) if several else 0.0
    t = student(LEVEL, (len(fits) - 1) * (1 + min(within / between, 1e6)) ** 2) if between > 0 else z
    half = t * math.sqrt(within + between)
    return mean, Interval(mean - half, mean + half)


def _with_interval(fits: Sequence[Sequence[float] | None]) -> str:
    estimates = [fit for fit in fits if fit is not None]
    if len(estimates) < len(fits):
        return Markup('<span class="quiet" title="risks are equal, or a threshold separates the events">–</span>')
    value, (low, high) = over_seeds(estimates)
    return small(f"{value:.2f}".replace("-", "−"), f"{low:.2f} to {high:.2f}".replace("-", "−"))


# -- traffic, missing messages, further metrics ------------------------------------------------------------------------

_WAYS = {"up": "client to server", "down": "server to client", "peer": "client to client"}
_ROWS = 200  # clients in a table


def phases_in(run: Result) -> list[dict[str, Any]]:
    """Return the traffic of each phase and direction ("up", "down", "peer") of a run, in the order of first occurrence.

    rounds: the number of rounds with such messages; once: whether every client did the phase at most once, and the
    phase occurred in fewer than half of the rounds.
    """
    table, rounds = run.message_table, run.summary["rounds"]
    # Messages that were never sent have no bytes.
    table = table.filter(pc.greater(table.column("bytes"), 0))
    for column in ("from", "to"):
        table = table.append_column(f"{column}_server", pc.equal(table.column(column), SERVER))
    keys = ["phase", "from_server", "to_server"]
    # A single thread keeps the order of first occurrence.
    figures = [("bytes", "count"), ("bytes", "sum"), ("floats", "sum"), ("round", "count_distinct")]
    total = table.group_by(keys, use_threads=False).aggregate(figures).to_pylist()
    # Number of rounds for each sender and receiver: a phase with more than one is repeated.
    pairs = table.group_by([*keys, "from", "to"]).aggregate([("round", "count_distinct")])
    most = pairs.group_by(keys).aggregate([("round_count_distinct", "max")]).to_pylist()
    often = {tuple(row[key] for key in keys): row["round_count_distinct_max"] for row in most}
    return [
        {
            "phase": row["phase"], "way": "down" if row["from_server"] else "up" if row["to_server"] else "peer",
            "messages": row["bytes_count"], "bytes": row["bytes_sum"], "floats": row["floats_sum"],
            "rounds": row["round_count_distinct"],
            "once": often[tuple(row[key] for key in keys)] == 1 and 2 * row["round_count_distinct"] < rounds,
        }
        for row in total
    ]  # fmt: skip


def phases_of(runs: Sequence[Result]) -> list[dict[str, Any]]:
    """A method's phases, mean over its runs; `once`: whether the phase is `once` in all runs that have it."""
    by_phase: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        for phase in phases_in(run):
            by_phase[phase["phase"], phase["way"]].append(phase)
    clients = statistics.fmean(len(run.client_facts) - len(run.unseen) for run in runs)
    rounds = statistics.fmean(int(run.summary["rounds"]) for run in runs)
    return [
        {
            "phase": name, "way": way, "once": all(phase["once"] for phase in same),
            "rounds": statistics.fmean(phase["rounds"] for phase in same), "ofRounds": rounds, "clients": clients,
            **{what: sum(phase[what] for phase in same) / len(runs) for what in ("messages", "bytes", "floats")},
        }
        for (name, way), same in by_phase.items()
    ]  # fmt: skip


def traffic_tables(phases: Mapping[str, Sequence[Mapping[str, Any]]], titles: Mapping[str, str]) -> dict[str, Any]:
    """Two tables: one-time and repeated traffic of each method, and the traffic of every phase. phases: by label."""
    heads = [
        "method",
        ("once, a client", "what is sent once, over the number of clients"),
        ("once, in all", "phases that a client goes through at most once, such as FLT's signatures"),
        ("a round", "all other messages, over the number of rounds"),
        ("repeated, a client", "all other messages, over the number of clients"),
        ("repeated, in all", "all other messages of the run"),
        ("share once", "of all bytes"),
    ]
    rows = [[titles[label], *_traffic_cells(of_method)] for label, of_method in phases.items()]
    names = ("method", "phase", "way", "when", "messages", "bytes", "bytes a client", "floats", "floats a client")
    every = [
        [
            titles[label], phase["phase"], _WAYS[phase["way"]],
            "once" if phase["once"] else f"in {phase['rounds']:,.0f} of {phase['ofRounds']:,.0f} rounds",
            f"{phase['messages']:,.0f}", megabytes(phase["bytes"]), megabytes(phase["bytes"] / phase["clients"]),
            f"{phase['floats']:,.0f}", f"{phase['floats'] / phase['clients']:,.0f}",
        ]
        for label, of_method in phases.items() for phase in of_method
    ]  # fmt: skip
    return {"heads": heads, "rows": rows, "names": names, "every": every}


def _traffic_cells(phases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells of a method, from its phases."""
    once = _amount(phase for phase in phases if phase["once"])
    again = _amount(phase for phase in phases if not phase["once"])
    clients, rounds = phases[0]["clients"], phases[0]["ofRounds"]
    share = f"{100 * once['bytes'] / (once['bytes'] + again['bytes']):.1f} %" if once["bytes"] else "–"
    return [_both(once, clients), _both(once), _both(again, rounds), _both(again, clients), _both(again), share]


def _amount(phases: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The sums of bytes and floats."""
    amounts = [(phase["bytes"], phase["floats"]) for phase in phases]
    return {"bytes": sum(bytes for bytes, _ in amounts), "floats": sum(floats for _, floats in amounts)}


def _both(amount: Mapping[str, float], parts: float = 1) -> str:
    """Bytes, with floats below them."""
    if not amount["bytes"] or not parts:
        return NONE
    return small(megabytes(amount["bytes"] / parts), f"{amount['floats'] / parts:,.0f} floats")


def missing_of(reported: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """The missing messages of each run that has any."""
    return [
        {"label": entry.label, "seed": entry.run.seed, **entry.run.summary["missing"]}
        for entry in reported if entry.run.summary.get("missing")
    ]  # fmt: skip


def missing_tables(missing: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> dict[str, Any]:
    """The numbers of missing messages of each kind, and the clients that failed or whose messages were refused."""
    kinds = [kind for kind in Missing if any(kind in entry["kinds"] for entry in missing)]
    rows = [
        (titles[entry["label"]], entry["seed"], *(f"{entry['kinds'].get(kind, 0):,}" for kind in kinds))
        for entry in missing
    ]
    clients = [
        (titles[entry["label"]], entry["seed"], id, f"{first['count']:,}", f"{first['round']:,}", first["phase"],
         first["reason"])
        for entry in missing for id, first in entry["clients"].items()
    ]  # fmt: skip
    heads = ["method", "seed", *((kind, f"messages {kind.text}") for kind in kinds)]
    return {"heads": heads, "rows": rows, "clients": clients[:_ROWS]}


def measures_of(by_label: Mapping[str, Sequence[ReportRun]]) -> dict[str, Any] | None:
    """Further metrics (`run.metrics`): a table of methods and a table of clients; None if no run has any."""
    measured = {label: [entry.run.summary.get("metrics") or {} for entry in runs] for label, runs in by_label.items()}
    metrics = {name: metric for each in measured.values() for run in each for name, metric in run.items()}
    if not metrics:
        return None
    heads = [f"{metric['title']}, {'higher' if metric['higher'] else 'lower'} is better" for metric in metrics.values()]
    rows = [[label, *(_mean_and_worst(of_method, name) for name in metrics)] for label, of_method in measured.items()]
    return {"heads": heads, "rows": rows, **_measures_of_clients(measured, metrics)}


# The figures of the further metrics of a method's runs.
Measured = Mapping[str, Sequence[Mapping[str, Any]]]


def _measures_of_clients(measured: Measured, metrics: Iterable[str]) -> dict[str, Any]:
    """Each client's values with the first seed; a column for each method and metric."""
    columns = {
        f"{label}: {name}": of_method[0].get(name, {}).get("values", {})
        for (label, of_method), name in product(measured.items(), metrics)
    }
    ids = sorted(set[str]().union(*columns.values()))
    clients = [[id, *(_three_digits(values.get(id)) for values in columns.values())] for id in ids[:_ROWS]]
    return {"columns": list(columns), "clients": clients, "all": len(ids)}


def _three_digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _mean_and_worst(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    known = [run[name] for run in runs if name in run and run[name].get("mean") is not None]
    if len(known) < len(runs):
        return "–"
    means = [metric["mean"] for metric in known]
    spread = f" ± {half_interval(means):.3f}" if len(means) > 1 else ""
    worst = statistics.fmean(metric["worst10"] for metric in known)
    counts = sorted({(metric["clients"], metric["clients"] + metric["left_out"]) for metric in known})
    fewer = [f"{clients} of {every}" for clients, every in counts if clients < every]
    over = f", over {', '.join(fewer)} clients" if fewer else ""
    return f"{statistics.fmean(means):.3f}{spread} (worst 10 %: {worst:.3f}{over})"
