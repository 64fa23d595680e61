"""The page of `fedkin bench`: how a method ranks on a suite, from the content of bench.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fedkin._version import __version__
from fedkin.report.html import NONE, render

Data = Mapping[str, Any]

NOTES = (
    "mean: over clients, accuracy, ROC-AUC or variance explained, in %",
    "difference: from the best of local, fedavg, fedavg-ft, ditto, fedper",
    "adds, less @self: the method minus its control without exchange",
    "in brackets: paired 95 % intervals over seeds; *: it excludes 0",
    "the mean over federations mixes points of their metrics; its interval says how much these federations differ",
    "hurt: clients below training alone (in brackets: significantly below)",
)


def headline(data: Data) -> str:
    """Summarise the method's results in one sentence.

    >>> headline({"method": "ditto", "suite": "quick", "federations": [], "mean_gain": None})
    'ditto finished on no federation of suite quick'
    """
    rows = [row for row in data["federations"] if row["mean"] is not None]
    if not rows:
        return f"{data['method']} finished on no federation of suite {data['suite']}"
    gains = [row["gain"] for row in rows if row["gain"] is not None and row["gain"]["low"] is not None]
    above, below = sum(gain["low"] > 0 for gain in gains), sum(gain["high"] < 0 for gain in gains)
    rank, rest = sum(row["rank"] for row in rows) / len(rows), len(rows) - above - below
    gain, given = data["mean_gain"], sorted({text for row in data["federations"] for text in row["given"]})
    mean = "" if gain is None else f"; in the mean of {gain['federations']} federations {interval(gain)} points from it"
    return (
        f"{data['method']}: mean rank {rank:.1f} over {len(rows)} of {len(data['federations'])} federations; "
        f"significantly above the best simple method on {above}, significantly below on {below}, neither on {rest}"
        f"{mean}{''.join(f'; {text}' for text in given)}"
    )


def budget(data: Data) -> str:
    """Describe how methods were run: rounds, steps, seeds and learning rates."""
    budget = data["budget"]
    return (
        f"suite {data['suite']}: {budget['rounds']} rounds of {budget['local_steps']} steps, "
        f"{len(budget['seeds'])} seeds, the best of {budget['rates']} learning rates on held-out training samples"
    )


def interval(gain: Mapping[str, Any] | None, brackets: bool = True) -> str:
    """Return a difference with its interval, or (brackets=False) with a * if the interval excludes 0.

    >>> interval({"value": 1.25, "low": 0.5, "high": 2.0}), interval({"value": 1.25, "low": 0.5, "high": 2.0}, False)
    ('+1.2 (+0.5 to +2.0)', '+1.2*')
    """
    if gain is None:
        return "-"
    low, high = gain["low"], gain["high"]
    if low is None or high is None:
        return f"{gain['value']:+.1f}"
    if brackets:
        return f"{gain['value']:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"{gain['value']:+.1f}" + ("*" if low > 0 or high < 0 else "")


def page(data: Data) -> str:
    """Return the page as HTML text."""
    controls = sorted({control for row in data["federations"] for control in row["adds"]})
    heads = [
        "federation", "mean", "rank", "best simple", "difference", *(f"less @{control}" for control in controls),
        ("hurt", NOTES[-1]), ("training", "samples in all local steps, as a multiple of FedAvg's"), "MB sent",
        ("ARI", "agreement of its groups with the planted ones"), ("rate", "* the first or last that was tried"),
    ]  # fmt: skip
    ranks = data["ranks"] or {"mean_ranks": {}}
    return render(
        "bench.html", data=data, version=__version__, headline=headline(data), budget=budget(data), notes=NOTES,
        heads=heads, rows=[_cells(row, controls) for row in data["federations"]],
        hurt=[f"{row['federation']}: {', '.join(row['surely'])}" for row in data["federations"] if row["surely"]],
        ranks=[
            (Markup("<strong>{}</strong>").format(name) if name == data["method"] else name, f"{rank:.1f}")
            for name, rank in ranks["mean_ranks"].items()
        ],
        settings=list({**data["settings"], **data["versions"]}.items()),
    )  # fmt: skip


def _cells(row: Data, controls: Sequence[str]) -> list[str]:
    if row["mean"] is None:
        return [row["federation"], f"failed: {row['failed'] or 'no rate works'}"]
    return [
        row["federation"], f"{row['mean']:.1f}", f"{row['rank']} of {row['of']}", row["reference"] or "-",
        interval(row["gain"]), *(interval(row["adds"].get(control)) for control in controls),
        NONE if row["hurt"] is None else f"{row['hurt']} ({len(row['surely'])}) of {row['clients']}",
        NONE if row["trained"] is None else f"{row['trained']:.2f}",
        NONE if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}",
        NONE if row["ari"] is None else f"{row['ari']:.2f}",
        f"{row['lr']:g}{'*' if row['border'] else ''}",
    ]  # fmt: skip
