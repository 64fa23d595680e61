"""The sentence at the top of a report: who gains with which method, its groups, its cost, and how it was chosen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import over
from fedkin.analysis.paired import VERDICTS
from fedkin.records import reading
from fedkin.records.controls import counterpart
from fedkin.records.figures import Gains
from fedkin.records.files import read_json
from fedkin.records.run import Result
from fedkin.report.units import many, megabytes
from fedkin.report.verdicts import Told, in_words, settled
from fedkin.tasks import Metric

__all__ = ["FEDAVG", "LOCAL", "chosen_line", "chosen_on", "sentence", "subject", "validation_in"]

LOCAL, FEDAVG = "local", "fedavg"
_TEST = "the test samples"


def sentence(
    runs: Sequence[Result], labels: Sequence[str], gained: Sequence[Gains | None], titles: Mapping[str, str]
) -> str:
    """Who gains with the best method besides Local and FedAvg, its groups, what it sent, and whether another is better.

    The best one is chosen on held-out training data, if a tuning of all of these methods judged them, else on test.
    """
    chosen, means = subject(runs, labels), _means(runs, labels)
    mine = [run for run, label in zip(runs, labels, strict=True) if label == chosen]
    gains = [gain for gain, label in zip(gained, labels, strict=True) if label == chosen]
    others = {label: mean for label, mean in means.items() if mean is not None and label != chosen and "@" not in label}
    count, mean = _candidates(runs, labels, mine[0].method), means[chosen]
    head = f"With {titles[chosen]}"
    if count > 1:
        head += f", chosen of {count} methods on {chosen_on(runs, labels)}"
    parts = [
        f"{head}: {_who_gains(mine, gains, mean)}", _unseen(mine, mean), _groups(mine), _sent(mine, runs),
        _rival(mine[0].metric, mean, {titles[label]: other for label, other in others.items()}),
    ]  # fmt: skip
    return "; ".join(part for part in parts if part) + "."


def _who_gains(mine: Sequence[Result], gains: Sequence[Gains | None], mean: float | None) -> str:
    metric, seeds = mine[0].metric, f" (means over {len(mine)} seeds)" if len(mine) > 1 else ""
    clients = max(len(run.client_facts) - len(run.unseen) for run in mine)
    if mean is None:
        return f"{many(clients, 'client')} without test data"
    known = [gain for gain in gains if gain is not None]
    if not known or len(known) < len(gains):
        text = f"mean test {metric.title} {_value(mean, metric)} over {many(clients, 'client')}{seeds}"
        return text if mine[0].method == LOCAL else f"{text}, and no like run of Local to say who gains"
    total = statistics.fmean(len(gain.by_client) for gain in known)
    if all(gain.sure for gain in known):
        better, worse, apart, few = (statistics.fmean(gain.counts[word] for gain in known) for word in VERDICTS)
        need = "events" if any(one.events is not None for one, _ in known[0].sure.values()) else "test samples"
        text = f"{_count(better)} of {_count(total)} clients surely gain over Local, {_count(worse)} surely hurt"
        text += f", {_count(apart)} cannot be told apart" if apart else ""
        text += f", {_count(few)} with too few {need}" if few else ""
    else:
        better, worse = (statistics.fmean(getattr(gain, name) for gain in known) for name in ("gaining", "hurt"))
        text = f"{_count(better)} of {_count(total)} clients gain over Local, {_count(worse)} lose"
    return f"{text}{seeds}, {_mean_gain(known, metric)}"


def _mean_gain(gains: Sequence[Gains], metric: Metric) -> str:
    """The mean gain, with its interval over seeds, or over clients with one seed."""
    several = len(gains) > 1
    values = [gain.mean for gain in gains] if several else list(gains[0].by_client.values())
    scale, unit = (100, " points") if metric.share else (1, "")
    text = f"mean gain {scale * statistics.fmean(values):+.3g}{unit}"
    if (bounds := over(values)) is None:
        return text
    ends = " to ".join(f"{scale * end:+.3g}" for end in bounds)
    return f"{text} (95 % interval over {'seeds' if several else 'clients'} {ends})"


def _unseen(mine: Sequence[Result], mean: float | None) -> str:
    """The mean over clients that never took part."""
    means = [(run.summary.get("unseen") or {}).get("mean") for run in mine]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        return ""
    count = max(len(run.unseen) for run in mine)
    metric = mine[0].metric
    text = f"mean {metric.title} {_value(statistics.fmean(known), metric)} over {many(count, 'unseen client')}"
    return text if mean is None else f"{text}, {_value(mean, metric)} over the others"


def _groups(mine: Sequence[Result]) -> str:
    """The groups of the last graphs, how they compare with the planted ones, and what was told to the method."""
    summaries = [(run.summary.get("groups") or {}) for run in mine]
    given = ", ".join(dict.fromkeys(text for run in mine for text in run.summary.get("given") or ()))
    if any(groups.get("found") is None for groups in summaries) or not all(run.graphs for run in mine):
        return f"told: {given}" if given else ""
    told = [_told(run) for run in mine]
    known = [one for one in told if one is not None]
    against = _against([groups.get("ari") for groups in summaries])
    if len(known) == len(told):
        text = in_words(known, against)
    else:
        counts = sorted({int(groups["found"]) for groups in summaries})
        text = f"{many(counts[-1], 'group')} found" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} groups found"
        text += against
    return f"{text} ({given})" if given else text


def _told(run: Result) -> Told | None:
    """What tests found of the last graph; None for groups that rest on no tests."""
    graph = run.graph_at(max(run.graphs))
    groups = settled(graph)
    return Told.of(groups, graph.evidence) if groups else None


def _against(ari: Sequence[float | None]) -> str:
    known = [value for value in ari if value is not None]
    if len(known) < len(ari):
        return ""
    equal = sum(value > 1 - 1e-9 for value in known)
    if equal == len(known):
        return ", equal to the planted ones"
    # Never rounded up to 1, which would mean equal.
    text = f"ARI {min(statistics.fmean(known), 0.99):.2f} to the planted ones"
    return f" ({text})" if len(known) == 1 else f" ({text}, equal with {equal} of {len(known)} seeds)"


def _sent(mine: Sequence[Result], runs: Sequence[Result]) -> str:
    sent = statistics.fmean(run.sent for run in mine)
    if not sent:
        return "nothing sent"
    text = f"{megabytes(sent)} sent" + (" a run" if len(mine) > 1 else "")
    others = [counterpart(run, runs, FEDAVG) for run in mine if run.method != FEDAVG]
    like = [
        other.sent for other, run in zip(others, mine, strict=False)
        if other is not None and other.summary["rounds"] == run.summary["rounds"]
    ]  # fmt: skip
    return f"{text} (FedAvg: {megabytes(statistics.fmean(like))})" if len(like) == len(mine) else text


def _rival(metric: Metric, mean: float | None, others: Mapping[str, float]) -> str:
    """The best other method, if it is better than the one that the sentence is about."""
    if mean is None or not others:
        return ""
    best = max(others, key=lambda title: metric.better(others[title], 0.0))
    if metric.better(round(others[best], 3), round(mean, 3)) <= 0:
        return ""
    figures = f"({_value(others[best], metric)} against {_value(mean, metric)})"
    return f"{best} has the better mean {metric.title} {figures}"


def subject(runs: Sequence[Result], labels: Sequence[str]) -> str:
    """The method, by its label, that the sentence describes and the page shows first."""
    every = {label: run.method for run, label in zip(runs, labels, strict=True)}
    # A control is there to judge its method by.
    methods = {label: method for label, method in every.items() if "@" not in label} or every
    held = _validation(runs, labels)
    means = _means(runs, labels) if held is None else dict.fromkeys(labels) | held.means
    for wanted in (set(methods.values()) - {LOCAL, FEDAVG}, {FEDAVG}, {LOCAL}):
        of = [label for label, method in methods.items() if method in wanted]
        if of:
            better = runs[0].metric.better
            worth = {name: -math.inf if (mean := means[name]) is None else better(mean, 0.0) for name in of}
            best = [label for label in of if worth[label] == max(worth.values())]
            # Two methods that find the same groups may have equal means: the one that says why it made them is told of.
            return next((label for label in best if len(best) > 1 and _tested(runs, labels, label)), best[0])
    raise AssertionError("every method is one of these")


def chosen_on(runs: Sequence[Result], labels: Sequence[str]) -> str:
    """On what the subject was chosen, in words."""
    held = _validation(runs, labels)
    return _TEST if held is None else _on(held)


def _candidates(runs: Sequence[Result], labels: Sequence[str], method: str) -> int:
    """Of how many methods the subject was chosen; Local and FedAvg are told of only if there is no other."""
    if method in (LOCAL, FEDAVG):
        return 1
    methods = {label for run, label in zip(runs, labels, strict=True) if run.method not in (LOCAL, FEDAVG)}
    return len({label for label in methods if "@" not in label}) or len(methods)


def _tested(runs: Sequence[Result], labels: Sequence[str], label: str) -> bool:
    mine = [run for run, other in zip(runs, labels, strict=True) if other == label and run.graphs]
    return bool(mine) and bool(settled(mine[0].graph_at(max(mine[0].graphs))))


def _means(runs: Sequence[Result], labels: Sequence[str]) -> dict[str, float | None]:
    """The mean of the metric over seeds by label; None if a run has none."""
    each: dict[str, list[Any]] = {label: [] for label in labels}
    for run, label in zip(runs, labels, strict=True):
        each[label].append(run.figures.get("mean"))
    return {label: None if None in values else statistics.fmean(values) for label, values in each.items()}


def _validation(runs: Sequence[Result], labels: Sequence[str]) -> reading.Validation | None:
    """What a tuning found, kept beside the runs; None unless it judged every method that may be chosen."""
    homes = {run.folder.resolve().parent for run in runs if run.folder is not None}
    held = validation_in(homes.pop()) if len(homes) == 1 else None
    pairs = zip(runs, labels, strict=True)
    able = {label for run, label in pairs if run.method not in (LOCAL, FEDAVG) and "@" not in label}
    return held if held is not None and able <= set(held.means) else None


def validation_in(folder: Path) -> reading.Validation | None:
    """What a tuning found, as it is kept in this folder; None if there is no such file. Raises RunError."""
    path = folder / reading.VALIDATION
    if not path.is_file():
        return None
    return reading.Validation(**reading.checked(reading.Validation, read_json(path), path))


def _on(held: reading.Validation) -> str:
    what, _, share = held.hold_out.partition(":")
    return f"validation ({float(share):.0%} of the {'clients' if what == 'clients' else 'training samples'})"


def chosen_line(methods: Sequence[str], held: reading.Validation | None, higher: bool) -> str:
    """What to heed when the best of these methods is taken, in a line; empty if there is no choice."""
    able = [name for name in methods if name not in (LOCAL, FEDAVG) and "@" not in name]
    if len(able) < 2:
        return ""
    if held is not None and set(able) <= set(held.means):
        best = max(able, key=lambda name: held.means[name] if higher else -held.means[name])
        return f"by {_on(held)}, the best of {len(able)} methods is {best}"
    return (
        f"the best of these {len(able)} methods would be chosen on {_TEST}: its mean is then too good on average. What "
        "fedkin tune writes is compared with a choice on held-out samples"
    )


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _value(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} %" if metric.share else f"{value:.3g}"
