"""Collect the plain data of one page from run folders."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from pathlib import Path
from shlex import quote
from typing import Any

from fedkin.analysis.intervals import added
from fedkin.errors import RunError
from fedkin.records import reading
from fedkin.records.comparison import figures_of, figures_over_seeds, over_how_many, unequal_conditions
from fedkin.records.metrics import privacy_sentence
from fedkin.records.run import Result, find_runs, read_run, unfinished
from fedkin.report import ranks
from fedkin.report.features import FeatureBudget, features_of
from fedkin.report.graphs import evenly, graph_of, pack_values, sharing_of
from fedkin.report.runs import FEDAVG, LOCAL, ReportRun, counterpart, folder_of, given_of, report_runs, verdicts_of
from fedkin.report.sections import measures_of, missing_of, phases_of, risks_of
from fedkin.report.sentence import Subject, headline, sentence
from fedkin.report.units import student

# Largest numbers of points of all clients' curves, and of rounds of all methods' curves: above, rounds are left out.
_CURVE_POINTS = 400_000
_CURVE_ROUNDS = 8_000
_EVENTS = 12  # sentences about clients that joined and left


def collect(places: Sequence[Path]) -> dict[str, Any]:
    """The page's data, in JSON types only; raises RunError for a folder without a finished run."""
    runs = _runs(places)
    reported = report_runs(runs)
    by_label: dict[str, list[ReportRun]] = {}
    for entry in reported:
        by_label.setdefault(entry.label, []).append(entry)
    metric, seeds = runs[0].metric, sorted({run.seed for run in runs})
    about = Subject.of(by_label)
    rows, federations = _run_data(reported)
    return {
        "title": str(runs[0].summary.get("name", "run")), "scenario": str(runs[0].summary.get("scenario", "")),
        "metric": {"title": metric.title, "higher": metric.higher, "share": metric.share},
        "headline": headline(about), "sentence": sentence(about),
        "methods": [
            {"label": label, "title": of_method[0].title, "method": of_method[-1].run.method}
            for label, of_method in by_label.items()
        ],
        "shown": [entry.label for entry in reported].index(about.label),
        "unfinished": unfinished(places),
        "seeds": seeds, "student": [student(count) for count in range(len(seeds) + 1)],
        "runs": rows, "federations": federations,
        "table": [_row(label, of_method, runs) for label, of_method in by_label.items()],
        "phases": {
            label: phases for label, of_method in by_label.items()
            if (phases := phases_of([entry.run for entry in of_method]))
        },
        "warnings": _warnings(reported), "events": _client_events(reported),
        "unlike": [] if about.tuned else unequal_conditions({entry.title: entry.run for entry in reported}),
        "partial": over_how_many(runs),
        "missing": missing_of(reported),
        "privacy": [
            {"label": entry.label, "seed": entry.run.seed, "told": privacy_sentence(entry.run.summary["privacy"])}
            for entry in reported if entry.run.summary.get("privacy")
        ],
        "measures": measures_of(by_label),
        "ranks": ranks.ranks_section(ranks.ranking(ranks.entries(runs), metric.higher)),
        "chosen": about.chosen_on if about.candidates > 1 else "", "rerun": rerun(reported),
    }  # fmt: skip


def _runs(places: Sequence[Path]) -> list[Result]:
    """The runs in these folders, the baselines Local and FedAvg first, then by seed; raises RunError."""
    # A folder may be named twice: directly and inside another, or through a link.
    folders = list({folder.resolve(): folder for folder in find_runs(places)}.values())
    if not folders:
        raise RunError("name at least one run folder")
    runs = sorted(map(read_run, folders), key=lambda run: (run.method != LOCAL, run.method != FEDAVG, run.seed))
    metric = runs[0].metric
    if odd := next((run for run in runs if run.metric != metric), None):
        raise RunError(
            f"{odd.folder}: clients are compared by {odd.metric.title}, in {runs[0].folder} by {metric.title}; "
            "one report holds runs of one metric"
        )
    return runs


def _run_data(reported: Sequence[ReportRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (the page's data of each run, the facts of each federation); many or large runs get less space each."""
    runs = [entry.run for entry in reported]
    sharing = max(1, sum(bool(run.graphs) for run in runs))
    budget = FeatureBudget.shared(runs)
    points = max(2, _CURVE_POINTS // max(1, sum(len(run.client_facts) for run in runs)))
    rows: list[dict[str, Any]] = []
    federations: list[dict[str, Any]] = []
    for entry in reported:
        run, gain, federation = entry.run, entry.gain, _federation(entry.run)
        if federation not in federations:
            federations.append(federation)
        ids = federation["ids"]
        graph = graph_of(run, ids, sharing)
        rows.append(
            {
                "label": entry.label, "method": run.method, "seed": run.seed,
                "federation": federations.index(federation), "curve": _curve(run, max(20, _CURVE_ROUNDS // len(runs))),
                "clients": pack_values(run.values_by_round, ids, points, run.metric.share),
                "gain": None if gain is None else [_six_digits(gain.by_client.get(id)) for id in ids],
                "sure": verdicts_of(entry, ids), "risks": risks_of(run), "graph": graph,
                "undrawn": bool(run.graphs) and graph is None, "sharing": sharing_of(run, ids),
                "features": features_of(run, ids, budget),
            }
        )  # fmt: skip
    return rows, federations


def _federation(run: Result) -> dict[str, Any]:
    """The facts of the clients, each a list in the order of `ids`."""
    clients = run.client_facts.values()
    facts = {
        "ids": list(run.client_facts), "planted": [None if (g := c.get("group")) is None else str(g) for c in clients],
        "train": [c.get("n_train") for c in clients], "test": [c.get("n_test") for c in clients],
        "labels": [c.get("labels", {}) for c in clients],
        "about": [{key: str(value) for key, value in c.get("about", {}).items()} for c in clients],
        "classes": run.federation.get("task", {}).get("classes"),
    }  # fmt: skip
    return facts | ({"unseen": [id in run.unseen for id in run.client_facts]} if run.unseen else {})


def _warnings(reported: Sequence[ReportRun]) -> list[str]:
    """The warnings of all runs, each with its method and seeds."""
    seeds_of: dict[tuple[str, str], list[int]] = {}
    for entry in reported:
        for text in entry.run.summary.get("warnings") or ():
            seeds_of.setdefault((entry.title, text), []).append(entry.run.seed)
    return [
        f"{title}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {text}"
        for (title, text), seeds in seeds_of.items()
    ]


def _client_events(reported: Sequence[ReportRun]) -> list[str]:
    """The first sentences about clients that joined and left; each once, since all methods have the same events."""
    every = list(dict.fromkeys(text for entry in reported for text in entry.run.summary.get("events") or ()))
    more = len(every) - _EVENTS
    return [*every[:_EVENTS], *([f"clients joined or left in {more} more rounds (rounds.jsonl)"] if more > 0 else [])]


def _curve(run: Result, most: int) -> dict[str, list[Any]]:
    """Figures of at most `most` evaluated rounds, against rounds, cumulative bytes and seconds."""
    seconds = {row["round"]: row.get("total") for row in run.timing}
    kept = set(evenly([row["round"] for row in run.rounds if _has_figures(row, run.metric.name)], most))
    # One peer's upload is another's download: adding both directions would count it twice.
    ways = ("up",) if run.sent < run.summary["bytes"]["up"] + run.summary["bytes"]["down"] else ("up", "down")
    sent = accumulate(sum(row["bytes"][way] for way in ways) for row in run.rounds)
    curve: dict[str, list[Any]] = defaultdict(list)
    for row, so_far in zip(run.rounds, sent, strict=True):
        if row["round"] in kept:
            values = {"round": row["round"], "bytes": so_far, "seconds": seconds.get(row["round"])}
            for name, value in (values | _figures_of_round(row, run)).items():
                curve[name].append(_six_digits(value))
    return dict(curve)


def _figures_of_round(row: Mapping[str, Any], run: Result) -> dict[str, float | None]:
    """The figures of a round that are drawn; None if unknown."""
    scored, groups = row[run.metric.name] or {}, row["groups"] or {}
    figures = {name: scored.get(name) for name in ("mean", "worst10", "worst20", "std")}
    if run.unseen:
        figures |= {"unseen": (row.get("unseen") or {}).get("mean"), "gap": row.get("gap")}
    return figures | {name: groups.get(name) for name in ("found", "ari")}


def _has_figures(row: Mapping[str, Any], metric: str) -> bool:
    """Whether a round has something to draw."""
    return bool(row["groups"]) or any("mean" in (row.get(name) or {}) for name in (metric, "unseen"))


def _row(label: str, of_method: Sequence[ReportRun], runs: Sequence[Result]) -> dict[str, Any]:
    """A method's row: for each figure, [mean over seeds, half its 95 % interval], or None if unknown."""
    figures = []
    for entry in of_method:
        run = entry.run
        # Only if higher is better: shares of an error say nothing about fairness.
        last = list(run.values.values()) if run.metric.higher else []
        # Of each client, the events or the non-events, whichever are fewer; only in a risk task.
        rarer = [min(outcomes.events, len(outcomes) - outcomes.events) for id, outcomes in run.outcomes.items()
                 if outcomes.events is not None and id not in run.unseen]  # fmt: skip
        figures.append({
            **figures_of(run, entry.gain), "events": min(rarer, default=None), "entropy": ranks.entropy(last),
            "jain": ranks.jain(last),
        })  # fmt: skip
    half = student(len(of_method))
    return {
        "label": label,
        "seeds": len(of_method),
        "given": given_of(entry.run for entry in of_method),
        **{name: pair and [pair[0], half * pair[1]] for name, pair in figures_over_seeds(figures).items()},
        "adds": _adds([entry.run for entry in of_method], runs),
    }


def _adds(of_method: Sequence[Result], runs: Sequence[Result]) -> list[float] | None:
    """[what exchange adds to a method, half its interval]; None if a run of its control @self is missing."""
    gains = {}
    for run in of_method:
        control = counterpart(run, runs, run.method, "self")
        if control is not None and (gain := run.gains(control)):
            gains[run.seed] = gain
    adds = added(gains) if len(gains) == len(of_method) else None
    return None if adds is None else [adds.value, 0.0 if adds.high is None else adds.high - adds.value]


def _six_digits(value: float | None) -> float | None:
    """Round to six digits: more than the samples justify, and half the size on the page. Counts stay whole."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


# -- how the runs were made, and how to make them again ----------------------------------------------------------------


def rerun(reported: Sequence[ReportRun]) -> dict[str, Any]:
    """How to run again: command line, experiments, versions and machine; each distinct one once.

    The command is empty if no command can do it, because samples came from a Python program.
    """
    runs = [entry.run for entry in reported]
    command, experiment = _command(runs)
    sources = {run.settings.get("data", {}).get("source") for run in runs}
    return {
        "command": command, "experiment": experiment, "oneSplit": sources <= {"csv", "parquet"},
        "needsData": not sources <= {None, "digits"},
        "runs": [
            {
                "label": entry.label, "seed": entry.run.seed, "rounds": entry.run.summary["rounds"],
                **{name: entry.run.summary.get(name) for name in ("engine", "dtype", "parameters")},
                "precision": entry.run.summary.get("precision", entry.run.summary.get("dtype")),
                "seconds": entry.run.summary["seconds"]["total"],
            }
            for entry in reported
        ],
        "experiments": _different(reported, experiment),
        "versions": _different_tables([run.summary.get("versions") or {} for run in runs]),
        "machine": _different_tables([run.summary.get("machine") or {} for run in runs]),
    }  # fmt: skip


def _command(runs: Sequence[Result]) -> tuple[str, str]:
    """Return (the command line that makes these runs again, the experiment file that it names)."""
    # Settings hold only the name of a federation that was a Python object.
    if any(isinstance(run.settings.get("federation"), str) and "data" not in run.settings for run in runs):
        return "", ""
    # The command line cannot give labels to methods.
    comparison = None if any(run.label for run in runs) else _comparison(runs)
    if comparison is not None:
        return comparison
    if len(runs) == 1:
        return "fedkin run experiment.toml", _experiment(runs[0])
    return "fedkin run experiment.toml   # once for each experiment below", ""


def _comparison(runs: Sequence[Result]) -> tuple[str, str] | None:
    """Return (command, experiment) of a comparison if these are exactly its runs, else None."""
    folders = [folder_of(run) for run in runs]
    home, *others = {folder.parent for folder in folders}
    experiment = home / "experiment.toml"
    if others or not (home / "plan.json").is_file() or not experiment.is_file():
        return None
    reading.check_unchanged(home, "plan.json", "experiment.toml")
    planned = reading.plan_in(home)
    names, seeds = planned.methods, [str(seed) for seed in planned.seeds]
    if {f"{name}-seed{seed}" for name, seed in product(names, seeds)} != {folder.name for folder in folders}:
        return None
    reading.settings_in(experiment)
    command = f"fedkin compare experiment.toml --methods {quote(','.join(names))} --seeds {','.join(seeds)}"
    return command, experiment.read_text(encoding="utf-8")


def _different(reported: Sequence[ReportRun], shown: str) -> list[dict[str, str]]:
    """Each method's experiment, except `shown`; experiments that differ only in the seed are joined."""
    by_settings: dict[str, tuple[str, str, list[int]]] = {}
    for entry in reported:
        settings = entry.run.settings
        same = json.dumps([entry.label, {**settings, "run": {**settings.get("run", {}), "seed": None}}], default=str)
        by_settings.setdefault(same, (entry.label, _experiment(entry.run), []))[2].append(entry.run.seed)
    return [
        {"name": f"{label}, seed {', '.join(map(str, seeds))}", "text": text}
        for label, text, seeds in by_settings.values() if text and text != shown
    ]  # fmt: skip


def _different_tables(tables: Sequence[dict[str, Any]]) -> dict[str, str]:
    """One table for all runs; where runs differ, it lists every value."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: ", ".join(dict.fromkeys(str(table[key]) for table in tables if key in table)) for key in keys}


def _experiment(run: Result) -> str:
    """The text of the experiment file; empty without one."""
    path = folder_of(run) / "experiment.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
