"""The sections of a report as HTML: texts and tables; the charts' places are empty until the script runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fedkin.report.missing import missing_tables
from fedkin.report.risks import HEADS as RISK_HEADS
from fedkin.report.risks import risk_rows
from fedkin.report.sentence import LOCAL
from fedkin.report.sure import COUNTED, RULE
from fedkin.report.templates import (
    CHOOSER,
    CLIENTS,
    CURVES,
    FEATURES,
    GAIN,
    GRAPH,
    INFLUENCE,
    MATRIX,
    MOVES,
    PANEL,
    RISKS,
    SHARING,
    TESTS,
    UNDRAWN,
    chart,
)
from fedkin.report.traffic import traffic_tables
from fedkin.report.units import megabytes

__all__ = ["Section", "section", "sections"]

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `nav` is its name in the table of contents."""

    id: str
    nav: str
    html: str


def sections(data: Data) -> list[Section]:
    """The sections for which there are data, in the page's order."""
    graphs = any(run["graph"] for run in data["runs"])
    undrawn = any(run["undrawn"] for run in data["runs"])
    grouped = any(run["graph"] and run["graph"]["history"] for run in data["runs"])
    tested = any(run["graph"] and run["graph"]["verdicts"] for run in data["runs"])
    gains = any(run["gain"] for run in data["runs"])
    shared = any(run["sharing"] for run in data["runs"])
    central = any(frame["values"] for run in data["runs"] if run["graph"] for frame in run["graph"]["frames"])
    features = any(run["features"] for run in data["runs"])
    risks, ranks = any(run["risks"] for run in data["runs"]), data["ranks"]
    title = data["metric"]["title"]
    title = title[:1].upper() + title[1:]
    # One evaluated round is a point, which the comparison has as figures.
    curves = any(len(run["curve"].get("round") or ()) > 1 for run in data["runs"])
    found = [
        section("accuracy", title, f"{title} over the rounds", CURVES) if curves else None,
        section("comparison", "Comparison", "The methods side by side", _comparison(data)),
        section("ranks", "Ranks", "Which methods are told apart", ranks["html"]) if ranks and ranks["html"] else None,
        section("clients", "Clients", "Client by client", _clients(data, gains, graphs)),
        section("measures", "Metrics", "Further metrics", data["measures"]) if data["measures"] else None,
        section("risks", "Risks", "Are the risks true, and worth acting on", _risks(data)) if risks else None,
        section("graph", "Graph", "The client graph", GRAPH if graphs else UNDRAWN) if graphs or undrawn else None,
        section("tests", "Tests", "Why these groups: the tests", TESTS) if tested else None,
        section("moves", "Moves", "Who moved group, and when", MOVES) if grouped else None,
        section("matrix", "Matrix", "Similarity of clients", MATRIX) if graphs else None,
        section("sharing", "Weights", "Weights, and what clients have in common", SHARING) if shared else None,
        section("influence", "Influence", "Influential clients, by region", INFLUENCE) if central else None,
        section("features", "Features", "Classes in feature space, and heads", FEATURES) if features else None,
        section("traffic", "Traffic", "What was sent, once and every round", _traffic(data))
        if data["phases"]
        else None,
        section("missing", "Missing", "What was lost, refused, or never came", _missing(data))
        if data["missing"]
        else None,
        section("settings", "Settings", "Settings, and how to run this again", _settings(data)),
    ]
    return [each for each in found if each is not None]


def section(id: str, nav: str, heading: str, body: str) -> Section:
    """A section of the page; `heading` and `body` are HTML."""
    html = f'<section id="{id}" aria-labelledby="{id}-h"><h2 id="{id}-h">{heading}</h2>\n{body}\n</section>'
    return Section(id, nav, html)


_NO_GAIN = """<p class="note">Gain over training alone is not shown: no run of Local with the same seed, clients and
settings is among these runs.</p>"""
_ONLY_LOCAL = """<p class="note">Gain over training alone is shown for methods other than Local, and
all of these runs are Local's.</p>"""


def _clients(data: Data, gains: bool, graphs: bool) -> str:
    """The choice for the sections below, the gain per client, and the followed client if no graph section has it."""
    scope = (
        '<p class="note">All sections from here to the traffic are about this method and seed.</p>' if graphs else ""
    )
    none = _NO_GAIN if _kinds(data) - {LOCAL} else _ONLY_LOCAL
    return CHOOSER + scope + (GAIN if gains else none) + CLIENTS + ("" if graphs else PANEL)


def _kinds(data: Data) -> set[str]:
    """The methods by their own names, whatever their labels."""
    return {method["method"] for method in data["methods"]}


def _table(heads: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """Heads as (text, explanation); rows of HTML, whose first cell is the row's heading."""
    head = "".join(f'<th scope="col" title="{escape(about)}">{escape(text)}</th>' for text, about in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    region = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{region}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


Writer = Callable[[float], str]


def _percent(digits: int) -> Writer:
    return lambda share: f"{100 * share:.{digits}f} %"


def _points(sign: str = "") -> Writer:
    return lambda share: f"{100 * share:{sign}.1f}"


def _count(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _plain(digits: int, sign: str = "") -> Writer:
    return lambda value: f"{value:{sign}.{digits}f}"


Column = tuple[str, str, str, Writer]


def _columns(metric: Mapping[str, Any]) -> Sequence[Column]:
    """Key, heading, explanation, and how a value is written."""
    title, share = metric["title"], metric["share"]
    value = _percent(1) if share else _plain(4)
    more, points = (_points("+"), ", in points") if share else (_plain(4, "+"), "")
    gain = f"{title} above training alone (Local)" if share else f"how much better {title} is than alone (Local)"
    return (
        ("mean", "mean", f"mean over clients of test {title} after the last round", value),
        ("weighted", "weighted", "the same, each client weighted by its number of test samples", value),
        ("pooled", "pooled", f"{title} over the test samples of all clients together", value),
        ("worst10", "worst 10 %", f"mean {title} of the worst 10 % of clients", value),
        ("worst20", "worst 20 %", f"mean {title} of the worst 20 % of clients", value),
        ("unseen", "unseen", f"mean over clients that never take part of test {title}", value),
        ("gap", "gap", f"how much worse the unseen clients' mean is than that of the others{points}", more),
        ("gain", "gain", f"mean over clients of {gain}{points}", more),
        ("adds", "exchange adds", f"the method minus its @self, ± half the 95 % interval over seeds{points}", more),
        ("hurt", "worse", "share of clients whose figure is lower than alone, however little", _percent(0)),
        ("gained", "gained", "clients that surely gained over Local", _count),
        ("lost", "hurt", "clients that are surely worse than Local", _count),
        ("apart", "?", "clients that cannot be told apart from Local", _count),
        ("few", "too few", "clients with too few events or test samples for a verdict", _count),
        ("events", "least events", "events, or test samples without, of the client that has fewest", _count),
        ("found", "groups", "groups in the last round's graph", _count),
        ("ari", "ARI", "agreement of these groups with the planted ones: 1 when equal, 0 as by chance", _plain(2)),
        ("epsilon", "epsilon", "largest epsilon of any client, for the noise on what it sent ([privacy])", _plain(2)),
        ("bytes", "sent", "all messages of a run", megabytes),
        ("std", "std", f"standard deviation over clients{points}", _points() if share else _plain(4)),
        ("variance", "variance", "variance over clients" + (" of the percentage" if share else ""),
         _plain(1 if share else 4)),
        ("entropy", "entropy", f"entropy of clients' shares of {title}, over log n: 1 when all are equal", _plain(3)),
        ("jain", "Jain's index", f"Jain's index of clients' {_plural(title)}: 1 when all are equal", _plain(3)),
        ("seconds", "seconds", "of a run, on the machine that ran it", _plain(1)),
    )  # fmt: skip


def _plural(title: str) -> str:
    return "accuracies" if title == "accuracy" else f"values of {title}"


def _comparison(data: Data) -> str:
    rows = data["table"]
    shown = [column for column in _columns(data["metric"]) if any(row.get(column[0]) for row in rows)]
    # Where a mean weighted by samples is the figure over all samples, one column says both.
    if all(row["weighted"] == row["pooled"] for row in rows):
        shown = [
            ("pooled", "weighted", "over all test samples: the mean weighted by them", column[3])
            if column[0] == "pooled" else column
            for column in shown if column[0] != "weighted"
        ]  # fmt: skip
    titles = _titles(data)
    cells = [
        [
            titles[row["label"]] + _given(row),
            *(_cell(row.get(key), row["seeds"], key, write) for key, _, _, write in shown),
        ]
        for row in rows
    ]
    heads = [("method", ""), *((name, about) for _, name, about, _ in shown)]
    seeds = max(row["seeds"] for row in rows)
    notes = [f"Mean over {seeds} seeds, with their sample standard deviation."] if seeds > 1 else []
    if data["chosen"]:
        title = titles[data["runs"][data["shown"]]["label"]]
        good = ", so that its figures here are too good on average" if "test" in data["chosen"] else ""
        notes.append(f"The sentence at the top is about {title}, chosen on {escape(data['chosen'])}{good}.")
    if any(row["gained"] for row in rows):
        notes.append(escape(RULE))
    if data["ranks"] and data["ranks"]["why"]:
        notes.append(escape(data["ranks"]["why"][:1].upper() + data["ranks"]["why"][1:]) + ".")
    if not any(row["mean"] for row in rows):
        notes.append(f"No client has test data, so there is no {data['metric']['title']}.")
    elif len(rows) > 1 and _kinds(data) != {LOCAL} and not any(row["gain"] for row in rows):
        like = " with the same seeds, clients and settings" if LOCAL in _kinds(data) else ""
        notes.append(f"Gain over training alone needs a run of Local{like}.")
    noised = "".join(
        f"<li>{titles[one['label']]}, seed {one['seed']}: {escape(one['told'])}</li>" for one in data["privacy"]
    )
    about = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for _, name, text, _ in shown)
    return (
        _table(heads, cells, "Comparison of the methods")
        + f'<p class="note">{" ".join(notes)}</p>'
        + (f"<h3>Privacy of uploads</h3><ul>{noised}</ul>" if noised else "")
        + _details("What the columns are", f"<ul>{about}</ul>")
    )


def _titles(data: Data) -> dict[str, str]:
    return {method["label"]: escape(method["title"]) for method in data["methods"]}


def _given(row: Data) -> str:
    return f"<small>{escape(', '.join(row['given']))}</small>" if row["given"] else ""


def _cell(value: Sequence[float] | None, seeds: int, key: str, write: Writer) -> str:
    if value is None:
        return '<span class="quiet">–</span>'
    text = escape(write(value[0]).replace("-", "−"))
    if seeds == 1 or key in ("bytes", "found", "hurt", "events", *COUNTED):
        return text
    return f"{text}<small>± {escape(write(value[1]).lstrip('+').removesuffix(' %'))}</small>"


def _risks(data: Data) -> str:
    note = "Wald’s 95 % intervals"
    if len(data["seeds"]) > 1:
        note = "mean over seeds with their standard deviation, 95 % intervals by Rubin’s rules"
    about = "<b>Brier score</b>: mean squared difference of risk and event. " + " ".join(
        f"<b>{name}</b>: {text}." for name, text in RISK_HEADS[4:]
    )
    return (
        _table(RISK_HEADS, risk_rows(data["runs"], _titles(data)), "Calibration of the methods")
        + f'<p class="note">The last test outcomes of all clients that take part, pooled; {note}. {about} A single '
        "client’s risks may be less true than those of all together.</p>" + RISKS
    )


def _traffic(data: Data) -> str:
    titles = _titles(data)
    (heads, rows), (all_heads, all_rows) = traffic_tables(data["phases"], titles)
    silent = [titles[row["label"]] for row in data["table"] if not row["bytes"] or not row["bytes"][0]]
    return (
        _table(heads, rows, "What is sent once, and what is sent again and again")
        + '<p class="note">Once: phases that no client goes through twice, and that take place in fewer than half of '
        "the rounds, such as FLT’s encoder and signatures. A client: over all clients that take part in the run.</p>"
        + chart("traffic-plot", "Bytes of each phase")
        + (f"<p>{' and '.join(silent)}: nothing sent.</p>" if silent else "")
        + _details("Every phase as a table", _table(all_heads, all_rows, "Every phase"))
        + '<p class="note">All messages of a run in their encoded size, graph building included'
        + (", mean over seeds" if len(data["seeds"]) > 1 else "")
        + ".</p>"
    )


def _missing(data: Data) -> str:
    (heads, rows), (named, clients) = missing_tables(data["missing"], _titles(data))
    return _table(heads, rows, "Messages that are missing") + (
        '<p class="note">Messages were refused of these clients, or they failed; the first reason of each.</p>'
        + _table(named, clients, "Clients whose messages were refused, or that failed")
        if clients
        else ""
    )


def _settings(data: Data) -> str:
    again = data["rerun"]
    texts = [{"name": "experiment.toml", "text": again["experiment"]}] if again["experiment"] else []
    files = "".join(
        _details(one["name"], f"<pre><code>{escape(one['text'])}</code></pre>")
        for one in [*texts, *again["experiments"]]
    )
    made = {**again["versions"], **again["machine"]}
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in made.items())
    keys = ("label", "seed", "rounds", "engine", "dtype", "precision", "parameters", "seconds")
    runs = [[escape(_text(run[key])) for key in keys] for run in again["runs"]]
    heads = [(name, "") for name in ("method", *keys[1:])]
    title = data["metric"]["title"]
    # Older records name the GPU "card".
    gpu = " on the same GPU" if {"gpu", "card"} & set(again["machine"]) else ""
    more = "Add --data-root DIR if the data does not lie in ./data. " if again["command"] and again["needsData"] else ""
    how = (
        "<p>With the settings below saved as <code>experiment.toml</code>:</p>"
        f'<pre id="command"><code>{escape(again["command"])}</code></pre>'
        if again["command"]
        else "<p>A program in Python handed these samples over, so no command can read them: run that program again. "
        "The settings are below.</p>"
    )
    return (
        f'{how}<p class="note">{more}The same versions{gpu} give the same {title}, groups and bytes; seconds depend on '
        f"the machine.</p>{files}<h3>Versions and machine</h3><dl>{facts}</dl>"
        + _details("The runs", _table(heads, runs, "The runs"))
    )


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
