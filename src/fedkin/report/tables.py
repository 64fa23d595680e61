"""Tables for the terminal: one run, and a comparison of methods."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedkin.records.comparison import COUNTED, mean_and_sd
from fedkin.records.metrics import metric_of, missing_sentence, privacy_sentence
from fedkin.report.units import figure, megabytes, plural, student
from fedkin.tasks import METRICS, Metric

if TYPE_CHECKING:
    from fedkin.records.run import Result

_WIDTH = 80


def one_run(result: Result) -> Table:
    """The figures of a run, one per line; summary.json has more."""
    summary = result.summary
    sent, seconds = summary["bytes"], summary["seconds"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("method", f"{summary['method']} on {summary['scenario']}, seed {summary['seed']}")
    table.add_row("clients, rounds", f"{summary['clients']}, {summary['rounds']}")
    for line in _quality(summary):
        table.add_row(*line)
    if summary["groups"]["found"] is not None:
        table.add_row("groups, last round", _groups(summary))
    table.add_row("sent", f"{megabytes(sent['up'])} up, {megabytes(sent['down'])} down")
    if calibration := summary.get("calibration"):
        slope = "" if calibration["slope"] is None else f", calibration slope {calibration['slope']:.2f}"
        table.add_row("pooled Brier score", f"{calibration['brier']:.4f}{slope}")
    if summary.get("missing"):
        table.add_row("missing", Text(missing_sentence(summary["missing"])))
    if summary.get("privacy"):
        table.add_row("privacy", Text(privacy_sentence(summary["privacy"])))
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("local", "graph", "evaluate") if seconds[name])
    table.add_row("seconds", f"{seconds['total']:.1f} ({parts})")
    return table


def _quality(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The metrics of the clients' models, also on unseen clients."""
    metric, unseen = metric_of(summary), summary.get("unseen") or {}
    title, own, text = metric.title, summary[metric.name], partial(figure, share=metric.share, digits=4)
    if own.get("mean") is not None:
        yield f"{title}, mean over clients", text(own["mean"])
        yield "worst 10 %, worst 20 %", f"{text(own['worst10'])}, {text(own['worst20'])}"
    if own.get("pooled") is not None:
        yield f"pooled {title}", text(own["pooled"])
    yield from _further_metrics(summary, metric)
    if own.get("left_out"):
        why = "one class only" if metric.name == "auc" else "no foreground, and none predicted"
        yield "left out of the mean", f"{plural(own['left_out'], 'client')} without a defined value ({why})"
    if unseen.get("mean") is not None:
        gap = "" if summary["gap"] is None else f"  (worse by {text(summary['gap'], sign='+')})"
        yield f"{title}, mean over {plural(unseen['clients'], 'unseen client')}", f"{text(unseen['mean'])}{gap}"


def _further_metrics(summary: Mapping[str, Any], metric: Metric) -> Iterator[tuple[str, str]]:
    """The task's metrics other than this one, and those of `run.metrics`."""
    for name, other in METRICS.items():
        figures = summary[metric.name].get(name)
        if other != metric and isinstance(figures, Mapping) and figures["mean"] is not None:
            yield f"{other.title}, mean over clients", f"{figures['mean']:.4f}"
    for measured in (summary.get("metrics") or {}).values():
        if measured.get("mean") is not None:
            best = "higher" if measured["higher"] else "lower"
            value = figure(measured["mean"], measured.get("share", False), 4)
            yield f"{measured['title']}, mean over clients", f"{value}  ({best} is better)"


def _groups(summary: Mapping[str, Any]) -> str:
    groups = summary["groups"]
    given = "".join(f" ({text})" for text in summary.get("given") or ())
    against = "" if groups["ari"] is None else f", ARI {groups['ari']:.3f} to the planted ones"
    return f"{groups['found']}{given}, modularity {groups['modularity']:.3f}{against}"


def comparison(rows: Sequence[Mapping[str, Any]]) -> Group:
    """One row per method, in 80 columns; with several seeds, means ± half their 95 % interval.

    Columns without any value are left out; columns that do not fit are in a second table.
    """
    seeds, methods = rows[0]["seeds"], [row["method"] for row in rows]
    further = dict.fromkeys(name for row in rows for name in row.get("metrics") or ())
    cells = [_figure_cells(row, further, student(len(seeds))) for row in rows]
    columns = {head: [of_method[head] for of_method in cells] for head in cells[0]}
    shown = {head: column for head, column in columns.items() if head == "mean" or set(column) != {"-"}}
    metric = METRICS[rows[0].get("metric", "accuracy")]
    tables = [
        _figure_table(["method", *part], zip(methods, *part.values(), strict=True))
        for part in _split_columns(shown, max(map(len, methods)))
    ]
    over_seeds = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    tables[0].title = f"test {metric.title} over clients, {over_seeds}"
    tables[-1].caption = _legend(rows, shown, metric)
    return Group(*tables)


def _figure_cells(row: Mapping[str, Any], further: Iterable[str], half: float) -> dict[str, str]:
    """A method's figures by the heads of their columns."""
    metrics, verdicts = row.get("metrics") or {}, row.get("surely")
    share = METRICS[row.get("metric", "accuracy")].share

    def text(name: str, sign: str = "") -> str:
        return figure_text(row.get(name), half, sign, share)

    return {
        "mean": text("mean"), "worst 10%": text("worst10"), "unseen": text("unseen"), "gap": text("gap", "+"),
        **{name: figure_text(metrics.get(name), half) for name in further}, "gain": text("gain", "+"),
        "adds": _added(row.get("adds"), share),
        "hurt": "-" if row["hurt"] is None or verdicts else f"{100 * row['hurt'][0]:.0f} %",
        "clients": _verdict_counts(verdicts) if verdicts else "-",
        "groups": _plain(row["found"], 1) + "*" * bool(row.get("given")), "ARI": _plain(row["ari"], 2),
        "epsilon": _plain(row.get("epsilon"), 2), "sent": megabytes(row["bytes_sent"][0]),
    }  # fmt: skip


def _legend(rows: Sequence[Mapping[str, Any]], heads: Container[str], metric: Metric) -> str:
    """What the columns mean, and what methods were given."""
    few = any(row["surely"]["few"] for row in rows if row.get("surely"))
    several = len(rows[0]["seeds"]) > 1
    meaning = {
        "gain": f"gain: {metric.title} {'above' if metric.higher else 'better than'} training alone (Local)",
        "adds": "adds: the method minus NAME@self, in which clients exchange nothing with each other",
        "hurt": "hurt: share of clients worse off than alone",
        "clients": "clients: with a significant gain/a significant loss/neither"
        + "/too few samples" * few
        + " (means over seeds, rounded)" * several,
        "gap": "gap: how much worse unseen clients do",
    }
    notes = [text for head, text in meaning.items() if head in heads]
    if several:
        notes.insert(0, "±: half the 95 % interval over seeds")
    if given := [f"{row['method']}: {row['given']}" for row in rows if row.get("given")]:
        notes.append(f"*given: {', '.join(given)}")
    return "; ".join(notes)


def _split_columns(columns: Mapping[str, list[str]], first: int) -> list[dict[str, list[str]]]:
    """Split the columns into as few tables of 80 characters as possible; first: the width of the methods' names."""
    parts: list[dict[str, list[str]]] = [{}]
    left = _WIDTH - max(first, len("method"))
    for head, cells in columns.items():
        wide = max(map(len, [head, *cells])) + 2
        if wide > left and parts[-1]:
            parts.append({})
            left = _WIDTH - max(first, len("method"))
        parts[-1][head] = cells
        left -= wide
    return parts


def _figure_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of these rows; the first column is aligned to the left."""
    table = Table(
        title_justify="left", caption_justify="left", title_style="", caption_style="dim", pad_edge=False,
        box=SIMPLE_HEAD, collapse_padding=True, show_edge=False, min_width=76,  # room for title and caption
    )  # fmt: skip
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def time_table(summary: Mapping[str, Any]) -> Table:
    """How a run spent its time; the rest, without a row, is set-up, sampling and averaging outside the flows."""
    titles = {"local": "local training", "graph": "server and graph", "evaluate": "evaluation", "messages": "messages",
              "records": "records", "checkpoint": "checkpoints"}  # fmt: skip
    seconds, rounds = summary["seconds"], max(summary["rounds"], 1)
    parts = {title: seconds[part] for part, title in titles.items() if part in seconds}
    phases = {f"at clients: {name[6:]}": spent for name, spent in seconds.items() if name.startswith("local.")}
    if len(phases) > 1:
        del parts["local training"]
        parts = phases | parts
    parts["the rest"] = max(seconds["total"] - sum(parts.values()), 0.0)
    parts["total"] = seconds["total"]
    rows = [
        (title, f"{spent:.2f}", f"{1e3 * spent / rounds:.1f}", f"{spent / (seconds['total'] or 1.0):.1%}")
        for title, spent in parts.items()
    ]
    return _figure_table(["where the time went", "seconds", "ms a round", "share"], rows)


def training_paths(summary: Mapping[str, Any]) -> list[Table]:
    """How each net was trained with each loss, and why not stacked; empty if unknown."""
    table = Table("how nets were trained", "loss", "path", "why", box=None, pad_edge=False)
    for each in summary.get("training_paths") or ():
        table.add_row(*(Text(str(each[part])) for part in ("net", "loss", "path", "why")))
    return [table] if table.row_count else []


def left_out(results: Mapping[str, Mapping[str, Mapping[int, Result]]]) -> Table:
    """One row per method: its mean over each group's clients when that group was left out, and over all groups.

    results: by group, method and seed.
    """
    methods = next(iter(results.values()))
    by_seed = next(iter(methods.values()))
    rows = [_left_out_row(method, [of_group[method].values() for of_group in results.values()]) for method in methods]
    table = _figure_table(["method", *results, "mean"], rows)
    table.title = f"test {next(iter(by_seed.values())).metric.title} of unseen clients, by the group left out"
    untrained = "; local: the untrained initial model" if "local" in methods else ""
    table.caption = f"mean over clients, then over seeds {', '.join(map(str, sorted(by_seed)))}{untrained}"
    return table


def _left_out_row(method: str, runs_by_group: Iterable[Iterable[Result]]) -> list[str]:
    """A method's mean over the clients of each group, and the mean of these."""
    means = [mean_and_sd([(run.summary.get("unseen") or {}).get("mean") for run in runs]) for runs in runs_by_group]
    whole = mean_and_sd([None if mean is None else mean[0] for mean in means])
    return [method, *(_plain(mean, 3) for mean in (*means, whole))]


def figure_text(
    value: Sequence[float] | Mapping[str, float] | None, half: float, sign: str = "", share: bool = True
) -> str:
    """A mean over seeds, ± its standard deviation times `half`; half: 0 for one seed. share: as in `Metric`."""
    if value is None:
        return "-"
    mean, deviation = (value["mean"], value["sd"]) if isinstance(value, Mapping) else value
    text = figure(mean, share, 3, sign)
    return f"{text}±{figure(half * deviation, share, 3)}".replace("±0.", "±.") if half else text


def _added(value: Mapping[str, Any] | None, share: bool) -> str:
    """A mean difference; with several seeds, ± half its symmetric interval."""
    if value is None:
        return "-"
    half = 0.0 if value["high"] is None else value["high"] - value["mean"]
    return figure_text((value["mean"], half), float(half != 0), "+", share)


def _plain(value: tuple[float, float] | None, digits: int) -> str:
    return "-" if value is None else f"{value[0]:.{digits}f}"


def _verdict_counts(counts: Mapping[str, float]) -> str:
    """Numbers of clients per verdict, rounded means over seeds: gain/loss/neither[/too few samples].

    They are rounded so that their sum stays the number of clients (largest remainders; of equal ones the later).

    >>> _verdict_counts({"gained": 31, "lost": 0.3, "apart": 8.7, "few": 0})
    '31/0/9'
    >>> _verdict_counts({"gained": 0, "lost": 3.5, "apart": 1.5, "few": 0})
    '0/3/2'
    """
    shown = [name for name in COUNTED if name != "few" or counts[name]]
    whole = {name: math.floor(counts[name]) for name in shown}
    rest = round(sum(counts[name] for name in shown)) - sum(whole.values())
    by_remainder = sorted(shown, key=lambda name: (counts[name] - whole[name], shown.index(name)))
    for name in by_remainder[len(shown) - rest :]:
        whole[name] += 1
    return "/".join(str(whole[name]) for name in shown)
