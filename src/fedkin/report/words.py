"""What is said in words: the sentence at the top of a report, and the terminal's lines about groups and choices."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import over
from fedkin.analysis.paired import VERDICTS
from fedkin.graph import Evidence, load_graph
from fedkin.graph.evidence import p_text
from fedkin.records import reading, schema
from fedkin.records.files import read_json
from fedkin.report.fairness import Gains
from fedkin.report.graphs import Follower
from fedkin.report.pairing import counterpart
from fedkin.report.reading import Run
from fedkin.report.units import megabytes
from fedkin.report.verdicts import NEAR, Settled, Told, alone_in, keep_words, node_of, settled
from fedkin.tasks import Metric

__all__ = [
    "FEDAVG", "LOCAL", "chosen_line", "chosen_on", "in_words", "lines", "sentence", "subject", "terminal",
    "validation_in",
]  # fmt: skip

LOCAL, FEDAVG = "local", "fedavg"
_TEST = "the test samples"
_LINES = 4
# What a sentence says of the clients inside a group.
_INSIDE = {
    "same": "no test tells the clients apart",
    NEAR: "the clients differ by too little to pay for separate models",
    "shares": "the clients differ in how often each class occurs, not in what a class looks like",
    "offsets": "each client is shifted by itself",
}


# -- the sentence at the top of a report ------------------------------------------------------------------------------


def sentence(
    runs: Sequence[Run], labels: Sequence[str], gained: Sequence[Gains | None], titles: Mapping[str, str]
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
        f"{head}: {_who_gains(mine, gains, mean)}", _unseen(mine), _groups(mine), _sent(mine, runs),
        _rival(mine[0].metric, mean, {titles[label]: other for label, other in others.items()}),
    ]  # fmt: skip
    return "; ".join(part for part in parts if part) + "."


def _who_gains(mine: Sequence[Run], gains: Sequence[Gains | None], mean: float | None) -> str:
    metric, seeds = mine[0].metric, f" (means over {len(mine)} seeds)" if len(mine) > 1 else ""
    clients = max(len(run.clients) - len(run.unseen) for run in mine)
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


def _unseen(mine: Sequence[Run]) -> str:
    """The mean over clients that never took part."""
    means = [(run.summary.get("unseen") or {}).get("mean") for run in mine]
    if None in means:
        return ""
    count = max(len(run.unseen) for run in mine)
    return f"{_value(statistics.fmean(means), mine[0].metric)} for {many(count, 'unseen client')}"


def _groups(mine: Sequence[Run]) -> str:
    """The groups of the last graphs, how they compare with the planted ones, and what was told to the method."""
    found = [(run.summary.get("groups") or {}) for run in mine]
    given = ", ".join(dict.fromkeys(text for run in mine for text in run.summary.get("given") or ()))
    if any(groups.get("found") is None for groups in found) or not all(run.graphs for run in mine):
        return f"told: {given}" if given else ""
    told = [_told(run) for run in mine]
    known = [one for one in told if one is not None]
    against = _against([groups.get("ari") for groups in found])
    if len(known) == len(told):
        text = in_words(known, against)
    else:
        counts = sorted({int(groups["found"]) for groups in found})
        text = f"{many(counts[-1], 'group')} found" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} groups found"
        text += against
    return f"{text} ({given})" if given else text


def _told(run: Run) -> Told | None:
    """What tests found of the last graph; None for groups that rest on no tests."""
    graph = run.graph(max(run.graphs))
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


def _sent(mine: Sequence[Run], runs: Sequence[Run]) -> str:
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
    each: dict[str, list[Any]] = {label: [] for label in labels}
    for run, label in zip(runs, labels, strict=True):
        each[label].append(run.figures.get("mean"))
    return {label: None if None in values else statistics.fmean(values) for label, values in each.items()}


def _validation(runs: Sequence[Run], labels: Sequence[str]) -> schema.Validation | None:
    """What a tuning found, kept beside the runs; None unless it judged every method that may be chosen."""
    homes = {run.folder.resolve().parent for run in runs}
    held = validation_in(homes.pop()) if len(homes) == 1 else None
    pairs = zip(runs, labels, strict=True)
    able = {label for run, label in pairs if run.method not in (LOCAL, FEDAVG) and "@" not in label}
    return held if held is not None and able <= set(held.means) else None


def validation_in(folder: Path) -> schema.Validation | None:
    """What a tuning found, as it is kept in this folder; None if there is no such file. Raises RunError."""
    path = folder / schema.VALIDATION
    if not path.is_file():
        return None
    return schema.Validation(**reading.checked(schema.Validation, read_json(path), path))


def _on(held: schema.Validation) -> str:
    what, _, share = held.hold_out.partition(":")
    return f"validation ({float(share):.0%} of the {'clients' if what == 'clients' else 'training samples'})"


def chosen_line(methods: Sequence[str], held: schema.Validation | None, higher: bool) -> str:
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


# -- what tests said of groups ----------------------------------------------------------------------------------------


def in_words(seeds: Sequence[Told], against: str = "") -> str:
    """What was found with nothing told, by a run or by one of each seed. against: words about planted groups.

    >>> in_words([Told({"same": 4}, p=0.1)], ", equal to the planted ones")[:60]
    '4 groups with nothing told, equal to the planted ones: no te'
    >>> in_words([Told({"same": 1}, alone=1)])
    '1 group and 1 client alone with nothing told: no test tells the clients apart'
    >>> in_words([Told({"same": 1}, clients=9000, placed=4000)])[56:]
    'apart (5,000 of 9,000 clients were tested; the others were placed in a group after that)'
    """
    counts = [sum(one.kinds.values()) for one in seeds]
    low, high = min(counts), max(counts)
    if not high:
        return f"no groups found with nothing told{against}: every client is like nobody else{_tests_seen(seeds)}"
    most = max(one.alone for one in seeds)
    count = many(high, "group") if low == high else f"{low} to {high} groups"
    alone = f" and {'up to ' if len(seeds) > 1 else ''}{many(most, 'client')} alone" if most else ""
    return f"{count}{alone} with nothing told{against}: {_inside(seeds)}{_tests_seen(seeds)}"


def _inside(seeds: Sequence[Told]) -> str:
    kinds = sum((Counter(one.kinds) for one in seeds), Counter[str]())
    known = [one.p for one in seeds if one.p is not None]
    words = {kind: _INSIDE.get(kind, f"the verdict is {kind}") for kind in kinds}
    if "same" in words and known:
        words["same"] += f" (smallest {p_text(min(known))})"
    if len(kinds) == 1:
        return next(iter(words.values()))
    return ", ".join(f"in {kinds[kind] if len(seeds) == 1 else 'some'} {said}" for kind, said in words.items())


def _tests_seen(seeds: Sequence[Told]) -> str:
    """How many clients the tests saw, in brackets, where these are not all."""
    if not any(one.placed for one in seeds):
        return ""
    one = seeds[0]
    count = f"{one.clients - one.placed:,} of {one.clients:,}" if len(seeds) == 1 else "not all"
    return f" ({count} clients were tested; the others were placed in a group after that)"


def terminal(label: str, runs: Mapping[int, tuple[Path, Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Two to six lines about a method's groups, with several seeds one line for each; none without verdicts.

    runs: {seed: (folder, lines of rounds.jsonl)}.
    """
    text = []
    for seed, (folder, rounds) in runs.items():
        groups, tests = _last(folder)
        if groups and len(runs) == 1:
            text += lines(label, groups, tests, keep_words(rounds))
        elif groups:
            text.append(f"{label}, seed {seed}: {in_words([Told.of(groups, tests)])}")
    return text if len(text) <= _LINES + 2 else [*text[: _LINES + 1], f"and {len(text) - _LINES - 1} more seeds"]


def _last(folder: Path) -> tuple[list[Settled], Evidence | None]:
    """The groups of a run's last graph, with the report's numbers; empty if it records no verdicts."""
    paths = reading.files_in(folder / "graphs", "npz")
    if not paths or not settled(last := load_graph(paths[max(paths)])):
        return [], None
    follower, named = Follower(), dict[str, int]()
    for round in sorted(paths):
        groups = load_graph(paths[round]).groups
        named = follower.name(groups) if groups is not None else named
    return settled(last, named), last.evidence


def lines(label: str, groups: Sequence[Settled], tests: Evidence | None, keep: str | None) -> list[str]:
    """Two to six lines about the groups of one run. keep: words about clients that keep their own models.

    >>> lines("kin", [Settled(0, "same", ("ann", "bob"))], None, None)[1:]
    ['  group 1, same: 2 clients']
    """
    several, alone = [one for one in groups if one.verdict != "alone"], alone_in(groups)
    room = _LINES - bool(alone)
    shown = several if len(several) <= room else several[: room - 1]
    # The lines below have the p-values, and who is alone.
    told = Told.of(groups, None)
    text = [f"{label}: {in_words([replace(told, alone=0 if several else told.alone)])}"]
    for one in shown:
        node = node_of(one, tests)
        line = f"  group {one.number + 1}, {one.verdict}: {many(len(one.members), 'client')}"
        text.append(line if node is None else f"{line}, {node.least()}")
    if left := several[len(shown) :]:
        text.append(f"  and {len(left)} more groups with {sum(len(one.members) for one in left)} clients")
    if alone:
        text.append(f"  alone: {', '.join(alone[:5])}{f' and {len(alone) - 5} more' if len(alone) > 5 else ''}")
    return [*text, f"  {keep}"] if keep is not None else text


# -- numbers ----------------------------------------------------------------------------------------------------------


def many(number: int, word: str) -> str:
    """A number with its noun.

    >>> many(1, "client"), many(9000, "client")
    ('1 client', '9,000 clients')
    """
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _value(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} %" if metric.share else f"{value:.3g}"
