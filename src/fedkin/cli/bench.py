"""`fedkin bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from fedkin.cli.options import method_lists
from fedkin.cli.output import make_console, print_lines, print_paths

if TYPE_CHECKING:
    from fedkin.running.bench import Place
    from fedkin.running.suites import Suite

__all__ = ["bench"]


def bench(
    method: str = typer.Argument(..., help="A method, or FILE.py:CLASS.", autocompletion=method_lists),
    suite: str = typer.Option("quick", "--suite", help="quick, or a Python file with SUITE = Suite(...)."),
    change: list[str] | None = typer.Option(None, "--set", help="A setting of the method, such as lam=0.1."),
    out: Path | None = typer.Option(None, "--out", help="Folder of the runs (default: runs/bench/METHOD)."),
    store: bool = typer.Option(False, "--store", help="Keep the results among those of the suite, for later methods."),
    json: bool = typer.Option(False, "--json", help="Print what bench.json holds."),
) -> None:
    """Say where a method stands: run it on a suite of federations, tuned and with seeds, among all other methods."""
    from fedkin.errors import ConfigError
    from fedkin.methods import METHODS
    from fedkin.running import bench as benching
    from fedkin.running.plugins import named_in
    from fedkin.running.suites import suite_of
    from fedkin.settings import choose, parse

    chosen = suite_of(suite)
    (name,), _ = named_in([method], "method", Path(), "METHOD")
    kind = choose(METHODS, name, "METHOD")
    options: dict[str, str] = {}
    for text in change or []:
        setting, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected SETTING=VALUE, such as lam=0.1")
        options[setting.removeprefix("method.")] = value
    built = parse(kind, _typed(options), "method")
    label = name + "".join(f", {setting}={value}" for setting, value in options.items())
    folder = out or Path("runs") / "bench" / label.replace(", ", "-").replace("=", "-").replace("/", "-")
    console = make_console(stderr=True, soft_wrap=True)
    try:
        places = benching.bench(chosen, built, label, folder, lambda text: None if json else console.print(text))
    except KeyboardInterrupt:
        console.print(f"stopped; {folder} keeps the runs that ended: the same command goes on")
        raise
    if store:
        benching.store(chosen, label, folder)
    if json:
        print((folder / "bench.json").read_text(encoding="utf-8"), end="")
        return
    make_console().print(_table(places))
    print_lines(_notes(chosen, label, places))
    print_paths(folder, folder / "bench.json")


def _typed(options: dict[str, str]) -> dict[str, object]:
    """Values as TOML reads them; other text is text."""
    import tomllib

    typed: dict[str, object] = {}
    for name, value in options.items():
        try:
            typed[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            typed[name] = value
    return typed


def _table(places: Sequence[Place]) -> Table:
    table = Table("federation", "mean", "rank", "best simple", "difference", "hurt", box=None, pad_edge=False)
    for place in places:
        if place.mean is None:
            table.add_row(place.federation, "-", "-", "", place.failed[:40] or "no rate works", "")
            continue
        gain = place.gain
        apart = "-" if gain is None else f"{gain.value:+.1f}"
        if gain is not None and gain.low is not None and gain.high is not None:
            apart += f" ({gain.low:+.1f} to {gain.high:+.1f})"
        hurt = "-" if place.hurt is None else f"{place.hurt} of {place.clients}"
        rank = f"{place.rank} of {place.of}"
        table.add_row(place.federation, f"{place.mean:.1f}", rank, place.reference or "-", apart, hurt)
    return table


def _notes(suite: Suite, label: str, places: Sequence[Place]) -> list[str]:
    """What the columns mean, and the summary over federations."""
    from statistics import mean

    from fedkin.running.bench import REFERENCE

    done = [place for place in places if place.mean is not None]
    rates = len(next(iter(suite.federations.values())).rates)
    how = f"{suite.rounds} rounds, {len(suite.seeds)} seeds, the best of {rates} rates on held-out training samples"
    notes = [
        f"{label} on suite {suite.name}: {how}",
        "mean: of clients, accuracy or ROC-AUC in %, or % of variance explained; hurt: below training alone",
        f"difference: from the best of {', '.join(REFERENCE)}, with its 95 % interval over seeds",
    ]
    ranks = [place.rank for place in done if place.rank is not None]
    if ranks:
        notes.append(f"mean rank {mean(ranks):.1f} over {len(done)} of {len(places)} federations")
    if edges := [place.federation for place in done if place.border]:
        notes.append(f"the chosen rate is the first or last that was tried on: {', '.join(edges)}")
    return notes
