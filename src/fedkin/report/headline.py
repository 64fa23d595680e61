"""The facts of a report's sentence, taken from its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedkin.records import reading
from fedkin.records.files import read_json
from fedkin.report.fairness import Gains
from fedkin.report.pairing import counterpart
from fedkin.report.reading import Run
from fedkin.report.sentence import FEDAVG, LOCAL, Facts, Found
from fedkin.report.verdicts import Told, settled

__all__ = ["chosen_line", "chosen_on", "facts", "subject", "validation_in"]

_TEST = "the test samples"


def facts(
    runs: Sequence[Run], labels: Sequence[str], gained: Sequence[Gains | None], titles: Mapping[str, str]
) -> Facts:
    """Facts about the best method besides Local and FedAvg, by its mean; else about FedAvg; else about Local.

    The best one is chosen on held-out training data, if a tuning of all of these methods judged them, else on test.
    """
    chosen, means = subject(runs, labels), _means(runs, labels)
    at = [i for i, label in enumerate(labels) if label == chosen]
    mine, known = [runs[i] for i in at], [gained[i] for i in at]
    found = [_found(run) for run in mine]
    others = {label: mean for label, mean in means.items() if mean is not None and label != chosen and "@" not in label}
    metric = runs[0].metric
    best = max(others, key=lambda label: metric.better(others[label], 0.0), default=None)
    return Facts(
        subject=titles[chosen],
        kind=mine[0].method,
        clients=max(len(run.clients) - len(run.unseen) for run in mine),
        seeds=len(mine),
        mean=means[chosen],
        gains=() if None in known else tuple(gain for gain in known if gain is not None),
        found=() if None in found else tuple(one for one in found if one is not None),
        sent=statistics.fmean(run.sent for run in mine),
        sent_fedavg=_fedavg_bytes(runs, mine),
        rival=None if best is None else (titles[best], others[best]),
        metric=metric,
        unseen=_unseen(mine),
        local=any(run.method == LOCAL for run in runs),
        candidates=_candidates(runs, labels, mine[0].method),
        chosen_on=chosen_on(runs, labels),
        given=tuple(dict.fromkeys(text for run in mine for text in run.summary.get("given") or ())),
    )


def subject(runs: Sequence[Run], labels: Sequence[str]) -> str:
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


def chosen_on(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """On what the subject was chosen, in words."""
    held = _validation(runs, labels)
    return _TEST if held is None else _on(held)


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


def validation_in(folder: Path) -> reading.Validation | None:
    """What a tuning found, as it is kept in this folder; None if there is no such file. Raises RunError."""
    path = folder / reading.VALIDATION
    if not path.is_file():
        return None
    return reading.Validation(**reading.checked(reading.Validation, read_json(path), path))


def _on(held: reading.Validation) -> str:
    what, _, share = held.hold_out.partition(":")
    return f"validation ({float(share):.0%} of the {'clients' if what == 'clients' else 'training samples'})"


def _validation(runs: Sequence[Run], labels: Sequence[str]) -> reading.Validation | None:
    """What a tuning found, kept beside the runs; None unless it judged every method that may be chosen."""
    homes = {run.folder.resolve().parent for run in runs}
    found = validation_in(homes.pop()) if len(homes) == 1 else None
    pairs = zip(runs, labels, strict=True)
    able = {label for run, label in pairs if run.method not in (LOCAL, FEDAVG) and "@" not in label}
    return found if found is not None and able <= set(found.means) else None


def _candidates(runs: Sequence[Run], labels: Sequence[str], method: str) -> int:
    """Of how many methods the subject was chosen; Local and FedAvg are told of only if there is no other."""
    if method in (LOCAL, FEDAVG):
        return 1
    methods = {label for run, label in zip(runs, labels, strict=True) if run.method not in (LOCAL, FEDAVG)}
    return len({label for label in methods if "@" not in label}) or len(methods)


def _tested(runs: Sequence[Run], labels: Sequence[str], label: str) -> bool:
    mine = [run for run, other in zip(runs, labels, strict=True) if other == label and run.graphs]
    return bool(mine) and bool(settled(mine[0].graph(max(mine[0].graphs))))


def _means(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, float | None]:
    """The mean of the metric over seeds by label; None if a run has none."""
    each: dict[str, list[float | None]] = {label: [] for label in labels}
    for run, label in zip(runs, labels, strict=True):
        each[label].append(run.figures.get("mean"))
    return {
        label: None if None in values else statistics.fmean(value for value in values if value is not None)
        for label, values in each.items()
    }


def _unseen(mine: Sequence[Run]) -> tuple[int, float] | None:
    """The number of clients that never took part, and their mean over the seeds; None without any."""
    means = [(run.summary.get("unseen") or {}).get("mean") for run in mine]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        return None
    return max(len(run.unseen) for run in mine), statistics.fmean(known)


def _fedavg_bytes(runs: Sequence[Run], mine: Sequence[Run]) -> float | None:
    """FedAvg's bytes, if it ran as many rounds on the same clients."""
    sent = []
    for run in mine:
        other = counterpart(run, runs, FEDAVG)
        if other is None or other.summary["rounds"] != run.summary["rounds"]:
            return None
        sent.append(other.sent)
    return statistics.fmean(sent)


def _found(run: Run) -> Found | None:
    """The groups of the last graph: the summary's figures, and the number of clients in that graph."""
    groups = run.summary.get("groups") or {}
    if groups.get("found") is None or not run.graphs:
        return None
    graph = run.graph(max(run.graphs))
    planted = None if run.planted is None else len({run.planted[id] for id in graph.ids})
    tested = settled(graph)
    told = Told.of(tested, graph.evidence) if tested else None
    return Found(int(groups["found"]), len(graph.ids), planted, groups.get("ari"), told)
