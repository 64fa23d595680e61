"""`fedkin sweep`."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.experiments import kept_plan, planned, rooted, wanted
from fedkin.cli.options import EXPERIMENT, JSON, METHODS, OUT, RESTART, RESUME, ROOT, ROUNDS, SEEDS, SET
from fedkin.cli.progress import Several, stop_on_signals
from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError

__all__ = ["sweep"]


def sweep(
    experiment: Path | None = EXPERIMENT,
    choices: list[str] = typer.Option(
        [], "--grid", metavar="A.B=V,V", help="Values of a setting: method.q=1,0.1; may be repeated. "
        "tfl:method.q=1,0.1 is for one method only.",
    ),
    methods: str | None = METHODS,
    seeds: str | None = SEEDS,
    changes: list[str] = SET,
    rounds: int | None = ROUNDS,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    restart: bool = RESTART,
    json: bool = JSON,
) -> None:  # fmt: skip
    """Run a grid of settings with several seeds: a table, a plot and sweep.csv. To choose a setting, use tune."""
    from fedkin.records import schema
    from fedkin.report.sweeping import draw
    from fedkin.report.tables import comparison
    from fedkin.running.choices import Choice
    from fedkin.running.sweep import rows, words
    from fedkin.running.sweep import sweep as run_all

    plan, folder = planned(experiment, changes, rounds, out, resume, restart, marker="plan.json", methods=methods)
    if resume is not None:
        if methods is not None or seeds is not None or choices:
            raise ConfigError("--resume goes on with the methods, seeds and values in its folder: give no others")
        kept = kept_plan(folder, schema.Sweep, "grid", "sweep")
        names, seeded = kept["methods"], kept["seeds"]
        cells = [Choice(path, tuple(values), method) for method, path, values in kept["grid"]]
    else:
        if not choices:
            raise ConfigError("--grid: name at least one setting and its values, such as method.q=1,0.1")
        plan, names, seeded = wanted(plan, methods, seeds)
        cells = [Choice.parse(text, "--grid") for text in choices]
    root = rooted(folder, data_root, resume is not None)
    with stop_on_signals(folder) as stop:
        shown = Several(stop, json)
        found = run_all(
            plan, names, cells, seeded, root, folder, resume=True, restart=restart,
            watcher=lambda name, settings, seed, done, of: shown.next(
                f"{name} {words(settings)} seed {seed}", done, of
            ),
        )  # fmt: skip
    made = rows(found)
    page = folder / "sweep.html"
    draw(made, list(dict.fromkeys(choice.path for choice in cells)), page, title=f"{plan.name}: a sweep")
    if json:
        print(as_json(made))
        return
    screen().print(comparison([{**row, "method": f"{row['method']}, {row['settings']}"} for row in made]))
    console = screen(soft_wrap=True)
    console.print("figures on test samples: to choose a setting, use fedkin tune")
    console.print(f"records: {folder}")
    console.print(f"table:   {folder / 'sweep.csv'}")
    console.print(f"plot:    {page}")
