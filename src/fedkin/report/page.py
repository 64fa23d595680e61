"""The report page in one file: tables as rows of cells for the template, data as JSON, and scripts that draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedkin._version import __version__
from fedkin.graph.picture import embedded, library, unpacking
from fedkin.records.comparison import COUNTED
from fedkin.records.reading import FileSchema, record_in
from fedkin.report.html import NONE, file_text, render, small
from fedkin.report.runs import LOCAL, RULE
from fedkin.report.sections import RISK_HEADS, missing_tables, risk_rows, traffic_tables
from fedkin.report.units import figure, megabytes, number_range

Data = Mapping[str, Any]

ADVICE = "advice.json"
# What the scripts read of the data.
_EMBEDDED = ("federations", "methods", "metric", "runs", "seeds", "shown", "student")
_SCRIPTS = ("page.js", "curves.js", "clients.js", "graph.js", "analyses.js", "start.js")


def page(data: Data, answer: dict[str, Any] | None = None) -> str:
    """The complete report as HTML text, from the data of `collect`, and first the advice from `answer_in`, if any."""
    titles, again, runs = titles_in(data), data["rerun"], data["runs"]
    keys = ("label", "seed", "rounds", "engine", "dtype", "precision", "parameters", "seconds")
    none = "no-gain" if _kinds(data) - {LOCAL} else "only-local"
    warnings = [*(f"Warning: {text}" for text in data["warnings"]), *data["events"]]
    if data["unfinished"]:
        warnings.insert(0, f"Not finished, and therefore not on this page: {', '.join(data['unfinished'])}")
    return render(
        "page.html", version=__version__, data=data, context=_context(data), warnings=warnings, answer=answer,
        sections=sections(data, answer is not None), comparison=_comparison(data), titles=titles,
        graphs=any(run["graph"] for run in runs), gain="gain" if _any(runs, "gain") else none,
        risks={"heads": RISK_HEADS, "rows": risk_rows(runs, titles)}, traffic=traffic_tables(data["phases"], titles),
        silent=[titles[row["label"]] for row in data["table"] if not row["bytes_sent"] or not row["bytes_sent"][0]],
        missing=missing_tables(data["missing"], titles), facts=list({**again["versions"], **again["machine"]}.items()),
        runs_heads=("method", *keys[1:]), runs_rows=[[_text(run[key]) for key in keys] for run in again["runs"]],
        runs="1 run" if len(runs) == 1 else f"{len(runs)} runs", plotly=library(),
        embedded=embedded({name: data[name] for name in _EMBEDDED}), unpack=unpacking(),
        script="\n".join(map(file_text, _SCRIPTS)),
    )  # fmt: skip


def _context(data: Mapping[str, Any]) -> str:
    clients = [len(federation["ids"]) for federation in data["federations"]]
    rounds = [run["rounds"] for run in data["rerun"]["runs"]]
    seeds = data["seeds"]
    parts = [
        f"{number_range(clients)} client{'' if {*clients} == {1} else 's'}",
        f"{number_range(rounds)} round{'' if {*rounds} == {1} else 's'}",
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}",
        "methods " + ", ".join(method["title"] for method in data["methods"]),
    ]
    if data["scenario"]:
        parts.insert(0, f"scenario {data['scenario']}")
    return " · ".join(parts)


# -- sections: the charts' places are empty until the script runs -----------------------------------------------------


def sections(data: Data, answer: bool = False) -> list[tuple[str, str, str]]:
    """The sections with data, in the page's order: id, name in the table of contents, and heading.

    answer: whether the page begins with an advice.
    """
    runs = data["runs"]
    graphs = [run["graph"] for run in runs if run["graph"]]
    title = data["metric"]["title"][:1].upper() + data["metric"]["title"][1:]
    # (whether there is something to show, the section's id, its name in the table of contents, its heading)
    known: list[tuple[Any, str, str, str]] = [
        (answer, "answer", "Answer", "Who should train with whom"),
        (has_curves(data), "accuracy", title, f"{title} over the rounds"),
        (True, "comparison", "Comparison", "The methods side by side"),
        ((data["ranks"] or {}).get("text"), "ranks", "Ranks", "Which methods differ significantly"),
        (True, "clients", "Clients", "Client by client"),
        (data["measures"], "measures", "Metrics", "Further metrics"),
        (_any(runs, "risks"), "risks", "Risks", "Are the predicted risks right, and useful"),
        (graphs or _any(runs, "undrawn"), "graph", "Graph", "The client graph"),
        (_any(graphs, "verdicts"), "tests", "Tests", "Why these groups: the tests"),
        (_any(graphs, "history"), "moves", "Moves", "Which clients changed group, and when"),
        (graphs, "matrix", "Matrix", "Similarity of clients"),
        (_any(runs, "sharing"), "sharing", "Weights", "Weights, and what clients have in common"),
        (any(_any(graph["frames"], "values") for graph in graphs), "influence", "Influence",
         "Influential clients, by region"),
        (_any(runs, "features"), "features", "Features", "Classes in feature space, and heads"),
        (data["phases"], "traffic", "Traffic", "What was sent, once and every round"),
        (data["missing"], "missing", "Missing", "Messages that were lost, refused or never sent"),
        (True, "settings", "Settings", "Settings, and how to run this again"),
    ]  # fmt: skip
    return [(id, name, heading) for there, id, name, heading in known if there]


def has_curves(data: Data) -> bool:
    """Whether a run has curves; a single evaluated round needs none, as its figures are in the comparison."""
    return any(len(run["curve"].get("round", ())) > 1 for run in data["runs"])


def _any(parts: Iterable[Data], name: str) -> bool:
    return any(part[name] for part in parts)


def _kinds(data: Data) -> set[str]:
    """The methods' own names, without labels."""
    return {method["method"] for method in data["methods"]}


Writer = Callable[[float], str]


def _as(form: str, scale: float = 1, unit: str = "") -> Writer:
    return lambda value: f"{scale * value:{form}}{unit}"


def _unscaled(value: float, sign: str = "") -> str:
    return figure(value, share=False, digits=4, sign=sign)


def _count(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


Column = tuple[str, str, str, Writer]


def _columns(metric: Mapping[str, Any]) -> Sequence[Column]:
    """Columns: key, heading, explanation, and a function that writes a value."""
    title, share = metric["title"], metric["share"]
    values = "accuracies" if title == "accuracy" else f"values of {title}"
    value = _as(".1f", 100, " %") if share else _unscaled
    more, points = (_as("+.1f", 100), ", in points") if share else (partial(_unscaled, sign="+"), "")
    gain = f"{title} above training alone (Local)" if share else f"how much better {title} is than alone (Local)"
    return (
        ("mean", "mean", f"mean test {title} over clients, after the last round", value),
        ("weighted", "weighted", "the same, each client weighted by its number of test samples", value),
        ("pooled", "pooled", f"{title} over the test samples of all clients together", value),
        ("worst10", "worst 10 %", f"mean {title} of the worst 10 % of clients", value),
        ("worst20", "worst 20 %", f"mean {title} of the worst 20 % of clients", value),
        ("unseen", "unseen", f"mean test {title} over the clients that never take part", value),
        ("gap", "gap", f"how much worse the unseen clients' mean is than that of the others{points}", more),
        ("gain", "gain", f"mean over clients of {gain}{points}", more),
        ("adds", "exchange adds", f"the method minus its @self{points}", more),
        ("hurt", "hurt", "share of clients that are below training alone, by any amount", _as(".0f", 100, " %")),
        ("gained", "significant gain", "clients significantly better than with Local", _count),
        ("lost", "significant loss", "clients significantly worse than with Local", _count),
        ("apart", "neither", "clients without a significant difference from Local", _count),
        ("few", "too few", "clients with too few events or test samples for a verdict", _count),
        ("events", "least events", "the smallest number of events, or of other test samples, at any client", _count),
        ("found", "groups", "groups in the last round's graph", _count),
        ("ari", "ARI", "agreement of these groups with the planted ones: 1 when equal, 0 as by chance", _as(".2f")),
        ("epsilon", "epsilon", "largest epsilon of any client, for the noise on what it sent ([privacy])", _as(".2f")),
        ("bytes_sent", "sent", "all messages of a run", megabytes),
        ("std", "std", f"standard deviation over clients{points}", _as(".1f", 100) if share else _unscaled),
        ("variance", "variance", "variance over clients" + (" of the percentage" if share else ""),
         _as(".1f") if share else _unscaled),
        ("entropy", "entropy", f"entropy of clients' shares of {title}, over log n: 1 when all are equal", _as(".3f")),
        ("jain", "Jain's index", f"Jain's index of clients' {values}: 1 when all are equal", _as(".3f")),
        ("seconds", "seconds", "of a run, on the machine that ran it", _as(".1f")),
    )  # fmt: skip


def _comparison(data: Data) -> dict[str, Any]:
    rows, titles = data["table"], titles_in(data)
    columns = {column[0]: column for column in _columns(data["metric"]) if any(row.get(column[0]) for row in rows)}
    # If the mean weighted by samples equals the figure over all samples, one column is enough.
    if "pooled" in columns and all(row["weighted"] == row["pooled"] for row in rows):
        _, _, _, write = columns.pop("weighted")
        columns["pooled"] = ("pooled", "weighted", "over all test samples together: the mean weighted by them", write)
    shown, cells = list(columns.values()), []
    for row in rows:
        title = titles[row["label"]]
        method = small(title, ", ".join(row["given"])) if row["given"] else title
        cells.append([method, *(_cell(row.get(key), row["seeds"], key, write) for key, _, _, write in shown)])
    heads = [("method", ""), *((name, about) for _, name, about, _ in shown)]
    rule = RULE if any(row["gained"] for row in rows) else ""
    return {"heads": heads, "rows": cells, "notes": list(_notes(data)), "rule": rule}


def _notes(data: Data) -> Iterator[str]:
    """What to know about the comparison: its intervals, the choice of the method above, and figures that it lacks."""
    seeds = max(row["seeds"] for row in data["table"])
    if data["partial"] and any(row["mean"] for row in data["table"]):
        yield f"{data['partial']}."
    if seeds > 1:
        yield f"Mean over {seeds} seeds, ± half the 95 % interval over seeds (Student)."
        if unlike := _unlike_seeds(data):
            yield f"Not all methods have the same seeds, so their means differ also by these: {unlike}."
        if data["rerun"]["oneSplit"]:
            yield "All seeds have the same test rows (data.seed), so ± does not include the sampling of rows."
    if data["chosen"]:
        title = titles_in(data)[data["runs"][data["shown"]]["label"]]
        good = ", so that its figures here are too good on average" if "test" in data["chosen"] else ""
        yield f"The sentence at the top is about {title}, chosen on {data['chosen']}{good}."
    untested = (data["ranks"] or {}).get("why")
    for text in [*data["unlike"], untested] if untested else data["unlike"]:
        yield f"{text[:1].upper() + text[1:]}."
    yield from _missing_figures(data)


def _unlike_seeds(data: Data) -> str:
    """The seeds of each method; empty if all have the same."""
    seeds: dict[str, list[int]] = {}
    for run in data["runs"]:
        seeds.setdefault(run["label"], []).append(run["seed"])
    texts = {label: ", ".join(map(str, sorted(mine))) for label, mine in seeds.items()}
    titles = titles_in(data)
    return "; ".join(f"{titles[label]} {text}" for label, text in texts.items()) if len({*texts.values()}) > 1 else ""


def _missing_figures(data: Data) -> Iterator[str]:
    rows, kinds = data["table"], _kinds(data)
    if not any(row["mean"] for row in rows):
        yield f"No client has test data, so there is no {data['metric']['title']}."
    elif len(rows) > 1 and kinds != {LOCAL} and not any(row["gain"] for row in rows):
        like = " with the same seeds, clients and settings" if LOCAL in kinds else ""
        yield f"Gain over training alone needs a run of Local{like}."


def titles_in(data: Data) -> dict[str, str]:
    """The titles of the methods, by label."""
    return {method["label"]: method["title"] for method in data["methods"]}


def _cell(value: Sequence[float] | None, seeds: int, key: str, write: Writer) -> str:
    if value is None:
        return NONE
    text = write(value[0]).replace("-", "−")
    if seeds == 1 or key in ("bytes_sent", "found", "hurt", "events", *COUNTED):
        return text
    return small(text, f"± {write(value[1]).lstrip('+').removesuffix(' %')}")


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# -- the answer of `fedkin advise`, first on the page: who should train with whom, and how sure that is ----------------


class Advice(FileSchema):
    """The parts of the file advice.json that the page shows."""

    sentence: str
    why: str
    notes: list[str]
    heads: list[str]
    rows: list[list[str]]
    tables: list[dict[str, Any]]


def answer_in(places: Sequence[Path]) -> dict[str, Any] | None:
    """The advice in one of these folders; None if there is none, or more than one."""
    paths = [place / ADVICE for place in dict.fromkeys(places) if (place / ADVICE).is_file()]
    if len(paths) != 1:
        return None
    return record_in(paths[0], Advice).model_dump()
