"""The sections of a report as HTML: texts and tables stand here, the charts' places are empty until the script runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fedkin.report.tables import megabytes

__all__ = ["Section", "sections"]

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `nav` is its name in the list of sections."""

    id: str
    nav: str
    html: str


def sections(data: Data) -> list[Section]:
    """Those that the data has something for, in the page's order."""
    graphs = any(run["graph"] for run in data["runs"])
    grouped = any(run["graph"] and run["graph"]["history"] for run in data["runs"])
    gains = any(run["gain"] for run in data["runs"])
    curves = any(run["curve"].get("round") for run in data["runs"])
    found = [
        _section("accuracy", "Accuracy", "Accuracy over the rounds", _CURVES) if curves else None,
        _section("comparison", "Comparison", "The methods side by side", _comparison(data)),
        _section("clients", "Clients", "Client by client", _chooser(data, gains)),
        _section("graph", "Graph", "The client graph", _GRAPH) if graphs else None,
        _section("moves", "Moves", "Who moved group, and when", _MOVES) if grouped else None,
        _section("matrix", "Matrix", "Similarity of clients, ordered by group", _MATRIX) if graphs else None,
        _section("traffic", "Traffic", "What was sent, phase by phase", _traffic(data)) if data["phases"] else None,
        _section("settings", "Settings", "Settings, and how to run this again", _settings(data)),
    ]
    return [section for section in found if section is not None]


def _section(id: str, nav: str, heading: str, body: str) -> Section:
    html = f'<section id="{id}" aria-labelledby="{id}-h"><h2 id="{id}-h">{heading}</h2>\n{body}\n</section>'
    return Section(id, nav, html)


_CURVES = """<div class="controls">
  <label>Show <select id="curve-y"></select></label>
  <fieldset id="curve-x"><legend>against</legend></fieldset>
</div>
<div class="legend" id="curve-legend" role="group" aria-label="Methods shown"></div>
<div class="chart" id="curves" role="img" aria-label="Curves of the methods"></div>
<p class="note" id="curve-note"></p>"""

_GRAPH = """<div class="beside">
  <div>
    <div class="controls slider">
      <button type="button" id="play" aria-label="Play the rounds">▶</button>
      <input type="range" id="round" min="0" max="0" value="0" aria-label="Round of the graph">
      <output id="round-text" for="round"></output>
    </div>
    <div class="chart square" id="graph-plot" role="img" aria-label="Clients as points, strong similarities as lines"></div>
    <div class="legend" id="graph-legend"></div>
    <p class="note" id="graph-note"></p>
  </div>
  <aside id="client" aria-live="polite" aria-label="The client that is followed"></aside>
</div>"""

_MOVES = """<p id="moves-text"></p>
<div class="chart" id="history" role="img" aria-label="Group of each client over the rounds"></div>
<p class="note" id="history-note"></p>
<div class="scroll" id="moves-table"></div>"""

_MATRIX = """<p class="note" id="matrix-note"></p>
<div class="chart square" id="matrix-plot" role="img" aria-label="Similarity matrix"></div>"""


def _chooser(data: Data, gains: bool) -> str:
    """What the sections below show, and the gain per client."""
    without = "" if gains else (
        '<p class="note">Gain over training alone is not shown: no run of Local with the same seed and clients is '
        "among these runs.</p>"
    )  # fmt: skip
    body = """<div class="controls" id="chooser">
  <label>Method <select id="method"></select></label>
  <label>Seed <select id="seed"></select></label>
  <label>Follow client <input id="follow" list="ids" autocomplete="off" placeholder="name" size="14"></label>
  <datalist id="ids"></datalist>
  <button type="button" id="unfollow">Clear</button>
</div>
<p class="note">Everything from here to the matrix is about this method and seed.</p>"""
    chart = """<p id="gain-text"></p>
<div class="chart" id="gain" role="img" aria-label="Gain over training alone, client by client"></div>
<p class="note" id="gain-note"></p>"""
    return body + without + (chart if gains else "") + (
        "" if any(run["graph"] for run in data["runs"])
        else '<aside id="client" aria-live="polite" aria-label="The client that is followed"></aside>'
    )  # fmt: skip


# Column: heading, its title, how a value is written, and how its spread is.
Writer = Callable[[float], str]
_COLUMNS: Sequence[tuple[str, str, str, Writer]] = (
    ("mean", "mean", "mean over clients of test accuracy after the last round", lambda v: f"{100 * v:.1f} %"),
    ("worst10", "worst 10 %", "mean accuracy of the worst 10 % of clients", lambda v: f"{100 * v:.1f} %"),
    ("worst20", "worst 20 %", "mean accuracy of the worst 20 % of clients", lambda v: f"{100 * v:.1f} %"),
    ("std", "std", "standard deviation over clients, in points", lambda v: f"{100 * v:.1f}"),
    ("variance", "variance", "variance over clients of the percentage", lambda v: f"{v:.1f}"),
    ("entropy", "entropy", "entropy of clients' shares of accuracy, over log n: 1 when all are equal", lambda v: f"{v:.4f}"),
    ("jain", "Jain's index", "Jain's index over clients: 1 when all are equal", lambda v: f"{v:.4f}"),
    ("gain", "gain over Local", "mean over clients of accuracy above Local's, in points", lambda v: f"{100 * v:+.1f}"),
    ("hurt", "hurt", "share of clients worse off than with Local", lambda v: f"{100 * v:.0f} %"),
    ("found", "groups", "groups in the last round's graph", lambda v: f"{v:.1f}".removesuffix(".0")),
    ("ari", "ARI", "agreement of the groups with the planted ones: 1 when equal, 0 as by chance", lambda v: f"{v:.2f}"),
    ("bytes", "sent", "all messages of a run", megabytes),
    ("seconds", "seconds", "of a run, on the machine that ran it", lambda v: f"{v:.1f}"),
)  # fmt: skip


def _comparison(data: Data) -> str:
    rows = data["table"]
    titles = {method["label"]: method["title"] for method in data["methods"]}
    shown = [column for column in _COLUMNS if any(row.get(column[0]) for row in rows)]
    head = "".join(f'<th scope="col" title="{escape(about)}">{escape(name)}</th>' for _, name, about, _ in shown)
    body = "".join(
        f'<tr><th scope="row">{escape(titles[row["label"]])}</th>'
        + "".join(f"<td>{_cell(row.get(key), row['seeds'], key, write)}</td>" for key, _, _, write in shown)
        + "</tr>"
        for row in rows
    )
    seeds = max(row["seeds"] for row in rows)
    several = f"Mean over {seeds} seeds; after ± their sample standard deviation. " if seeds > 1 else ""
    missing = [] if any(row["gain"] for row in rows) or len(rows) == 1 else ["Gain over Local needs a run of Local."]
    if not any(row["mean"] for row in rows):
        missing.append("No client has test data, so there is no accuracy.")
    notes = "".join(f"<li><b>{escape(name)}</b>: {escape(about)}</li>" for _, name, about, _ in shown)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Comparison table"><table><thead><tr><th scope="col">method</th>{head}</tr>'
        f'</thead><tbody>{body}</tbody></table></div><p class="note">{several}{" ".join(missing)}</p>'
        f"<details><summary>What the columns are</summary><ul>{notes}</ul></details>"
    )


def _cell(value: Sequence[float] | None, seeds: int, key: str, write: Writer) -> str:
    if value is None:
        return '<span class="quiet">–</span>'
    text = escape(write(value[0]))
    if seeds == 1 or key in ("bytes", "found", "hurt"):
        return text
    return f'{text} <span class="quiet">± {escape(write(value[1]).lstrip("+").removesuffix(" %"))}</span>'


def _traffic(data: Data) -> str:
    titles = {method["label"]: method["title"] for method in data["methods"]}
    ways = {"up": "client to server", "down": "server to client", "peer": "client to client"}
    rows = "".join(
        f'<tr><th scope="row">{escape(titles[row["label"]])}</th><td>{escape(row["phase"])}</td><td>{ways[row["way"]]}</td>'
        f"<td>{row['messages']:,.0f}</td><td>{megabytes(row['bytes'])}</td></tr>"
        for row in data["phases"]
    )
    silent = [titles[row["label"]] for row in data["table"] if not row["bytes"] or not row["bytes"][0]]
    nothing = f"<p>{escape(' and '.join(silent))}: nothing sent.</p>" if silent else ""
    return (
        '<div class="chart" id="traffic-plot" role="img" aria-label="Bytes of each phase"></div>'
        f"{nothing}<details><summary>As a table</summary><div class='scroll'><table><thead><tr><th scope='col'>method</th>"
        "<th scope='col'>phase</th><th scope='col'>way</th><th scope='col'>messages</th><th scope='col'>bytes</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>"
        '<p class="note">A run\'s messages as they were encoded, graph building included. The axis is logarithmic.</p>'
    )


def _settings(data: Data) -> str:
    again = data["rerun"]
    more = "Add --data-root DIR if the data does not lie in ./data. " if again["needsData"] else ""
    texts = [{"name": "experiment.toml", "text": again["experiment"]}] if again["experiment"] else []
    texts += [one for one in again["experiments"] if one["text"] != again["experiment"]]
    details = "".join(
        f"<details><summary>{escape(one['name'])}</summary><pre><code>{escape(one['text'])}</code></pre></details>"
        for one in texts
    )
    facts = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in {**again["versions"], **again["machine"]}.items()
    )
    runs = "".join(
        f'<tr><th scope="row">{escape(run["label"])}</th>'
        + "".join(f"<td>{escape(_plain(run[key]))}</td>" for key in ("seed", "rounds", "engine", "dtype", "parameters", "seconds"))
        + "</tr>"
        for run in again["runs"]
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("method", "seed", "rounds", "engine", "numbers", "parameters", "seconds"))
    return (
        f'<p>With the settings below saved as <code>experiment.toml</code>:</p><pre id="command"><code>{escape(again["command"])}</code></pre>'
        f'<p class="note">{more}Accuracy, groups and bytes come out the same with the same versions; seconds depend on the machine.</p>'
        f"{details}<h3>Versions and machine</h3><dl>{facts}</dl>"
        f'<details><summary>The runs</summary><div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{runs}</tbody></table></div></details>'
    )


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value)
