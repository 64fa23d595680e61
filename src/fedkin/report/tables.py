"""Tables for the terminal: one run, and a comparison of methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedkin.records.figures import COUNTED
from fedkin.records.metrics import metric_of, missing_sentence, privacy_sentence
from fedkin.report.units import megabytes
from fedkin.tasks import METRICS, Metric

if TYPE_CHECKING:
    from fedkin.running.loop import Result

__all__ = ["comparison", "left_out", "one_run", "profiled", "training_paths"]

_WIDTH = 80


def one_run(result: Result) -> Table:
    """The figures of a run, one per line."""
    summary = result.summary
    groups = summary["groups"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("method", f"{summary['method']} on {summary['scenario']}, seed {summary['seed']}")
    table.add_row("clients, rounds", f"{summary['clients']}, {summary['rounds']}")
    for line in _quality(summary):
        table.add_row(*line)
    if groups["found"] is not None:
        against = (
            "" if groups["ari"] is None else f", ARI {groups['ari']:.3f}, NMI {groups['nmi']:.3f} to the planted ones"
        )
        given = "".join(f" ({text})" for text in summary.get("given") or ())
        modularity = f"modularity {groups['modularity']:.3f}"
        table.add_row("groups in the last round", f"{groups['found']}{given}, {modularity}{against}")
    for way in ("up", "down"):
        amount, floats = summary["bytes"], summary["floats"]
        table.add_row(
            f"sent {way}",
            f"{megabytes(amount[way])} in all, {megabytes(amount[way + '_per_client'])} per client; "
            f"{floats[way]:,} floats in all, {floats[way + '_per_client']:,.0f} per client",
        )
    table.add_row("largest upload", f"{summary['floats']['largest_upload']:,} floats")
    if (operations := summary["flops"]["local_training"]) is not None:
        table.add_row("local training", f"{operations:.3g} floating-point operations")
    if calibration := summary.get("calibration"):
        slope = "" if calibration["slope"] is None else (
            f"; calibration slope {calibration['slope']:.2f} ({calibration['slope_low']:.2f} to "
            f"{calibration['slope_high']:.2f}), intercept {calibration['large']:+.2f}"
        )  # fmt: skip
        table.add_row(
            "pooled Brier score",
            f"{calibration['brier']:.4f} (one risk for all: {calibration['brier_none']:.4f}){slope}",
        )
    for text in summary.get("warnings") or ():
        table.add_row("warning", Text(text))
    if summary.get("missing"):
        table.add_row("missing", Text(missing_sentence(summary["missing"])))
    if summary.get("privacy"):
        table.add_row("privacy", Text(privacy_sentence(summary["privacy"])))
    seconds = summary["seconds"]
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("local", "graph", "evaluate"))
    table.add_row("seconds", f"{seconds['total']:.1f} ({parts})")
    return table


def _quality(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The metrics of the clients' models, and those of unseen clients."""
    metric = metric_of(summary)
    title, own = metric.title, summary[metric.name]
    if own.get("mean") is not None:
        yield f"{title}, mean over clients", f"{own['mean']:.4f}  (std {own['std']:.4f})"
        yield "worst 10 %, worst 20 %", f"{own['worst10']:.4f}, {own['worst20']:.4f}"
        yield ("variance of the percentage" if metric.share else "variance"), f"{own['variance']:.2f}"
    if own.get("weighted") is not None:
        yield f"{title}, weighted by test samples", f"{own['weighted']:.4f}"
    if own.get("pooled") is not None:
        error = f"  (binomial standard error {own['stderr']:.4f})" if "stderr" in own else ""
        yield f"pooled {title}", f"{own['pooled']:.4f}{error}"
    for name, other in METRICS.items():
        if other != metric and isinstance(own.get(name), Mapping) and own[name]["pooled"] is not None:
            mean = "" if own[name]["mean"] is None else f"{own[name]['mean']:.4f}, "
            yield f"{other.title}, mean and pooled", f"{mean}{own[name]['pooled']:.4f}"
    for other in (summary.get("metrics") or {}).values():
        if other.get("mean") is not None:
            best = "higher" if other["higher"] else "lower"
            told = f"{other['mean']:.4f}  (worst 10 %: {other['worst10']:.4f}; {best} is better)"
            yield f"{other['title']}, mean over clients", told
    if own.get("left_out"):
        yield "left out of the mean", f"{own['left_out']} clients without a defined value ({_silent(metric)})"
    unseen = summary.get("unseen") or {}
    if unseen.get("mean") is not None:
        gap = "" if summary["gap"] is None else f"  (worse by {summary['gap']:+.4f})"
        yield f"{title}, mean over {unseen['clients']} unseen clients", f"{unseen['mean']:.4f}{gap}"
    if unseen.get("pooled") is not None:
        yield f"pooled {title} of unseen clients", f"{unseen['pooled']:.4f}"


def _silent(metric: Metric) -> str:
    return "one class only" if metric.name == "auc" else "no foreground, and none predicted"


def comparison(rows: Sequence[Mapping[str, Any]]) -> Group:
    """One row per method, in 80 columns; with several seeds, the spread stands behind the mean.

    Columns that no method fills are left out; those that do not fit are in a second table.
    """
    seeds = rows[0]["seeds"]
    many = f", mean±std over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f", seed {seeds[0]}"
    metric = METRICS[rows[0].get("metric", "accuracy")]
    columns = {
        "mean": [_share(row["mean"], len(seeds)) for row in rows],
        "worst 10%": [_share(row["worst10"], len(seeds)) for row in rows],
        "unseen": [_share(row.get("unseen"), len(seeds)) for row in rows],
        "gap": [_share(row.get("gap"), len(seeds), sign=True) for row in rows],
        **{
            name: [_own((row.get("metrics") or {}).get(name), len(seeds)) for row in rows]
            for name in dict.fromkeys(name for row in rows for name in row.get("metrics") or ())
        },
        "gain": [_share(row["gain"], len(seeds), sign=True) for row in rows],
        "adds": [_sure(row.get("adds")) for row in rows],
        "hurt": ["-" if row["hurt"] is None or row.get("surely") else f"{100 * row['hurt'][0]:.0f} %" for row in rows],
        "surely": ["-" if not row.get("surely") else _counted(row["surely"], whole=True) for row in rows],
        "groups": [_plain(row["found"], 1) + "*" * bool(row.get("given")) for row in rows],
        "ARI": [_plain(row["ari"], 2) for row in rows],
        "epsilon": [_plain(row.get("epsilon"), 2) for row in rows],
        "sent": [megabytes(row["bytes_sent"][0]) for row in rows],
    }
    given = [f"{row['method']}: {row['given']}" for row in rows if row.get("given")]
    sure = [row["surely"] for row in rows if row.get("surely")]
    few = any(one["few"] for one in sure)
    rounded = any(value != round(value) for one in sure for value in one.values())
    shown = {head: cells for head, cells in columns.items() if head == "mean" or set(cells) != {"-"}}
    title, legend = f"test {metric.title} over clients{many}", _legend(shown, metric, few, given, rounded) or None
    parts = _that_fit(shown, max(len(row["method"]) for row in rows))
    return Group(*(
        _part([row["method"] for row in rows], part, title if part is parts[0] else None,
              legend if part is parts[-1] else None)
        for part in parts
    ))  # fmt: skip


def _that_fit(columns: Mapping[str, list[str]], first: int) -> list[dict[str, list[str]]]:
    """The columns in as few parts as 80 columns of a terminal allow; first: the width of the methods' names."""
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


def _part(names: Sequence[str], columns: Mapping[str, list[str]], title: str | None, caption: str | None) -> Table:
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", title_style="",
        caption_style="dim", pad_edge=False, box=SIMPLE_HEAD, collapse_padding=True, show_edge=False,
        min_width=64,  # room for the title on one line
    )  # fmt: skip
    table.add_column("method", no_wrap=True)
    for head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for name, *cells in zip(names, *columns.values(), strict=True):
        table.add_row(name, *cells)
    return table


def _legend(shown: Iterable[str], metric: Metric, few: bool, given: Iterable[str], rounded: bool) -> str:
    """The meaning of the column heads that are shown."""
    gain = f"the {metric.title} above training alone" if metric.share else "how much better than training alone"
    worse = "below it" if metric.share else "worse off"
    meaning = {
        "gain": f"gain: mean over clients of {gain}",
        "adds": "adds: what communication adds, the method minus NAME@self, with half its 95 % interval",
        "hurt": f"hurt: share of clients {worse}",
        "surely": "surely: clients that gain/are hurt/cannot be told apart"
        + ("/have too few events or samples" if few else "")
        + ", by 95 % intervals"
        + (" (means over seeds, each rounded: the sum may miss a client)" if rounded else ""),
        "gap": "gap: how much worse unseen clients do",
    }
    told = [f"*given: {', '.join(given)}"] if given else []
    return "; ".join([text for head, text in meaning.items() if head in shown] + told)


def profiled(summary: Mapping[str, Any]) -> Table:
    """Where a run's time went; the rest, in no row, is set-up, sampling and averaging outside the flows."""
    titles = {"local": "local training", "graph": "server and graph", "evaluate": "evaluation", "messages": "messages",
              "records": "records", "checkpoint": "checkpoints"}  # fmt: skip
    seconds, rounds = summary["seconds"], max(summary["rounds"], 1)
    parts = {title: seconds[part] for part, title in titles.items() if part in seconds}
    phases = {name.removeprefix("local."): spent for name, spent in seconds.items() if name.startswith("local.")}
    if len(phases) > 1:
        del parts["local training"]
        parts = {f"at clients: {phase}": spent for phase, spent in phases.items()} | parts
    parts["the rest"] = max(seconds["total"] - sum(parts.values()), 0.0)
    table = Table("where the time went")
    for heading in ("seconds", "ms a round", "share"):
        table.add_column(heading, justify="right")
    for title, spent in [*parts.items(), ("total", seconds["total"])]:
        share = spent / seconds["total"] if seconds["total"] else 0.0
        table.add_row(title, f"{spent:.2f}", f"{1e3 * spent / rounds:.1f}", f"{share:.1%}")
    return table


def training_paths(summary: Mapping[str, Any]) -> list[Table]:
    """How each net was trained with each loss, and why not stacked; nothing if it is not known."""
    table = Table("how nets were trained")
    for heading in ("loss", "path", "why"):
        table.add_column(heading)
    for each in summary.get("training_paths") or ():
        table.add_row(*(Text(str(each[part])) for part in ("net", "loss", "path", "why")))
    return [table] if table.row_count else []


def left_out(results: Mapping[str, Mapping[str, Mapping[int, Result]]]) -> Table:
    """One row per method: its mean over each group's clients when that group was left out, and over all groups.

    results: by group, method and seed.
    """
    groups, methods = list(results), list(next(iter(results.values())))
    first = next(iter(results[groups[0]][methods[0]].values()))
    seeds = sorted(results[groups[0]][methods[0]])
    table = Table(
        min_width=64,  # room for the title on one line
        title=f"test {first.metric.title} of unseen clients, by the group left out",
        caption=f"mean over clients, then over seeds {', '.join(map(str, seeds))}", title_justify="left",
        caption_justify="left", title_style="", caption_style="dim", pad_edge=False, box=SIMPLE_HEAD,
        collapse_padding=True, show_edge=False,
    )  # fmt: skip
    table.add_column("method", no_wrap=True)
    for head in (*groups, "mean"):
        table.add_column(head, justify="right", no_wrap=True)
    for method in methods:
        cells = [_unseen_mean(results[group][method].values()) for group in groups]
        known = [cell for cell in cells if cell is not None]
        mean = sum(known) / len(known) if len(known) == len(cells) else None
        table.add_row(method, *("-" if cell is None else f"{cell:.3f}" for cell in (*cells, mean)))
    return table


def _unseen_mean(runs: Iterable[Result]) -> float | None:
    means = [(run.summary.get("unseen") or {}).get("mean") for run in runs]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if len(known) == len(means) else None


def _share(value: tuple[float, float] | None, seeds: int, sign: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value[0]:+.3f}" if sign else f"{value[0]:.3f}"
    return f"{text}±{value[1]:.3f}".replace("±0.", "±.") if seeds > 1 else text


def _own(value: Mapping[str, float] | None, seeds: int) -> str:
    return "-" if value is None else _share((value["mean"], value["sd"]), seeds)


def _sure(value: Mapping[str, float | None] | None) -> str:
    """A mean difference with half its interval, which is symmetric."""
    if value is None or value["mean"] is None:
        return "-"
    half = "" if value["high"] is None else f"±{value['high'] - value['mean']:.3f}".replace("±0.", "±.")
    return f"{value['mean']:+.3f}{half}"


def _plain(value: tuple[float, float] | None, digits: int) -> str:
    return "-" if value is None else f"{value[0]:.{digits}f}"


def _counted(counts: Mapping[str, float], whole: bool = False) -> str:
    """Counts of the verdicts in a short cell: gained/hurt/cannot be told apart, and the too few if there are any.

    whole: means over seeds as whole numbers.

    >>> counts = {"gained": 31, "lost": 0.3, "apart": 8.7, "few": 0}
    >>> _counted(counts), _counted(counts, whole=True)
    ('31/0.3/8.7', '31/0/9')
    """
    shown = [name for name in COUNTED if name != "few" or counts[name]]
    return "/".join(f"{counts[name]:.{0 if whole else 1}f}".removesuffix(".0") for name in shown)
