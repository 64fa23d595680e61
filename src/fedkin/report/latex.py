"""Tables of a report in LaTeX, with booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.records.run import latex_text
from fedkin.report.ranks import Ranking

__all__ = ["client_table", "clients_fit", "document", "method_table", "pair_table"]

Data = Mapping[str, Any]
_LARGEST = 60  # clients of a table on a page


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


def pair_table(found: Ranking) -> str:
    """A row for each pair of methods: difference of mean ranks, and p-values of Nemenyi and of Wilcoxon with Holm."""
    assert found.diagram is not None
    assert found.wilcoxon is not None
    names, ranks = found.diagram.methods, found.diagram.ranks
    rows = [
        [
            latex_text(f"{names[a]}, {names[b]}"), f"{ranks[b] - ranks[a]:.2f}",
            "--" if found.nemenyi is None else _p(found.nemenyi[a][b]), _p(found.wilcoxon[a][b]),
        ]
        for a in range(len(names)) for b in range(a + 1, len(names))
    ]  # fmt: skip
    return _tabular(["methods", "ranks apart", "$p$, Nemenyi", "$p$, Wilcoxon--Holm"], rows)


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


def _p(value: float) -> str:
    return "$<$ 0.001" if value < 0.001 else f"{value:.3f}"
