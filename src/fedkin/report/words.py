"""The headline and the sentence of a report, and the tests behind a run's groups, in words and as data."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import over
from fedkin.analysis.paired import VERDICTS
from fedkin.graph import Evidence, Graph
from fedkin.graph.record import MEANINGS, SHARING, Node, own_part, p_text
from fedkin.records import reading
from fedkin.records.comparison import Gains, mean_and_sd
from fedkin.records.run import Result
from fedkin.report.runs import ReportRun, given_of
from fedkin.report.units import plural
from fedkin.tasks import Metric

LOCAL, FEDAVG = "local", "fedavg"
_TEST = "the test samples"
# Largest numbers of nodes of a drawn tree, rows of the table of groups, and members named in a row.
_NODES, _ROWS, _NAMED = 63, 12, 16
# The verdict for groups of several leaves of the tree, which tests told apart.
_NEAR = "near"
_MEANINGS = MEANINGS | {_NEAR: "differ, but by too little to pay for the samples lost apart: one model"}
# What a sentence says about the clients inside a group.
_INSIDE = {
    "same": "no difference is significant",
    _NEAR: "clients differ too little for separate models to be better",
    "shares": "clients differ in how often each class occurs, not in what a class looks like",
    "offsets": "each client's inputs have a shift of their own",
}
_LEVELS = ("all", "branches", "groups")  # in the order of their numbers in figures


# -- headline and sentence ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The method that headline and sentence are about, with its runs, chosen among all runs of a report.

    label: of the method. gains: of each of its runs. candidates: number of methods it was chosen from, 0 without a
    choice. chosen_on: the data it was chosen on, in words. means: of all methods by label, over seeds; None if unknown.
    """

    label: str
    title: str
    runs: Sequence[Result]
    gains: Sequence[Gains | None]
    candidates: int
    chosen_on: str
    means: Mapping[str, float | None]

    @classmethod
    def of(cls, by_label: Mapping[str, Sequence[ReportRun]]) -> Subject:
        """Choose the best method other than Local and FedAvg: on held-out data if a tuning judged all, else on test."""
        means: dict[str, float | None] = {}
        for label, reported in by_label.items():
            pair = mean_and_sd([entry.run.figures.get("mean") for entry in reported])
            means[label] = None if pair is None else pair[0]
        others, candidates = _candidates({label: reported[0].run for label, reported in by_label.items()})
        validation = _validation([entry.run for reported in by_label.values() for entry in reported], others)
        judged, chosen_on = means, _TEST
        if validation is not None:
            judged, chosen_on = dict.fromkeys(by_label) | validation.means, _validation_text(validation)
        chosen = by_label[_best(candidates, judged)]
        runs, gains = [entry.run for entry in chosen], [entry.gain for entry in chosen]
        return cls(chosen[0].label, chosen[0].title, runs, gains, len(others), chosen_on, means)

    @property
    def mean(self) -> float | None:
        """The mean of the metric over clients and seeds."""
        return self.means[self.label]

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


def headline(about: Subject) -> str:
    """At most twenty words: the method, how many clients gain, or its mean."""
    title = about.title if len(about.title.split()) <= 3 else " ".join(about.title.split()[:3])
    if about.mean is None:
        return f"{title}: no client has test data."
    gains = about.known_gains()
    if not gains:
        return f"{title} reaches a mean {about.metric.title} of {_value(about.mean, about.metric)} over clients."
    total, surely, (better, worse, *_) = _gain_counts(gains)
    mean = f"mean {about.metric.title} {_value(about.mean, about.metric)}"
    return f"{title}: {better} of {total} clients {surely}gain over training alone, {worse} {surely}lose; {mean}."


def sentence(about: Subject) -> str:
    """Sentences: which clients gain with the method, its groups, and what it chose."""
    head = f"With {about.title}"
    if about.candidates > 1:
        head += f", chosen of {about.candidates} methods other than Local and FedAvg on {about.chosen_on}"
    parts = [f"{head}: {_who_gains(about)}", _groups(about.runs), *_choices(about.runs, leads=len(about.runs) == 1)]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts if part)


def _who_gains(about: Subject) -> str:
    metric, gains = about.metric, about.known_gains()
    seeds = f" (means over {len(about.runs)} seeds)" if len(about.runs) > 1 else ""
    if about.mean is None:
        return f"{plural(about.clients, 'client')} without test data"
    if not gains:
        text = f"mean test {metric.title} {_value(about.mean, metric)} over {plural(about.clients, 'client')}{seeds}"
        return text if about.runs[0].method == LOCAL else f"{text}, without a comparable run of Local to say who gains"
    total, surely, (better, worse, apart, few) = _gain_counts(gains)
    need = "events" if any(delta.events is not None for delta, _ in gains[0].sure.values()) else "test samples"
    lose = "surely hurt" if surely else "lose"
    text = f"{better} of {total} clients {surely}gain over training alone, {worse} {lose}"
    text += f", {apart} cannot be told apart" if apart != "0" else ""
    text += f", {few} with too few {need}" if few != "0" else ""
    return f"{text}{seeds}, {_mean_gain(gains, metric)}"


def _gain_counts(gains: Sequence[Gains]) -> tuple[str, str, list[str]]:
    """(number of clients, "surely " if they have verdicts, [better, worse, not told apart, too few samples]).

    Numbers are means over the runs.
    """
    total = _count(statistics.fmean(len(gain.by_client) for gain in gains))
    if all(gain.sure for gain in gains):
        return total, "surely ", [_count(statistics.fmean(gain.counts[word] for gain in gains)) for word in VERDICTS]
    means = (statistics.fmean(getattr(gain, name) for gain in gains) for name in ("gaining", "hurt"))
    return total, "", [*map(_count, means), "0", "0"]


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


def _groups(runs: Sequence[Result]) -> str:
    """The groups of the last graphs, their agreement with planted groups, and the method's prior knowledge."""
    given = ", ".join(given_of(runs))
    counts: list[Any] = [(run.summary.get("groups") or {}).get("found") for run in runs]
    if None in counts or not all(run.graphs for run in runs):
        return f"told: {given}" if given else ""
    text = _found_groups(runs, counts)
    return f"{text} ({given})" if given else text


def _found_groups(runs: Sequence[Result], counts: Sequence[int]) -> str:
    """The groups of runs, all with graphs: with the tests' findings if all have verdicts, else their number."""
    against = _agreement([run.summary["groups"].get("ari") for run in runs])
    tested = [findings for run in runs if (findings := findings_of(run)) is not None]
    return findings_text(tested, against) if len(tested) == len(runs) else f"{_group_count(counts)} found{against}"


def _group_count(counts: Sequence[int]) -> str:
    """The number of groups, or its range over seeds."""
    low, high = min(counts), max(counts)
    return plural(high, "group") if low == high else f"{low} to {high} groups"


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


# -- the choice of the headline's method -------------------------------------------------------------------------------


def _candidates(runs: Mapping[str, Result]) -> tuple[list[str], dict[str, Result]]:
    """Return (the methods other than Local and FedAvg, the methods to choose from); runs: one of each method."""
    # A control only serves to judge its method.
    methods = {label: run for label, run in runs.items() if "@" not in label} or runs
    others = {label: run for label, run in methods.items() if run.method not in (LOCAL, FEDAVG)}
    fedavg = {label: run for label, run in methods.items() if run.method == FEDAVG}
    return list(others), others or fedavg or dict(methods)


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
    return reading.record_in(path, reading.Validation) if path.is_file() else None


def _validation_text(validation: reading.Validation) -> str:
    what, _, share = validation.hold_out.partition(":")
    return f"validation ({float(share):.0%} of the {'clients' if what == 'clients' else 'training samples'})"


def chosen_line(methods: Sequence[str], validation: reading.Validation | None, higher: bool) -> str:
    """A line for readers who want to take the best of these methods; empty if there is no choice."""
    candidates = [name for name in methods if name not in (LOCAL, FEDAVG) and "@" not in name]
    if len(candidates) < 2:
        return ""
    if validation is not None and set(candidates) <= set(validation.means):
        means = validation.means
        best = max(candidates, key=lambda name: means[name] if higher else -means[name])
        return f"by {_validation_text(validation)}, the best of {len(candidates)} methods is {best}"
    return f"to choose one, use fedkin tune: the best of {len(candidates)} on test samples looks too good"


# -- groups and the tests behind them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedGroup:
    """A group with its verdict. number: on the page, from 0. node: the node in the tree of tests with these clients.

    verdict: "same", "shares", "offsets", "alone", or "near": clients that tests tell apart, but hardly.
    placed: number of members that took part in no test, and were placed in the group afterwards.
    """

    number: int
    verdict: str
    members: tuple[str, ...]
    node: int | None = None
    placed: int = 0


def judged_groups(graph: Graph, named: Mapping[str, int] | None = None) -> list[JudgedGroup]:
    """The groups with their verdicts, largest first; empty if the graph has no verdicts. named: the page's numbers."""
    if graph.groups is None or "verdict" not in graph.values or graph.values["verdict"].dtype.kind != "U":
        return []
    members: dict[int, list[str]] = {}
    for id, group in (graph.groups if named is None else named).items():
        members.setdefault(group, []).append(id)
    verdict = dict(zip(graph.ids, graph.values["verdict"].tolist(), strict=True))
    groups = [_judged_group(group, ids, verdict[ids[0]], graph.evidence) for group, ids in members.items()]
    return sorted(groups, key=lambda group: (-len(group.members), group.number))


def _judged_group(number: int, members: Sequence[str], verdict: str, tests: Evidence | None) -> JudgedGroup:
    if tests is None:
        return JudgedGroup(number, verdict, tuple(members))
    founders = [id for id in members if id in tests.leaf]
    leaves = {tests.leaf[id] for id in founders}
    if verdict == "same" and len(leaves) > 1:
        verdict = _NEAR
    node = _common_node(leaves, tests) if leaves else None
    if node is not None and tests.sizes[node] != len(founders):
        node = None
    return JudgedGroup(number, verdict, tuple(members), node, len(members) - len(founders))


def _common_node(leaves: AbstractSet[int], tests: Evidence) -> int:
    """The lowest node above all these leaves."""
    nodes = set(leaves)
    while len(nodes) > 1:
        # A parent has a lower number than its children.
        last = max(nodes)
        nodes = nodes - {last} | {tests.nodes[last].parent or 0}
    return nodes.pop()


def _lone_clients(groups: Iterable[JudgedGroup]) -> list[str]:
    """Ids of the clients that are alone."""
    return sorted(id for group in groups if group.verdict == "alone" for id in group.members)


def _node(group: JudgedGroup, tests: Evidence | None) -> Node | None:
    """The tests of the complete group; None if its clients were never tested together."""
    node = None if tests is None or group.node is None else tests.nodes[group.node]
    return node if node is not None and node.p else None


@dataclass(frozen=True)
class Findings:
    """Counts from a run's tests: groups by verdict, clients that are alone, and the tests inside groups "same".

    p, tests: the smallest p-value of these tests and their number. clients: number of all clients. placed: number of
    clients in no test. warnings: reasons why the tests have less power.
    """

    kinds: Mapping[str, int]
    alone: int = 0
    p: float | None = None
    clients: int = 0
    placed: int = 0
    alpha: float | None = None
    tests: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, groups: Sequence[JudgedGroup], tests: Evidence | None) -> Findings:
        """Count these groups and tests."""
        kinds = Counter(group.verdict for group in groups)
        del kinds["alone"]
        nodes = [_node(group, tests) for group in groups if group.verdict == "same"]
        p = [value for node in nodes if node is not None for value in node.p.values()]
        clients, placed = sum(len(group.members) for group in groups), sum(group.placed for group in groups)
        alpha, warnings = (None, ()) if tests is None else (tests.alpha, tests.warnings)
        return cls(kinds, len(_lone_clients(groups)), min(p, default=None), clients, placed, alpha, len(p), warnings)


def findings_of(run: Result) -> Findings | None:
    """The tests' findings about a run's last graph; None without verdicts."""
    if not run.graphs:
        return None
    graph = run.graph_at(max(run.graphs))
    groups = judged_groups(graph)
    return Findings.of(groups, graph.evidence) if groups else None


def findings_text(seeds: Sequence[Findings], against: str = "") -> str:
    """The tests' findings in words, for one run or one run per seed. against: words about planted groups.

    >>> findings_text([Findings({"same": 4}, p=0.1, alpha=0.001, tests=12)])[:67]
    '4 groups found by tests: within groups no difference is significant'
    >>> findings_text([Findings({"same": 4}, p=0.1, alpha=0.001, tests=12)])[67:]
    ' (alpha = 0.001, corrected for 12 tests; smallest p 0.1)'
    >>> findings_text([Findings({"same": 1}, alone=1)])
    '1 group and 1 client alone found by tests: within groups no difference is significant'
    """
    counts = [sum(findings.kinds.values()) for findings in seeds]
    if not any(counts):
        return f"no groups found by tests{against}: every client differs from all others{_tests_seen(seeds)}"
    most = max(findings.alone for findings in seeds)
    alone = f" and {'up to ' if len(seeds) > 1 else ''}{plural(most, 'client')} alone" if most else ""
    return f"{_group_count(counts)}{alone} found by tests{against}: {_inside(seeds)}{_tests_seen(seeds)}"


def _inside(seeds: Sequence[Findings]) -> str:
    kinds = sum((Counter(findings.kinds) for findings in seeds), Counter[str]())
    words = {kind: _INSIDE.get(kind, f"the verdict is {kind}") for kind in kinds}
    if "same" in words:
        words["same"] += _smallest_p(seeds)
    if len(kinds) == 1:
        return f"within groups {next(iter(words.values()))}"
    return ", ".join(f"in {kinds[kind] if len(seeds) == 1 else 'some'} {text}" for kind, text in words.items())


def _smallest_p(seeds: Sequence[Findings]) -> str:
    """The smallest p-value inside groups, in brackets, with the level of its test; empty if no test is known."""
    known = [findings.p for findings in seeds if findings.p is not None]
    if not known:
        return ""
    tests = sum(findings.tests for findings in seeds)
    alpha = next((findings.alpha for findings in seeds if findings.alpha is not None), None)
    level = "" if alpha is None else f"alpha = {alpha:g}, corrected for {plural(tests, 'test')}; "
    return f" ({level}smallest {p_text(min(known))})"


def _tests_seen(seeds: Sequence[Findings]) -> str:
    """The number of tested clients, in brackets; empty if all were tested."""
    if not any(findings.placed for findings in seeds):
        return ""
    findings = seeds[0]
    count = f"{findings.clients - findings.placed:,} of {findings.clients:,}" if len(seeds) == 1 else "not all"
    return f" ({count} clients were tested; the others were placed in a group after that)"


def choice_words(rounds: Sequence[Mapping[str, Any]], leads: bool = True) -> str | None:
    """What a method chose for the clients, by the figures of the last round, or None.

    leads: whether to say how much better the chosen level was than other levels on held-out samples.

    >>> choice_words([{"figures": {"level": 0, "pull_weights": 1.0, "pull_bias": 1.0}}])
    'chosen: one model for all, a head for each client (pull 1); a smaller pull is more personal'
    >>> choice_words([{"figures": {"level": 0, "pull_weights": None, "own_body": 1.0}}])
    'chosen: one model for all, own bodies'
    >>> figures = {"level": 2, "pull_weights": None, "points_all": 1.9, "points_all_low": 1.2, "points_all_high": 2.6}
    >>> choice_words([{"figures": figures}])[34:]
    'on held-out samples 1.9 points better than one model for all (95 % interval 1.2 to 2.6)'
    """
    figures = _figures(rounds)
    if "pull_weights" not in figures:
        return None
    level, words = _level(figures), _level_words(figures)
    if level is None:
        return "on trial: no level is chosen yet"
    own = own_part(figures["pull_weights"], figures.get("pull_bias"), bool(figures.get("own_body")))
    chosen = f"chosen: {', '.join(filter(None, [words[level], own]))}"
    if not leads:
        return chosen
    return "; ".join([chosen, *(["a smaller pull is more personal"] if "pull" in own else []), *lead_words(rounds)])


def _choices(runs: Iterable[Result], leads: bool) -> list[str]:
    """The `choice_words` of these runs, each once."""
    return list(dict.fromkeys(filter(None, (choice_words(run.rounds, leads) for run in runs))))


def lead_words(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much better the chosen level was than each other level on held-out samples."""
    figures = _figures(rounds)
    words = _level_words(figures)
    return [_lead(figures, _lead_in(figures, other), words[other]) for other in _LEVELS if _lead_in(figures, other)]


def _lead_in(figures: Mapping[str, Any], level: str) -> str:
    """The figure of the choice's lead over a level: in points of accuracy, or in loss; empty if there is none."""
    return next((name for name in (f"points_{level}", f"lead_{level}") if name in figures), "")


def _lead(figures: Mapping[str, Any], name: str, level: str) -> str:
    lead, low, high = (figures[f"{name}{part}"] for part in ("", "_low", "_high"))
    better = lead >= 0
    if not better:
        lead, low, high = -lead, -high, -low
    if name.startswith("points"):
        size, interval = f"{lead:.1f} points {'better' if better else 'worse'}", f"{low:.1f} to {high:.1f}"
    else:
        size, interval = f"{lead:.2g} {'lower' if better else 'higher'} in loss", f"{low:.2g} to {high:.2g}"
    told = f"{size} than {level}" if low > 0 else f"not told apart from {level}: {size}"
    return f"on held-out samples {told} (95 % interval {interval})"


def _figures(rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return (rounds[-1].get("figures") or {}) if rounds else {}


def _level(figures: Mapping[str, Any]) -> str | None:
    """The name of the chosen level; None if no level was chosen."""
    number = figures.get("level")
    return _LEVELS[number] if isinstance(number, int) and 0 <= number < len(_LEVELS) else None


def _level_words(figures: Mapping[str, Any]) -> dict[str, str]:
    # Without groups of several clients, the level of groups is local training.
    return SHARING | ({"groups": SHARING["alone"]} if figures.get("groups") == 0 else {})


def groups_in_terminal(label: str, runs: Sequence[Result]) -> list[str]:
    """Lines about a method's tested groups, over all its seeds; empty without verdicts."""
    tested = {run: findings for run in runs if (findings := findings_of(run)) is not None}
    if not tested:
        return []
    method = label if len(runs) == 1 else f"{label}, {len(tested)} seeds"
    lines = [f"{method}: {findings_text(list(tested.values()))}"]
    if words := _choices(tested, leads=False):
        lines.append(f"{method} {'; '.join(words)}")
    notes = [text.partition(":")[0] for findings in tested.values() for text in findings.warnings]
    notes += lead_words(runs[0].rounds) if len(runs) == 1 else []
    return lines + [f"{label}: {text}" for text in dict.fromkeys(notes)]


def verdict_data(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], rounds: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The page's data of a graph's verdicts and tests, with clients numbered; None without verdicts.

    rounds: lines of rounds.jsonl; the last one says what was chosen.
    """
    groups = judged_groups(graph, named)
    if not groups:
        return None
    tests = graph.evidence
    findings = Findings.of(groups, tests)
    several, alone = [group for group in groups if group.verdict != "alone"], _lone_clients(groups)
    return {
        "words": "; ".join([findings_text([findings]), *findings.warnings]), "choice": choice_words(rounds),
        "groups": [_group_row(group, tests, number) for group in several[:_ROWS]],
        "more": [len(several[_ROWS:]), sum(len(group.members) for group in several[_ROWS:])],
        "alone": [len(alone), [number[id] for id in alone[:_NAMED]], MEANINGS["alone"]],
        "tests": None if tests is None else _tree(tests, groups, number, _levels_at(graph, tests, _figures(rounds))),
    }  # fmt: skip


def _group_row(group: JudgedGroup, tests: Evidence | None, number: Mapping[str, int]) -> dict[str, Any]:
    node = _node(group, tests)
    return {
        "group": group.number, "verdict": group.verdict, "size": len(group.members), "placed": group.placed,
        "words": _MEANINGS.get(group.verdict, ""),
        "said": "" if node is None else node.summary() if node.rejected else node.smallest_p(),
        "clients": [number[id] for id in group.members[:_NAMED]],
    }  # fmt: skip


def _levels_at(graph: Graph, tests: Evidence, figures: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """{node of the tree: (the level that has a model there, whether it was chosen)}, above the groups."""
    level = _level(figures)
    tried = {name for name in _LEVELS if _lead_in(figures, name)} | {level}
    nodes: dict[int, tuple[str, bool]] = {}
    if "branches" in tried and graph.groups is not None:
        branches = {node for node in tests.branches(graph.groups).values() if node is not None}
        nodes |= dict.fromkeys(sorted(branches), ("one model for this branch", level == "branches"))
    # A branch that is the root contains all clients, so the level of branches is not tried then.
    return nodes | ({0: (SHARING["all"], level == "all")} if "all" in tried else {})


def _tree(
    tests: Evidence, groups: Sequence[JudgedGroup], number: Mapping[str, int], levels: Mapping[int, tuple[str, bool]]
) -> dict[str, Any]:
    """The `_NODES` nodes with most clients, each after its parent, and the last drawn node of each client."""
    by_node = _groups_by_node(tests, groups)
    only = {leaf: number[id] for id, leaf in tests.leaf.items() if tests.sizes[leaf] == 1}
    kept, shown = _drawn_nodes(tests)
    below = Counter(shown)
    nodes = []
    for place, node in enumerate(kept):
        tested, (group, verdict) = tests.nodes[node], by_node.get(node, (None, None))
        nodes.append({
            "parent": None if tested.parent is None else shown[tested.parent], "size": tests.sizes[node],
            "said": tested.summary() if tested.p else "", "cut": bool(tests.children[node]),
            "group": group, "verdict": verdict,
            "client": only.get(node), "left": below[place] - 1, "level": levels.get(node),
        })  # fmt: skip
    last = [-1] * len(number)
    for id, leaf in tests.leaf.items():
        last[number[id]] = shown[leaf]
    return {"alpha": tests.alpha, "nodes": nodes, "all": len(tests.nodes), "leaf": last}


def _groups_by_node(tests: Evidence, groups: Sequence[JudgedGroup]) -> dict[int, tuple[int, str]]:
    """(number, verdict) of the group at each leaf of the tree, and at each node that is a group."""
    by_client = {id: group for group in groups for id in group.members}
    by_node = {leaf: by_client[id] for id, leaf in tests.leaf.items()}
    by_node |= {group.node: group for group in groups if group.node is not None}
    return {node: (group.number, group.verdict) for node, group in by_node.items()}


def _drawn_nodes(tests: Evidence) -> tuple[list[int], list[int]]:
    """Return (the drawn nodes, for each node the place of itself or its nearest ancestor among them)."""
    # A parent has more clients than a child, and a lower number.
    kept = sorted(sorted(range(len(tests.nodes)), key=lambda node: (-tests.sizes[node], node))[:_NODES])
    place = {node: at for at, node in enumerate(kept)}
    shown: list[int] = []
    for node, tested in enumerate(tests.nodes):
        shown.append(place[node] if node in place else shown[tested.parent or 0])
    return kept, shown
