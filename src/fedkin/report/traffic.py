"""The traffic of each phase of a method, with one-off and repeated phases apart (FLT, Table VI)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedkin.report.reading import Phase, Run
from fedkin.report.units import megabytes

__all__ = ["phases_of", "traffic_tables"]

_WAYS = {"up": "client to server", "down": "server to client", "peer": "client to client"}


def phases_of(label: str, mine: Sequence[Run]) -> list[dict[str, Any]]:
    """A method's phases, mean over its runs; `once`: whether a phase is one-off in all runs that have it."""
    found: dict[tuple[str, str], list[Phase]] = defaultdict(list)
    for run in mine:
        for phase in run.phases:
            found[phase.name, phase.way].append(phase)
    clients = statistics.fmean(len(run.clients) - len(run.unseen) for run in mine)
    rounds = statistics.fmean(int(run.summary["rounds"]) for run in mine)
    return [
        {
            "label": label,
            "phase": name,
            "way": way,
            "once": all(phase.once for phase in phases),
            "rounds": statistics.fmean(phase.rounds for phase in phases),
            "ofRounds": rounds,
            "clients": clients,
            **{
                what: sum(getattr(phase, what) for phase in phases) / len(mine)
                for what in ("messages", "bytes", "floats")
            },
        }
        for (name, way), phases in found.items()
    ]


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
