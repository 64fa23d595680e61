"""Figures and tables for a paper: SVG and PDF by matplotlib, and LaTeX tables with booktabs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedkin.analysis.ranking import Diagram
from fedkin.errors import ConfigError, RunError
from fedkin.records.files import write_bytes
from fedkin.records.run import find_runs, latex_text, read_run
from fedkin.report.collect import collect
from fedkin.report.ranks import Blocks, Ranking, drawing, entries, pair_rows, ranking
from fedkin.report.words import FEDAVG, LOCAL

__all__ = ["write_paper"]

# Okabe and Ito's colours, as on the page: FedAvg and Local have their own.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#A39600")
_OWN = {LOCAL: ("#8C8C8C", ":"), FEDAVG: ("#D55E00", "--")}
_DASHES = ("-", "-.", "--", ":")
_VERDICTS = {"gained": "#0072B2", "hurt": "#D55E00"}
_GREY = "#8C8C8C"
_LARGEST = 60  # clients of a table on a page
_WIDE = 6.6  # inches: the width of a text
_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "pdf.fonttype": 42,
    "svg.hashsalt": "fedkin",
}  # fmt: skip
Data = Mapping[str, Any]


def write_paper(runs: Sequence[Path], out: Path, blocks: Blocks = "auto") -> list[Path]:
    """Write figures and tables about finished runs into a folder; returns the paths, of which the last is a document.

    Figures: training curves, the gain of each client with its interval and the client graph for every method that has
    them (with the lowest seed), calibration and decision curves, the critical-difference diagram. Tables: methods,
    clients, pairs of methods. Raises ConfigError if matplotlib is not installed.
    """
    data = collect(runs, blocks)
    comparison = ranking(
        entries([read_run(folder) for folder in find_runs(runs)]), bool(data["metric"]["higher"]), blocks
    )  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"--paper {out}: cannot be written: {error.strerror or error}") from None
    with _drawing(out) as save:
        figures = list(_figures(data, comparison, save))
    tables = {
        "methods.tex": method_table(data),
        **({"pairs.tex": pair_table(comparison.diagram)} if comparison and comparison.diagram else {}),
    }
    for run in _firsts(data):
        if clients_fit(run):
            tables[f"clients-{_named(run['label'])}.tex"] = client_table(data, run)
    written = []
    for name, text in (tables | {"all.tex": document(data["title"], tables, figures)}).items():
        write_bytes(out / name, text.encode())
        written.append(out / name)
    return [*(out / f"{name}.{kind}" for name in figures for kind in ("svg", "pdf")), *written]


Save = Callable[[Any, str], str]


@contextmanager
def _drawing(out: Path) -> Iterator[Save]:
    """Matplotlib without a window, in one style; the same figure gives the same bytes."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise ConfigError("--paper: needs matplotlib, which is not installed: pip install 'fedkin[paper]'") from None

    def save(figure: Any, name: str) -> str:
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        figure.savefig(out / f"{name}.pdf", metadata={"CreationDate": None})
        pyplot.close(figure)
        return name

    before = matplotlib.get_backend()
    pyplot.switch_backend("agg")
    try:
        with pyplot.rc_context(_STYLE):
            yield save
    finally:
        pyplot.switch_backend(before)


def _figures(data: Data, comparison: Ranking | None, save: Save) -> Iterator[str]:
    """Draw what there is; yields the figures' names."""
    from matplotlib import pyplot as plt

    if any(len(run["curve"].get("round") or ()) > 1 for run in data["runs"]):
        figure, axes = plt.subplots(figsize=(_WIDE, 3), layout="constrained")
        _curves(axes, data)
        yield save(figure, "curves")
    for run in _firsts(data):
        if run["gain"] and any(one is not None for one in run["gain"]):
            figure, axes = plt.subplots(figsize=(_WIDE, 2.6), layout="constrained")
            _gains(axes, data, run)
            yield save(figure, f"gain-{_named(run['label'])}")
        if run["graph"]:
            figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
            _graph(axes, data, run)
            yield save(figure, f"graph-{_named(run['label'])}")
    if any(run["risks"] for run in data["runs"]):
        figure, both = plt.subplots(1, 2, figsize=(_WIDE, 3), layout="constrained")
        _risks(both, data)
        yield save(figure, "risks")
    if comparison is not None and comparison.diagram is not None and comparison.diagram.difference is not None:
        picture = drawing(comparison.diagram)
        figure = plt.figure(figsize=(_WIDE, _WIDE * picture.height / picture.width + 0.1))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, picture.width), ylim=(picture.height + 6, 0))
        axes.axis("off")
        for one in picture.lines:
            axes.plot((one.x, one.x2), (one.y, one.y2), color="black", linewidth=0.7 * one.width)
        for text in picture.texts:
            sides = {"start": "left", "middle": "center", "end": "right"}
            axes.text(text.x, text.y, text.text, ha=sides[text.anchor], va="baseline", fontsize=8, parse_math=False)
        yield save(figure, "ranks")


def _firsts(data: Data) -> list[Data]:
    """The run with the lowest seed of each method."""
    first: dict[str, Data] = {}
    for run in sorted(data["runs"], key=lambda run: int(run["seed"])):
        first.setdefault(run["label"], run)
    return [first[method["label"]] for method in data["methods"]]


def _style(data: Data, label: str) -> dict[str, Any]:
    methods = {one["label"]: one["method"] for one in data["methods"]}
    if methods[label] in _OWN:
        colour, dash = _OWN[methods[label]]
        return {"color": colour, "linestyle": dash}
    at = [name for name, method in methods.items() if method not in _OWN].index(label)
    return {"color": _COLOURS[at % len(_COLOURS)], "linestyle": _DASHES[(at + at // 12) % len(_DASHES)]}


def _titles(data: Data) -> dict[str, str]:
    return {one["label"]: one["title"] for one in data["methods"]}


def _curves(axes: Any, data: Data) -> None:
    """Means over clients: a line for the mean over seeds, a band from the lowest to the highest seed."""
    scale = 100 if data["metric"]["share"] else 1
    for label, title in _titles(data).items():
        curves = [run["curve"] for run in data["runs"] if run["label"] == label and run["curve"].get("round")]
        known = [dict(zip(one["round"], one["mean"], strict=True)) for one in curves]
        rounds = [at for at in (known[0] if known else ()) if all(one.get(at) is not None for one in known)]
        values = [[scale * one[at] for one in known] for at in rounds]
        if not rounds:
            continue
        style = _style(data, label)
        axes.plot(rounds, [statistics.fmean(each) for each in values], label=title.replace("$", r"\$"), **style)
        if len(known) > 1:
            axes.fill_between(rounds, [min(e) for e in values], [max(e) for e in values], color=style["color"],
                              alpha=0.2, linewidth=0)  # fmt: skip
    axes.set(xlabel="round", ylabel=f"mean test {data['metric']['title']}" + (" (%)" if scale == 100 else ""))
    axes.legend(frameon=False)


def _gains(axes: Any, data: Data, run: Data) -> None:
    """A bar for each client, from most hurt to most helped, coloured by its verdict, with its 95 % interval."""
    scale, ids = 100 if data["metric"]["share"] else 1, data["federations"][run["federation"]]["ids"]
    sure = run["sure"] or {"verdict": [None] * len(ids), "gain": [None] * len(ids)}
    known = sorted((gain, client) for client, gain in enumerate(run["gain"]) if gain is not None)
    place = range(len(known))
    colours = [_VERDICTS.get(sure["verdict"][client], _GREY) for _, client in known]
    axes.bar(place, [scale * gain for gain, _ in known], color=colours)
    for at, (_, client) in enumerate(known):
        if (bounds := sure["gain"][client]) is not None and len(known) <= 150:
            axes.plot((at, at), [scale * end for end in bounds], color="black", linewidth=0.6)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set(
        ylabel="gain over Local" + (" (points)" if scale == 100 else ""), xlabel="" if len(known) <= 40 else "clients"
    )
    axes.set_xticks(list(place) if len(known) <= 40 else [])
    if len(known) <= 40:
        axes.set_xticklabels(
            [ids[client] for _, client in known], rotation=60, ha="right", fontsize=6, parse_math=False
        )


def _graph(axes: Any, data: Data, run: Data) -> None:
    """The last graph: clients coloured by group, with the strongest links."""
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


def _risks(both: Any, data: Data) -> None:
    """Calibration and decision curves of every method, with the lowest seed."""
    curve, decision = both
    curve.axline((0, 0), slope=1, color=_GREY, linewidth=0.8)
    mine = [run for run in _firsts(data) if run["risks"]]
    for run in mine:
        style, title = _style(data, run["label"]), _titles(data)[run["label"]].replace("$", r"\$")
        bins = run["risks"]["bins"]
        curve.plot([one[0] for one in bins], [one[1] for one in bins], marker="o", markersize=3, label=title, **style)
        decision.plot([at / 100 for at in range(1, 100)], run["risks"]["net"], **style)
    share = mine[0]["risks"]["events"] / mine[0]["risks"]["n"]
    at = [at / 100 for at in range(1, 100)]
    decision.plot(at, [share - (1 - share) * t / (1 - t) for t in at], color="black", linewidth=0.7, label="treat all")
    decision.axhline(0, color="black", linewidth=0.7, linestyle=":", label="treat none")
    curve.set(xlabel="predicted risk", ylabel="share of events", xlim=(0, None), ylim=(0, None))
    decision.set(xlabel="threshold", ylabel="net benefit", ylim=(-0.25 * share, 1.1 * share))
    for axes in both:
        axes.legend(frameon=False, fontsize=7)


def _named(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", label).strip("-")


# -- tables in LaTeX, with booktabs ------------------------------------------------------------------------------------


def method_table(data: Data) -> str:
    """A row for each method: means over seeds with their standard deviation, of those figures that any method has."""
    scale, digits = (100, 1) if data["metric"]["share"] else (1, 4)
    title = latex_text(data["metric"]["title"]) + (r" (\%)" if scale == 100 else "")
    columns = [
        ("mean", title, scale, digits), ("weighted", "weighted", scale, digits), ("pooled", "pooled", scale, digits),
        ("worst10", r"worst 10\,\%", scale, digits), ("unseen", "unseen", scale, digits),
        ("gain", "gain", scale, digits),
        ("gained", "gained", 1, 0), ("lost", "hurt", 1, 0), ("apart", "?", 1, 0), ("few", "too few", 1, 0),
        ("found", "groups", 1, 1), ("ari", "ARI", 1, 2), ("bytes", "MB sent", 1e-6, 1),
    ]  # fmt: skip
    shown = [column for column in columns if any(row.get(column[0]) for row in data["table"])]
    titles = {one["label"]: one["title"] for one in data["methods"]}
    rows = []
    for row in data["table"]:
        given = f" ({', '.join(row['given'])})" if row["given"] else ""
        cells = [_cell(row.get(key), row["seeds"], times, places) for key, _, times, places in shown]
        rows.append([latex_text(titles[row["label"]] + given), *cells])
    return _tabular(["method", *(head for _, head, _, _ in shown)], rows)


def clients_fit(run: Data) -> bool:
    """Whether a run has something to say of each client, and a table of them fits on a page."""
    sure = run["sure"]
    if sure is None or len(sure["own"]) > _LARGEST:
        return False
    return any(one is not None for key in ("own", "verdict", "events") for one in sure[key])


def client_table(data: Data, run: Data) -> str:
    """A row for each client of a run: test samples, events, figure and gain with 95 % intervals, verdict."""
    federation, sure, gains = data["federations"][run["federation"]], run["sure"], run["gain"]
    scale, digits = (100, 1) if data["metric"]["share"] else (1, 3)
    events = any(one is not None for one in sure["events"])
    rows = []
    for client, id in enumerate(federation["ids"]):
        if sure["own"][client] is None and sure["verdict"][client] is None and sure["events"][client] is None:
            continue
        gain = None if gains is None else gains[client]
        rows.append([
            latex_text(id), str(federation["test"][client]), *([str(sure["events"][client])] if events else []),
            _bounds(sure["own"][client], scale, digits),
            "--" if gain is None else f"${scale * gain:+.{digits}f}$", _bounds(sure["gain"][client], scale, digits),
            sure["verdict"][client] or "--",
        ])  # fmt: skip
    title = latex_text(data["metric"]["title"])
    heads = ["client", "$n$", *(["events"] if events else []), f"{title}, 95\\,\\%", "gain", r"95\,\%", "against Local"]
    return _tabular(heads, rows, last="l")


def pair_table(diagram: Diagram) -> str:
    """A row for each pair of methods: difference of mean ranks, and Wilcoxon's p-value with Holm's correction."""
    rows = [[latex_text(names), apart, p.replace("<", "$<$")] for names, apart, p in pair_rows(diagram)]
    return _tabular(["methods", "ranks apart", "$p$, Wilcoxon--Holm"], rows)


def document(title: str, tables: Sequence[str] | Mapping[str, str], figures: Sequence[str]) -> str:
    """A document that has all tables and figures, to see them and to copy from."""
    parts = [rf"\section*{{{latex_text(title)}}}"]
    for name in tables:
        parts += [
            rf"\subsection*{{{latex_text(name)}}}",
            rf"\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{\input{{{name}}}}}",
            "",
        ]
    for name in figures:
        parts += [rf"\subsection*{{{latex_text(name)}}}", rf"\includegraphics[width=\linewidth]{{{{{name}}}.pdf}}", ""]
    head = [
        r"\documentclass{article}", r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}", r"\usepackage[margin=2cm]{geometry}", r"\begin{document}",
    ]  # fmt: skip
    return "\n".join([*head, *parts, r"\end{document}", ""])


def _tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], last: str = "r") -> str:
    columns = f"l{'r' * (len(heads) - 2)}{last}"
    body = [" & ".join(row) + r" \\" for row in rows]
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(heads) + r" \\", r"\midrule"]
    return "\n".join([*head, *body, r"\bottomrule", r"\end{tabular}", ""])


def _cell(value: Sequence[float] | None, seeds: int, scale: float, digits: int) -> str:
    if value is None:
        return "--"
    spread = rf" \pm {scale * value[1]:.{digits}f}" if seeds > 1 and value[1] else ""
    return f"${scale * value[0]:.{digits}f}{spread}$"


def _bounds(value: Sequence[float] | None, scale: float, digits: int) -> str:
    return "--" if value is None else f"$[{scale * value[0]:.{digits}f}, {scale * value[1]:.{digits}f}]$"
