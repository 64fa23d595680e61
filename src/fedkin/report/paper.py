"""Figures and tables for a paper: SVG and PDF by matplotlib, and LaTeX tables with booktabs, each with its caption."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.errors import RunError, imported
from fedkin.records.files import write_bytes
from fedkin.report.collect import collect
from fedkin.report.page import has_curves, titles_in
from fedkin.report.runs import FEDAVG, LOCAL
from fedkin.report.units import half_interval
from fedkin.settings import choose

PARTS = ("table", "curves", "gains", "graph")
# Okabe and Ito's colours, as on the page; FedAvg and Local always have the same colours.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#A39600")
_OWN = {LOCAL: ("#8C8C8C", ":"), FEDAVG: ("#D55E00", "--")}
_DASHES = ("-", "-.", "--", ":")
_VERDICTS = {"gained": "#0072B2", "hurt": "#D55E00"}
_GREY = "#8C8C8C"
_MOST_LINES = 150  # bars with an interval
_WIDE = 6.6  # inches: the width of a text
_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "pdf.fonttype": 42,
    "svg.hashsalt": "fedkin",
}  # fmt: skip
Data = Mapping[str, Any]
TableColumn = tuple[str, str, float, int, str]  # key, heading, factor, digits, and what the caption says


def write_paper(runs: Sequence[Path], out: Path, parts: str = "table,curves") -> list[Path]:
    """Write figures and tables about finished runs into a folder; returns the paths, with a document as the last one.

    parts: separated by commas. table: the methods. curves: training curves. gains: each client's gain. graph: the
    client graph. Parts about a single run use the lowest seed. Raises ConfigError for an unknown part and without
    matplotlib, and RunError if the runs have no data for a part.
    """
    names = list(dict.fromkeys(filter(None, parts.split(","))))
    for name in names:
        choose(dict.fromkeys(PARTS), name, "parts")
    if set(names) - {"table"}:
        imported("matplotlib", "a figure for a paper", "paper")  # check this before reading the runs
    data = collect(runs)
    out.mkdir(parents=True, exist_ok=True)
    figures: list[Path] = []
    texts: dict[str, str] = {}
    for name in names:
        if name == "table":
            texts["table.tex"] = method_table(data)
            continue
        for figure_name, paths, text in _save_figures(name, data, out):
            figures += paths
            texts[f"{figure_name}.tex"] = text
    if not texts:
        raise RunError(f"parts {parts}: these runs have nothing for it")
    texts["all.tex"] = document(data["title"], list(texts))
    for file, text in texts.items():
        write_bytes(out / file, text.encode())
    return [*figures, *(out / file for file in texts)]


def _save_figures(part: str, data: Data, out: Path) -> Iterator[tuple[str, list[Path], str]]:
    """Save the figures of a part in a folder; yields the name, the paths and the LaTeX text of each."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        for name, figure, caption in _FIGURES[part](data):
            svg, pdf = out / f"{name}.svg", out / f"{name}.pdf"
            # Without dates, equal figures give equal bytes.
            figure.savefig(svg, metadata={"Date": None}, bbox_inches="tight")
            figure.savefig(pdf, metadata={"CreationDate": None}, bbox_inches="tight")
            picture = rf"\includegraphics[width=\linewidth]{{{{{name}}}.pdf}}"
            yield name, [svg, pdf], _floating("figure", picture, caption, name)


# -- figures: (name, figure, caption) ----------------------------------------------------------------------------------

Figures = Iterator[tuple[str, Any, str]]


def _axes(wide: float, high: float) -> tuple[Any, Any]:
    """Return a figure of this size in inches, without a window, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high))
    return figure, figure.subplots()


def _first_seed_runs(data: Data) -> list[Data]:
    """The run with the lowest seed of each method."""
    first: dict[str, Data] = {}
    for run in sorted(data["runs"], key=lambda run: int(run["seed"])):
        first.setdefault(run["label"], run)
    return [first[method["label"]] for method in data["methods"]]


def _style(data: Data, label: str) -> dict[str, Any]:
    methods = {method["label"]: method["method"] for method in data["methods"]}
    if methods[label] in _OWN:
        colour, dash = _OWN[methods[label]]
        return {"color": colour, "linestyle": dash}
    at = [name for name, method in methods.items() if method not in _OWN].index(label)
    return {"color": _COLOURS[at % len(_COLOURS)], "linestyle": _DASHES[(at + at // 12) % len(_DASHES)]}


def _curves(data: Data) -> Figures:
    """Means over clients: a line for the mean over seeds, a band for its 95 % interval."""
    if not has_curves(data):
        return
    figure, axes = _axes(_WIDE - 1.4, 3)
    metric, seeds, bands = data["metric"], len(data["seeds"]), False
    for label, title in titles_in(data).items():
        if values := _values_by_round(data, label):
            name = title.replace("$", r"\$")
            style, ends = _style(data, label), (0, 100) if metric["share"] else (None, None)
            means = [statistics.fmean(each) for each in values.values()]
            axes.plot(list(values), means, label=name, **style)
            several_seeds = any(len(each) > 1 for each in values.values())
            if several_seeds:
                halves = [half_interval(each) for each in values.values()]
                low, high = np.clip(np.subtract(means, halves), *ends), np.clip(np.add(means, halves), *ends)
                axes.fill_between(list(values), low, high, color=style["color"], alpha=0.2, linewidth=0)
            bands |= several_seeds
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="round", ylabel=f"mean test {metric['title']}{' (%)' if metric['share'] else ''}")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)  # outside, on the right
    caption = f"Test {metric['title']} after each evaluated round, mean over clients"
    caption += f" and over {seeds} seeds" if seeds > 1 else ""
    caption += "; bands: Student's 95 % interval of the mean over seeds." if bands else "."
    yield "curves", figure, caption


def _values_by_round(data: Data, label: str) -> dict[int, list[float]]:
    """A method's means over clients, one for each seed; of the rounds that all its curves have."""
    curves = [run["curve"] for run in data["runs"] if run["label"] == label and run["curve"].get("round")]
    by_round: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for at, mean in zip(curve["round"], curve["mean"], strict=True):
            if mean is not None:
                by_round[at].append(_scale(data) * mean)
    return {at: values for at, values in by_round.items() if len(values) == len(curves)}


def _scale(data: Data) -> int:
    return 100 if data["metric"]["share"] else 1


def _gains(data: Data) -> Figures:
    """A bar for each client, from the largest loss to the largest gain, coloured by verdict, with its 95 % interval."""
    for run in _first_seed_runs(data):
        gains = sorted((gain, client) for client, gain in enumerate(run["gain"] or ()) if gain is not None)
        if not gains:
            continue
        figure, axes = _axes(_WIDE, 2.6)
        _draw_gains(axes, gains, run["sure"], _scale(data))
        axes.set(ylabel="gain over Local" + (" (points)" if data["metric"]["share"] else ""))
        if len(gains) <= 40:
            ids = data["federations"][run["federation"]]["ids"]
            axes.set_xticks(list(range(len(gains))))
            names = [ids[client] for _, client in gains]
            axes.set_xticklabels(names, rotation=60, ha="right", fontsize=6, parse_math=False)
        else:
            axes.set(xlabel="clients", xticks=[])
        yield f"gains-{_file_name(run['label'])}", figure, _gains_caption(data, run, len(gains))


def _gains_caption(data: Data, run: Data, bars: int) -> str:
    text = (
        f"Gain in test {data['metric']['title']} over training alone (Local) of each client with "
        f"{titles_in(data)[run['label']]}, seed {run['seed']}."
    )
    if run["sure"] is None or not any(run["sure"]["verdict"]):
        return f"{text} Not judged: no outcomes of single test samples are known."
    lines = " Lines: 95 % intervals of the paired difference." if bars <= _MOST_LINES else ""
    return (
        f"{text}{lines} Blue: significant gain (the 95 % interval is above 0); orange: significant loss (below 0); "
        "grey: neither, or too few test samples."
    )


def _draw_gains(axes: Any, gains: Sequence[tuple[float, int]], sure: Data | None, scale: int) -> None:
    """Draw a bar for each (gain, client); intervals only if there are few enough bars to see them."""
    colours = [_GREY if sure is None else _VERDICTS.get(sure["verdict"][client], _GREY) for _, client in gains]
    axes.bar(range(len(gains)), [scale * gain for gain, _ in gains], color=colours)
    intervals = [sure["gain"][client] for _, client in gains] if sure is not None and len(gains) <= _MOST_LINES else []
    for at, bounds in enumerate(intervals):
        if bounds is not None:
            axes.plot((at, at), [scale * end for end in bounds], color="black", linewidth=0.6)
    axes.axhline(0, color="black", linewidth=0.6)


def _graph(data: Data) -> Figures:
    """The last graph: clients coloured by group, with the strongest links."""
    for run in _first_seed_runs(data):
        if not run["graph"]:
            continue
        figure, axes = _axes(4, 4)
        graph, ids = run["graph"], data["federations"][run["federation"]]["ids"]
        frame = graph["frames"][-1]
        for one, other in zip(frame["from"], frame["to"], strict=True):
            ends = [(graph[axis][one], graph[axis][other]) for axis in ("x", "y")]
            axes.plot(*ends, color="#6E6E6E", alpha=0.35, linewidth=0.5, zorder=1)
        groups = frame["groups"] or [0] * len(frame["clients"])
        for client, group in zip(frame["clients"], groups, strict=True):
            colour = (*_COLOURS, "#D55E00", _GREY)[group % 8]
            marker = "osD^PX*v"[group // 8 % 8]
            axes.scatter(graph["x"][client], graph["y"][client], c=colour, marker=marker, s=36, zorder=2)
            if len(frame["clients"]) <= 30:
                axes.annotate(ids[client], (graph["x"][client], graph["y"][client]), xytext=(4, 3), fontsize=6,
                              textcoords="offset points", parse_math=False)  # fmt: skip
        axes.set_aspect("equal")
        axes.axis("off")
        caption = (
            f"Client graph of {titles_in(data)[run['label']]} after round {frame['until']}, seed {run['seed']}. A "
            f"point is a client, its colour and shape its group; lines are each client's {graph['perNode']} strongest "
            "similarities."
        )
        yield f"graph-{_file_name(run['label'])}", figure, caption


_FIGURES = {"curves": _curves, "gains": _gains, "graph": _graph}


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", label).strip("-")


# -- tables in LaTeX, with booktabs ------------------------------------------------------------------------------------


def method_table(data: Data) -> str:
    """One row per method: means over seeds with half their interval, for figures that at least one method has."""
    rows, titles = data["table"], titles_in(data)
    columns = [column for column in _columns(data["metric"]) if any(row.get(column[0]) for row in rows)]
    lines = [["method", *(head for _, head, *_ in columns)]]
    for row in rows:
        given = f" ({', '.join(row['given'])})" if row["given"] else ""
        cells = [_cell(row.get(key), row["seeds"], times, places) for key, _, times, places, _ in columns]
        lines.append([latex_text(titles[row["label"]] + given), *cells])
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    tabular = [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}",
    ]  # fmt: skip
    # Shrink a table that is wider than the text.
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    return _floating("table", "\n".join([fit, *tabular]) + "}", _table_caption(data, columns), "table")


def _columns(metric: Data) -> Sequence[TableColumn]:
    """Columns of the table: key, heading, factor, digits, and what the caption says."""
    scale, digits, unit = (100, 1, r" (\%)") if metric["share"] else (1, 4, "")
    return [
        ("mean", latex_text(metric["title"]) + unit, scale, digits, ""),
        ("worst10", r"worst 10\,\%", scale, digits, "worst 10 %: mean over the worst tenth of the clients"),
        ("unseen", "unseen", scale, digits, "unseen: mean over clients that never took part"),
        ("gain", "gain", scale, digits, "gain: over training alone (Local), mean over clients"),
        ("gained", "gained", 1, 0, "gained, hurt: clients that significantly gain or lose, by 95 % intervals"),
        ("lost", "hurt", 1, 0, ""),
        ("found", "groups", 1, 1, "groups: in the last round's graph"),
        ("ari", "ARI", 1, 2, "ARI: agreement of the groups with the planted ones (1: equal)"),
        ("bytes_sent", "MB sent", 1e-6, 1, "MB sent: all messages of a run"),
    ]


def _table_caption(data: Data, columns: Sequence[TableColumn]) -> str:
    rows = data["table"]
    seeds = max(row["seeds"] for row in rows)
    text = f"{data['title']}: test {data['metric']['title']} after the last round, mean over clients"
    if seeds > 1:
        text += f" and {seeds} seeds; ±: half of Student's 95 % interval over seeds"
    notes = [text, *([data["partial"]] if data["partial"] else []), *(about for *_, about in columns if about)]
    if any(row["given"] for row in rows):
        notes.append("in brackets: what a method was told")
    if any(row.get(key) is None for row in rows for key, *_ in columns):
        notes.append("--: does not apply")
    return "; ".join(notes) + "."


def document(title: str, parts: Sequence[str]) -> str:
    """A document with all tables and figures, to look at and to copy from."""
    head = [
        r"\documentclass{article}", r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}", r"\usepackage[margin=2cm]{geometry}", r"\begin{document}",
        rf"\section*{{{latex_text(title)}}}",
    ]  # fmt: skip
    return "\n".join([*head, *(rf"\input{{{part}}}" for part in parts), r"\end{document}", ""])


def latex_text(text: str) -> str:
    """Escape text so that nothing in it is a LaTeX command."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _floating(kind: str, body: str, caption: str, name: str) -> str:
    """A figure or a table with its caption, to include in a paper with `input`."""
    text = latex_text(caption).replace("±", r"$\pm$")
    lines = [rf"\begin{{{kind}}}[htbp]", r"\centering", rf"\caption{{{text}}}", rf"\label{{{kind}:{name}}}", body]
    return "\n".join([*lines, rf"\end{{{kind}}}", ""])


def _cell(value: Sequence[float] | None, seeds: int, scale: float, digits: int) -> str:
    if value is None:
        return "--"
    half = rf" \pm {scale * value[1]:.{digits}f}" if seeds > 1 and value[1] and digits else ""
    # A mean of numbers of clients over seeds: 0.4 clients that lose are not none.
    digits = digits or int(value[0] % 1 > 0)
    return f"${scale * value[0]:.{digits}f}{half}$"
