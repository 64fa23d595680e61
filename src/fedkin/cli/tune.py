"""`fedkin tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedkin.cli.experiments import kept_plan, planned, rooted, wanted
from fedkin.cli.options import EXPERIMENT, JSON, METHODS, OUT, RESTART, RESUME, ROOT, ROUNDS, SEEDS, SET
from fedkin.cli.progress import Several, stop_on_signals
from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.running.candidates import Equal
    from fedkin.running.choices import Choice
    from fedkin.running.tuning import HoldOut, Tried
    from fedkin.tasks import Metric

__all__ = ["tune"]


def tune(
    experiment: Path | None = EXPERIMENT,
    choices: list[str] = typer.Option(
        [], "--try", metavar="A.B=V,V", help="Values of a setting to try: training.lr=0.01,0.1; may be repeated. "
        "tfl:method.q=0.1,1 is tried for one method only.",
    ),
    equal: str | None = typer.Option(
        None, "--equal", metavar="N", help="In place of --try: N candidates for every method, over its rate and the "
        "settings that it declares.",
    ),
    rates: str | None = typer.Option(
        None, "--rates", metavar="LOW,HIGH", help="With --equal: range of training.lr (default: a tenth to ten times)."
    ),
    halving: bool = typer.Option(
        False, "--halving", help="With --equal: all candidates for a part of the rounds, the best third three times as "
        "long, and so on."
    ),
    methods: str | None = METHODS,
    hold_out: str = typer.Option(
        "samples:0.2", "--hold-out", metavar="WHAT:SHARE",
        help="What candidates are judged on: samples:0.2 of each client's training samples, or clients:0.25.",
    ),
    seeds: str | None = SEEDS,
    changes: list[str] = SET,
    rounds: int | None = ROUNDS,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    restart: bool = RESTART,
    json: bool = JSON,
) -> None:  # fmt: skip
    """Choose settings per method, judged on held-out training data; writes tuned.toml for `compare`."""
    from fedkin.running.tuning import HoldOut
    from fedkin.running.tuning import tune as run_all

    plan, folder = planned(experiment, changes, rounds, out, resume, restart, marker="plan.json")
    if resume is not None:
        if methods is not None or seeds is not None or choices or equal is not None or rates is not None or halving:
            raise ConfigError("--resume goes on with the methods, seeds and values in its folder: give no others")
        names, seeded, hold, tried = _kept(folder)
    else:
        tried = _asked(choices, equal, rates, halving)
        plan, names, seeded = wanted(plan, methods, seeds)
        hold = HoldOut.parse(hold_out)
    root = rooted(folder, data_root, resume is not None)
    with stop_on_signals(folder) as stop:
        shown = Several(stop, json)
        found = run_all(
            plan, names, tried, hold, seeded, root, folder, resume=True, restart=restart,
            watcher=lambda name, values, seed, done, of: shown.next(
                f"{name} {_settings(values)} seed {seed}", done, of
            ),
        )  # fmt: skip
    if json:
        print(as_json(_rows(found)))
    else:
        screen().print(_table(found, plan.data.load(root).task.metric))
        console = screen(soft_wrap=True)
        console.print(f"judged on {hold} of the training data, seeds {', '.join(map(str, seeded))}")
        console.print(f"experiment with what was chosen: {folder / 'tuned.toml'}")
    _check(found)


def _asked(choices: list[str], equal: str | None, rates: str | None, halving: bool) -> list[Choice] | Equal:
    """What is to be tried; raises ConfigError for options that do not go together."""
    from fedkin.running.candidates import Equal
    from fedkin.running.choices import Choice

    if bool(choices) == (equal is not None) or ((rates is not None or halving) and equal is None):
        raise ConfigError("--try: name at least one setting and its values, such as training.lr=0.01,0.1; or give "
                          "--equal N, with --rates LOW,HIGH and --halving")  # fmt: skip
    return [Choice.parse(text) for text in choices] if equal is None else Equal.parse(equal, rates, halving)


def _kept(folder: Path) -> tuple[list[str], list[int], HoldOut, list[Choice] | Equal]:
    """(methods, seeds, what is held out, what is tried) of a tuning that was begun in a folder."""
    from fedkin.records import schema
    from fedkin.running.candidates import Equal
    from fedkin.running.choices import Choice
    from fedkin.running.tuning import HoldOut

    kept = kept_plan(folder, schema.Trials, "try", "tuning")
    names, seeds, hold = kept["methods"], kept["seeds"], HoldOut.parse(kept["hold_out"])
    if kept.get("equal") is None:
        return names, seeds, hold, [Choice(path, tuple(values), method) for method, path, values in kept["try"]]
    number, ends, drawn = kept["equal"]
    rates = None if ends is None else (ends[0], ends[1])
    return names, seeds, hold, Equal(number, rates, drawn, halving=kept.get("halving", False))


def _rows(found: Mapping[str, Sequence[Tried]]) -> dict[str, Any]:
    return {
        name: [{"settings": dict(one.settings), "values": one.values, "failed": one.failed} for one in every]
        for name, every in found.items()
    }


def _table(found: Mapping[str, Sequence[Tried]], metric: Metric) -> Table:
    """A row for each candidate; the chosen one says which of its settings are at the border of what was tried."""
    from fedkin.running.candidates import at_the_border
    from fedkin.running.tuning import best

    table = Table("method", "settings", f"{metric.title}, held out", "", box=None)
    for name, tried in found.items():
        chosen = best(tried, metric.higher)
        for one in tried:
            value = one.failed if one.failed is not None else f"{one.mean:.4f}"
            value += "" if one.rounds is None else f" after {one.rounds} rounds"
            border = at_the_border(one.settings, [other.settings for other in tried])
            table.add_row(name, _settings(one.settings), value, "; ".join(["chosen", *border]) if one is chosen else "")
    return table


def _check(found: Mapping[str, Sequence[Tried]]) -> None:
    """Raise ConfigError for the methods without any judged candidate."""
    failed = {name: tried[0].failed for name, tried in found.items() if all(math.isnan(one.mean) for one in tried)}
    if failed:
        why = "; ".join(f"{name}: {first or 'nothing held out could be judged'}" for name, first in failed.items())
        raise ConfigError(
            f"every candidate failed of {', '.join(failed)}, whose settings stay as they were; of each the first: {why}"
        )


def _settings(values: Any) -> str:
    return ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in values.items()) or "as they are"
