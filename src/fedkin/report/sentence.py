"""What is said about runs in sentences: the headline and the sentence of a report, and lines in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import added, over
from fedkin.analysis.paired import VERDICTS
from fedkin.records import reading
from fedkin.records.comparison import Gains, mean_and_sd
from fedkin.records.run import Result
from fedkin.report.choice import KinChoice
from fedkin.report.runs import FEDAVG, LOCAL, ReportRun, given_of
from fedkin.report.units import plural
from fedkin.report.verdicts import findings_of, findings_text, group_count
from fedkin.tasks import Metric

_TEST = "the test samples"


# -- the method that a report is about ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The method that headline and sentence are about, with its runs, chosen among all runs of a report.

    label: of the method. gains: of each of its runs. candidates: number of methods it was chosen from, 0 without a
    choice. chosen_on: the data it was chosen on, in words. mean: of the metric over clients and seeds; None if unknown.
    """

    label: str
    title: str
    runs: Sequence[Result]
    gains: Sequence[Gains | None]
    candidates: int
    chosen_on: str
    mean: float | None

    @classmethod
    def of(cls, by_label: Mapping[str, Sequence[ReportRun]]) -> Subject:
        """Choose the best method other than Local and FedAvg: on held-out data if a tuning judged all, else on test."""
        means: dict[str, float | None] = {}
        for label, reported in by_label.items():
            pair = mean_and_sd([entry.run.figures.get("mean") for entry in reported])
            means[label] = None if pair is None else pair[0]
        first = {label: reported[0].run for label, reported in by_label.items()}
        # A control only serves to judge its method.
        methods = [label for label in by_label if "@" not in label] or list(by_label)
        others = [label for label in methods if first[label].method not in (LOCAL, FEDAVG)]
        fedavg = [label for label in methods if first[label].method == FEDAVG]
        validation = _validation([entry.run for reported in by_label.values() for entry in reported], others)
        judged, chosen_on = means, _TEST
        if validation is not None:
            judged, chosen_on = dict.fromkeys(by_label) | validation.means, _validation_text(validation)
        best = _best({label: first[label] for label in others or fedavg or methods}, judged)
        runs, gains = [entry.run for entry in by_label[best]], [entry.gain for entry in by_label[best]]
        return cls(best, by_label[best][0].title, runs, gains, len(others), chosen_on, means[best])

    @property
    def metric(self) -> Metric:
        """The metric of the runs."""
        return self.runs[0].metric

    @property
    def clients(self) -> int:
        """The number of clients that take part."""
        return max(len(run.client_facts) - len(run.unseen) for run in self.runs)

    @property
    def tuned(self) -> bool:
        """Whether a tuning judged all methods that this one was chosen from."""
        return self.chosen_on != _TEST

    def known_gains(self) -> list[Gains]:
        """The gains of all runs; empty if any run's gains are unknown."""
        known = [gain for gain in self.gains if gain is not None]
        return known if len(known) == len(self.gains) else []


def _best(candidates: Mapping[str, Result], means: Mapping[str, float | None]) -> str:
    """The candidate with the best mean; in a tie, the first whose groups have verdicts.

    candidates: one run of each method, by label.
    """
    worth = {
        label: -math.inf if (mean := means[label]) is None else run.metric.better(mean, 0.0)
        for label, run in candidates.items()
    }
    best = [label for label in candidates if worth[label] == max(worth.values())]
    return next((label for label in best if len(best) > 1 and findings_of(candidates[label]) is not None), best[0])


def _validation(runs: Sequence[Result], candidates: Sequence[str]) -> reading.Validation | None:
    """The results of a tuning, stored next to the runs; None unless it judged every candidate."""
    homes = {run.folder.resolve().parent for run in runs if run.folder is not None}
    validation = validation_in(homes.pop()) if len(homes) == 1 else None
    return validation if validation is not None and set(candidates) <= set(validation.means) else None


def validation_in(folder: Path) -> reading.Validation | None:
    """The results of a tuning, stored in this folder; None if there is no such file. Raises RunError."""
    path = folder / reading.VALIDATION
    if not path.is_file():
        return None
    reading.check_unchanged(folder, reading.VALIDATION)
    return reading.record_in(path, reading.Validation)


def _validation_text(validation: reading.Validation) -> str:
    what, _, share = validation.hold_out.partition(":")
    return f"validation ({float(share):.0%} of the {'clients' if what == 'clients' else 'training samples'})"


# -- headline and sentence ---------------------------------------------------------------------------------------------


def headline(about: Subject) -> str:
    """At most twenty words: the method, how many clients gain, or its mean."""
    title = about.title if len(about.title.split()) <= 3 else " ".join(about.title.split()[:3])
    if about.mean is None:
        return f"{title}: no client has test data."
    gains = about.known_gains()
    if not gains:
        return f"{title} reaches a mean {about.metric.title} of {_value(about.mean, about.metric)} over clients."
    total, degree, (better, worse, *_) = _gain_counts(gains)
    mean = f"mean {about.metric.title} {_value(about.mean, about.metric)}"
    return f"{title}: {better} of {total} clients {degree}gain over training alone, {worse} {degree}lose; {mean}."


def sentence(about: Subject) -> str:
    """Sentences: which clients gain with the method, its groups, and what it chose."""
    head = f"With {about.title}"
    if about.candidates > 1:
        head += f", chosen of {about.candidates} methods other than Local and FedAvg on {about.chosen_on}"
    choices = _choices(about.runs)
    chosen = [choices[0].explained()] if choices and len(about.runs) == 1 else [choice.short() for choice in choices]
    parts = [f"{head}: {_who_gains(about)}", _groups(about.runs), *dict.fromkeys(chosen)]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts if part)


def _who_gains(about: Subject) -> str:
    metric, gains = about.metric, about.known_gains()
    seeds = f" (means over {len(about.runs)} seeds)" if len(about.runs) > 1 else ""
    if about.mean is None:
        return f"{plural(about.clients, 'client')} without test data"
    if not gains:
        known = max((run.summary.get(metric.name) or {}).get("clients", about.clients) for run in about.runs)
        over_some = f"{known} of " if known < about.clients else ""
        many = f"{over_some}{plural(about.clients, 'client')}"
        text = f"mean test {metric.title} {_value(about.mean, metric)} over {many}{seeds}"
        return text if about.runs[0].method == LOCAL else f"{text}, without a comparable run of Local to say who gains"
    total, degree, (better, worse, apart, few) = _gain_counts(gains)
    need = "events" if any(delta.events is not None for delta, _ in gains[0].sure.values()) else "test samples"
    text = f"{better} of {total} clients {degree}gain over training alone, {worse} {degree}lose"
    text += f", {apart} do neither" if apart != "0" else ""
    text += f", {few} with too few {need}" if few != "0" else ""
    return f"{text}{seeds}, {_mean_gain(gains, metric)}"


def _gain_counts(gains: Sequence[Gains]) -> tuple[str, str, list[str]]:
    """(number of clients, "significantly " if they have verdicts, [better, worse, neither, too few samples]).

    Numbers are means over the runs.
    """
    if all(gain.sure for gain in gains):
        # Clients whose metric is not defined have a verdict too: too few.
        total = _count(statistics.fmean(len(gain.sure) for gain in gains))
        return (
            total,
            "significantly ",
            [_count(statistics.fmean(gain.counts[word] for gain in gains)) for word in VERDICTS],
        )
    total = _count(statistics.fmean(len(gain.by_client) for gain in gains))
    means = (statistics.fmean(getattr(gain, name) for gain in gains) for name in ("gaining", "hurt"))
    return total, "", [*map(_count, means), "0", "0"]


def _mean_gain(gains: Sequence[Gains], metric: Metric) -> str:
    """The mean gain, with its interval over seeds, or over clients with one seed."""
    several = len(gains) > 1
    scale, unit = (100, " points") if metric.share else (1, "")
    text = f"mean gain {scale * statistics.fmean(gain.mean for gain in gains):+.3g}{unit}"
    over_seeds = added(dict(enumerate(gain.by_client for gain in gains)))
    bounds = over_seeds and over_seeds.interval if several else over(list(gains[0].by_client.values()))
    if bounds is None:
        return text
    ends = " to ".join(f"{scale * end:+.3g}" for end in bounds)
    return f"{text} (95 % interval over {'seeds' if several else 'clients'} {ends})"


def _groups(runs: Sequence[Result]) -> str:
    """The groups of the last graphs, their agreement with planted groups, and the method's prior knowledge.

    They are the tests' findings if all graphs have verdicts, else the number of groups.
    """
    given = ", ".join(given_of(runs))
    counts: list[Any] = [(run.summary.get("groups") or {}).get("found") for run in runs]
    if None in counts or not all(run.graphs for run in runs):
        return f"prior knowledge: {given}" if given else ""
    against = _agreement([run.summary["groups"].get("ari") for run in runs])
    tested = [findings for run in runs if (findings := findings_of(run)) is not None]
    text = findings_text(tested, against) if len(tested) == len(runs) else f"{group_count(counts)} found{against}"
    return f"{text} ({given})" if given else text


def _choices(runs: Iterable[Result]) -> list[KinChoice]:
    return [choice for run in runs if (choice := KinChoice.of(run.rounds)) is not None]


def _agreement(ari: Sequence[float | None]) -> str:
    known = [value for value in ari if value is not None]
    if len(known) < len(ari):
        return ""
    equal = sum(value > 1 - 1e-9 for value in known)
    if equal == len(known):
        return ", equal to the planted ones"
    # Do not round up to 1, which would mean equal.
    text = f"ARI {min(statistics.fmean(known), 0.99):.2f} to the planted ones"
    return f" ({text})" if len(known) == 1 else f" ({text}, equal with {equal} of {len(known)} seeds)"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _value(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} %" if metric.share else f"{value:.3g}"


# -- lines in the terminal ---------------------------------------------------------------------------------------------


def chosen_line(methods: Sequence[str], validation: reading.Validation | None, higher: bool) -> str:
    """A line for readers who want to take the best of these methods; empty if there is no choice."""
    candidates = [name for name in methods if name not in (LOCAL, FEDAVG) and "@" not in name]
    if len(candidates) < 2:
        return ""
    if validation is not None and set(candidates) <= set(validation.means):
        means = validation.means
        best = max(candidates, key=lambda name: means[name] if higher else -means[name])
        return f"by {_validation_text(validation)}, the best of {len(candidates)} methods is {best}"
    return f"to choose one, use fedkin tune: the best of {len(candidates)} test means is too high"


def groups_in_terminal(label: str, runs: Sequence[Result]) -> list[str]:
    """Lines about a method's tested groups, over all its seeds; empty without verdicts."""
    tested = {run: findings for run in runs if (findings := findings_of(run)) is not None}
    if not tested:
        return []
    method = label if len(runs) == 1 else f"{label}, {len(tested)} seeds"
    lines = [f"{method}: {findings_text(list(tested.values()))}"]
    choices = _choices(tested)
    if choices:
        lines.append(f"{label} {'; '.join(dict.fromkeys(choice.short() for choice in choices))}")
    notes = [text.partition(":")[0] for findings in tested.values() for text in findings.warnings]
    notes += choices[0].leads.values() if choices and len(runs) == 1 else []
    return lines + [f"{label}: {text}" for text in dict.fromkeys(notes)]
