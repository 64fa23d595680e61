"""What a run sent, what it missed, and its further metrics: data and tables of these sections of the report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow.compute as pc

from fedkin.engines.base import SERVER
from fedkin.records.metrics import MISSING
from fedkin.records.run import Result
from fedkin.report.units import megabytes

__all__ = ["Phase", "measures_html", "missing_of", "missing_tables", "phases_in", "phases_of", "traffic_tables"]

_WAYS = {"up": "client to server", "down": "server to client", "peer": "client to client"}
_ROWS = 200  # clients in a table


@dataclass(frozen=True)
class Phase:
    """The messages of one phase of a method in one direction ("up", "down", "peer"), over all rounds.

    rounds: the number of rounds with such messages; once: whether no client went through the phase twice, and it
    occurred in fewer than half of the rounds.
    """

    name: str
    way: str
    messages: int
    bytes: int
    floats: int
    rounds: int
    once: bool


def phases_in(run: Result) -> list[Phase]:
    """Phases and ways of a run in the order in which they first occur."""
    table, rounds = run.message_table, run.summary["rounds"]
    # What was never sent has no bytes.
    table = table.filter(pc.greater(table.column("bytes"), 0))
    for column in ("from", "to"):
        table = table.append_column(f"{column}_server", pc.equal(table.column(column), SERVER))
    keys = ["phase", "from_server", "to_server"]
    # A single thread keeps the order of first occurrence.
    figures = [("bytes", "count"), ("bytes", "sum"), ("floats", "sum"), ("round", "count_distinct")]
    total = table.group_by(keys, use_threads=False).aggregate(figures).to_pylist()
    # Number of rounds for each sender and receiver; more than one makes a phase a repeated one.
    pairs = table.group_by([*keys, "from", "to"]).aggregate([("round", "count_distinct")])
    most = pairs.group_by(keys).aggregate([("round_count_distinct", "max")]).to_pylist()
    often = {tuple(row[key] for key in keys): row["round_count_distinct_max"] for row in most}
    return [
        Phase(
            row["phase"], "down" if row["from_server"] else "up" if row["to_server"] else "peer",
            row["bytes_count"], row["bytes_sum"], row["floats_sum"], row["round_count_distinct"],
            once=often[tuple(row[key] for key in keys)] == 1 and 2 * row["round_count_distinct"] < rounds,
        )
        for row in total
    ]  # fmt: skip


def phases_of(
    runs: Sequence[Result], labels: Sequence[str], phases: Sequence[Sequence[Phase]]
) -> list[dict[str, Any]]:  # fmt: skip
    """Each method's phases, mean over its runs; `once`: whether a phase is one-off in all runs that have it."""
    rows = []
    for label in dict.fromkeys(labels):
        mine = [(run, found) for run, found, other in zip(runs, phases, labels, strict=True) if other == label]
        by_phase: dict[tuple[str, str], list[Phase]] = defaultdict(list)
        for phase in [phase for _, found in mine for phase in found]:
            by_phase[phase.name, phase.way].append(phase)
        clients = statistics.fmean(len(run.client_facts) - len(run.unseen) for run, _ in mine)
        rounds = statistics.fmean(int(run.summary["rounds"]) for run, _ in mine)
        for (name, way), same in by_phase.items():
            sums = {what: sum(getattr(phase, what) for phase in same) for what in ("messages", "bytes", "floats")}
            rows.append({
                "label": label, "phase": name, "way": way, "once": all(phase.once for phase in same),
                "rounds": statistics.fmean(phase.rounds for phase in same), "ofRounds": rounds, "clients": clients,
                **{what: total / len(mine) for what, total in sums.items()},
            })  # fmt: skip
    return rows


def traffic_tables(phases: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> tuple[Any, Any]:
    """(heads, rows of HTML) of the summary, one-off beside repeated, and of each phase."""
    return _summary(phases, titles), _every(phases, titles)


def _summary(phases: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Any:
    heads = [
        ("method", ""),
        ("once, a client", "what is sent once, over the number of clients"),
        ("once, in all", "phases that no client goes through twice, such as FLT's signatures"),
        ("a round", "all other messages, over the number of rounds"),
        ("repeated, a client", "all other messages, over the number of clients"),
        ("repeated, in all", "all other messages of the run"),
        ("share once", "of all bytes"),
    ]
    rows = []
    for label in dict.fromkeys(phase["label"] for phase in phases):
        mine = [phase for phase in phases if phase["label"] == label]
        once, again = (
            {what: sum(p[what] for p in mine if p["once"] is kind) for what in ("bytes", "floats")}
            for kind in (True, False)
        )
        clients, rounds = mine[0]["clients"], mine[0]["ofRounds"]
        total = once["bytes"] + again["bytes"]
        rows.append(
            [
                titles[label], _both(once, clients), _both(once), _both(again, rounds), _both(again, clients),
                _both(again), f"{100 * once['bytes'] / total:.1f} %" if once["bytes"] else "–",
            ]
        )  # fmt: skip
    return heads, rows


def _every(phases: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Any:
    names = ("method", "phase", "way", "when", "messages", "bytes", "bytes a client", "floats", "floats a client")
    rows = [
        [
            titles[p["label"]], escape(p["phase"]), _WAYS[p["way"]],
            "once" if p["once"] else f"in {p['rounds']:,.0f} of {p['ofRounds']:,.0f} rounds",
            f"{p['messages']:,.0f}", megabytes(p["bytes"]), megabytes(p["bytes"] / p["clients"]),
            f"{p['floats']:,.0f}", f"{p['floats'] / p['clients']:,.0f}",
        ]
        for p in phases
    ]  # fmt: skip
    return [(name, "") for name in names], rows


def _both(amount: Mapping[str, float], parts: float = 1) -> str:
    """Bytes, with floats below them."""
    if not amount["bytes"] or not parts:
        return '<span class="quiet">–</span>'
    return f"{megabytes(amount['bytes'] / parts)}<small>{amount['floats'] / parts:,.0f} floats</small>"


def missing_of(runs: Sequence[Result], labels: Sequence[str]) -> list[dict[str, Any]]:
    """What is missing in each run that lacks something."""
    return [
        {"label": label, "seed": run.seed, **run.summary["missing"]}
        for run, label in zip(runs, labels, strict=True)
        if run.summary.get("missing")
    ]


def missing_tables(missing: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> tuple[Any, Any]:
    """(heads, rows of HTML) of the numbers of each kind, and of clients that failed or whose messages were refused."""
    shown = [kind for kind in MISSING if any(kind in one["kinds"] for one in missing)]
    counts = [
        [titles[one["label"]], str(one["seed"]), *(f"{one['kinds'].get(kind, 0):,}" for kind in shown)]
        for one in missing
    ]  # fmt: skip
    heads = [("method", ""), ("seed", ""), *((kind, f"messages {MISSING[kind]}") for kind in shown)]
    clients = [
        [
            titles[one["label"]], str(one["seed"]), escape(id), f"{first['count']:,}", f"{first['round']:,}",
            escape(first["phase"]), escape(first["reason"]),
        ]
        for one in missing for id, first in one["clients"].items()
    ]  # fmt: skip
    names = ("method", "seed", "client", "messages", "first in round", "phase", "reason")
    return (heads, counts), ([(name, "") for name in names], clients[:_ROWS])


def measures_html(runs: Sequence[Result], labels: Sequence[str]) -> str:
    """A table of methods, and one of clients; empty if no run has further metrics."""
    found = {name: each for run in runs for name, each in (run.summary.get("metrics") or {}).items()}
    if not found:
        return ""
    heads = "".join(f"<th>{escape(each['title'])}, {_better(each)} is better</th>" for each in found.values())
    rows = "".join(
        f"<tr><th>{escape(label)}</th>"
        + "".join(f"<td>{_metric_cell(runs, labels, label, name)}</td>" for name in found)
        + "</tr>"
        for label in dict.fromkeys(labels)
    )
    table = f"<table><thead><tr><th>method</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Further metrics">{table}</div>'
        '<p class="note">Mean over clients after the last round, and the mean of the worst 10 % of them; with several '
        f"seeds, the mean over seeds ± standard deviation.</p>{_metric_clients(runs, labels, list(found))}"
    )


def _better(found: Mapping[str, Any]) -> str:
    return "higher" if found["higher"] else "lower"


def _metric_cell(runs: Sequence[Result], labels: Sequence[str], label: str, name: str) -> str:
    own = [run.summary.get("metrics") or {} for run, other in zip(runs, labels, strict=True) if other == label]
    mine = [each.get(name) for each in own]
    means = [each.get("mean") for each in mine if each is not None]
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(mine):
        return "-"
    spread = f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
    worst = statistics.fmean([each["worst10"] for each in mine if each is not None])
    return f"{statistics.fmean(known):.3f}{spread} (worst 10 %: {worst:.3f})"


def _metric_clients(runs: Sequence[Result], labels: Sequence[str], names: Sequence[str]) -> str:
    """Each client's values with the first seed."""
    first: dict[str, dict[str, Any]] = {}
    for run, label in zip(runs, labels, strict=True):
        first.setdefault(label, run.summary.get("metrics") or {})
    ids = sorted({id for found in first.values() for each in found.values() for id in each["values"]})
    heads = "".join(f"<th>{escape(label)}: {escape(name)}</th>" for label in first for name in names)
    rows = "".join(
        f"<tr><th>{escape(id)}</th>"
        + "".join(_td(first[label].get(name, {}).get("values", {}).get(id)) for label in first for name in names)
        + "</tr>"
        for id in ids[:_ROWS]
    )
    more = f"<p class='note'>The first {_ROWS} of {len(ids):,} clients.</p>" if len(ids) > _ROWS else ""
    return (
        f'<details><summary>Every client, first seed</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Further metrics of every client"><table><thead><tr><th>client</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}</details>"
    )


def _td(value: float | None) -> str:
    return "<td>-</td>" if value is None else f"<td>{value:.3f}</td>"
