"""`fedkin bench`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from fedkin.cli.output import as_json, print_lines, print_paths
from fedkin.cli.progress import hearing
from fedkin.running.progress import make_console


def bench(
    method: str = typer.Argument(..., help="A method, or FILE.py:CLASS."),
    suite: str = typer.Option("quick", "--suite", help="quick, or a Python file with SUITE = Suite(...)."),
    change: list[str] | None = typer.Option(None, "--set", help="A setting of the method, such as lam=0.1."),
    out: Path | None = typer.Option(None, "--out", help="Folder of the runs (default: runs/bench/METHOD)."),
    store: bool = typer.Option(False, "--store", help="Keep the results among those of the suite, for later methods."),
    json: bool = typer.Option(False, "--json", help="Print what bench.json holds."),
) -> None:
    """Say where a method stands: run it on a suite of federations, tuned and with seeds, among all other methods."""
    from fedkin.errors import ConfigError
    from fedkin.methods import METHODS
    from fedkin.report import bench_page
    from fedkin.running import bench as benching
    from fedkin.running.experiment import setting_value
    from fedkin.running.plugins import named_in
    from fedkin.running.suites import suite_of
    from fedkin.settings import choose, parse

    chosen = suite_of(suite)
    (name,), _ = named_in([method], "method", Path(), "METHOD")
    kind = choose(METHODS, name, "METHOD")
    options: dict[str, Any] = {}
    for text in change or []:
        setting, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected SETTING=VALUE, such as lam=0.1")
        options[setting.removeprefix("method.")] = setting_value(value, f"--set {text}")
    built = parse(kind, options, "method")
    label = name + "".join(f", {setting}={value}" for setting, value in options.items())
    folder = out or Path("runs") / "bench" / label.replace(", ", "-").replace("=", "-").replace("/", "-")
    with hearing(folder, json, "the same command") as hears:
        data = benching.bench(chosen, built, label, folder, hears)
    if store:
        benching.store(chosen, label, folder)
    (folder / "bench.html").write_text(bench_page.page(data), encoding="utf-8")
    if json:
        print(as_json(data))
        return
    make_console().print(_table(data))
    print_lines([bench_page.headline(data), "; ".join([*bench_page.NOTES, *_borders(data)])])
    print_paths(folder, folder / "bench.html")


def _table(data: Mapping[str, Any]) -> Table:
    from fedkin.report.bench_page import interval

    table = Table("federation", "mean", "rank", "best simple", "difference", "adds", "hurt", box=None, pad_edge=False)
    for row in data["federations"]:
        if row["mean"] is None:
            table.add_row(row["federation"], "-", "-", "", row["failed"][:40] or "no rate works", "", "")
            continue
        hurt = "-" if row["hurt"] is None else f"{row['hurt']} ({row['surely']}) of {row['clients']}"
        table.add_row(
            row["federation"], f"{row['mean']:.1f}", f"{row['rank']} of {row['of']}", row["reference"] or "-",
            interval(row["gain"], brackets=False), interval(row["adds"].get("self"), brackets=False), hurt,
        )  # fmt: skip
    return table


def _borders(data: Mapping[str, Any]) -> list[str]:
    """Where a rate beyond those tried may be better."""
    names = [row["federation"] for row in data["federations"] if row["border"]]
    return [f"the chosen rate is the first or last that was tried on: {', '.join(names)}"] if names else []
