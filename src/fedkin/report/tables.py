"""Tables for the terminal: one run, and a comparison of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from fedkin.running.loop import Result

__all__ = ["comparison", "megabytes", "one_run"]


def megabytes(count: float) -> str:
    """Bytes as a person reads them: 1 kB is 1,000 bytes.

    >>> megabytes(0), megabytes(24616), megabytes(98_464_000)
    ('0', '24.6 kB', '98.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B" if count else "0"


def one_run(result: Result) -> Table:
    """The figures of a run, one a line."""
    summary = result.summary
    accuracy, groups = summary["accuracy"], summary["groups"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("method", f"{summary['method']} on {summary['scenario']}, seed {summary['seed']}")
    table.add_row("clients, rounds", f"{summary['clients']}, {summary['rounds']}")
    if accuracy["clients"]:
        table.add_row("accuracy, mean over clients", f"{accuracy['mean']:.4f}  (std {accuracy['std']:.4f})")
        table.add_row("worst 10 %, worst 20 %", f"{accuracy['worst10']:.4f}, {accuracy['worst20']:.4f}")
        table.add_row("variance of the percentage", f"{accuracy['variance']:.2f}")
        table.add_row(
            "pooled accuracy", f"{accuracy['pooled']:.4f}  (binomial standard error {accuracy['stderr']:.4f})"
        )
    if groups["found"] is not None:
        against = (
            "" if groups["ari"] is None else f", ARI {groups['ari']:.3f}, NMI {groups['nmi']:.3f} to the planted ones"
        )
        table.add_row("groups in the last round", f"{groups['found']}, modularity {groups['modularity']:.3f}{against}")
    for way in ("up", "down"):
        amount, floats = summary["bytes"], summary["floats"]
        table.add_row(
            f"sent {way}",
            f"{megabytes(amount[way])} in all, {megabytes(amount[way + '_per_client'])} per client; "
            f"{floats[way]:,} floats in all, {floats[way + '_per_client']:,.0f} per client",
        )
    table.add_row("largest upload", f"{summary['floats']['largest_upload']:,} floats")
    table.add_row("local training", f"{summary['flops']['local_training']:.3g} floating-point operations")
    seconds = summary["seconds"]
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("local", "graph", "evaluate"))
    table.add_row("seconds", f"{seconds['total']:.1f} ({parts})")
    return table


def comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line per method, in 80 columns; spread over seeds behind the mean where there are several."""
    seeds = rows[0]["seeds"]
    many = f", mean±std over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f", seed {seeds[0]}"
    table = Table(
        title=f"test accuracy over clients{many}",
        caption="gain: mean over clients of the accuracy above training alone; hurt: share of clients below it",
        title_justify="left", caption_justify="left", title_style="", caption_style="dim", pad_edge=False,
        box=SIMPLE_HEAD, collapse_padding=True, show_edge=False,
    )  # fmt: skip
    table.add_column("method", no_wrap=True)
    for head in ("mean", "worst 10%", "gain", "hurt", "groups", "ARI", "sent"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            _share(row["mean"], len(seeds)),
            _share(row["worst10"], len(seeds)),
            _share(row["gain"], len(seeds), sign=True),
            "-" if row["hurt"] is None else f"{100 * row['hurt'][0]:.0f} %",
            _plain(row["found"], 1),
            _plain(row["ari"], 2),
            megabytes(row["bytes_up"][0] + row["bytes_down"][0]),
        )
    return table


def _share(value: tuple[float, float] | None, seeds: int, sign: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value[0]:+.3f}" if sign else f"{value[0]:.3f}"
    return f"{text}±{value[1]:.3f}".replace("±0.", "±.") if seeds > 1 else text


def _plain(value: tuple[float, float] | None, digits: int) -> str:
    return "-" if value is None else f"{value[0]:.{digits}f}"
