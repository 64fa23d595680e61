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
    from fedkin.running.experiment import Experiment
    from fedkin.running.tuning import Tried
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
    optuna: bool = typer.Option(
        False, "--optuna", help="With --equal, N at least 4: a third of the candidates, at least three, spread evenly; "
        "Optuna chooses the others by the figures of those before. Needs fedkin[optuna]."
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
    from fedkin.records import schema
    from fedkin.running.tuning import HoldOut
    from fedkin.running.tuning import tune as run_all

    plan, folder = planned(experiment, changes, rounds, out, resume, restart, marker="plan.json", methods=methods)
    given = bool(choices) or equal is not None
    shaped = rates is not None or halving or optuna
    if resume is not None:
        if methods is not None or seeds is not None or given or shaped:
            raise ConfigError("--resume goes on with the methods, seeds and values in its folder: give no others")
        kept = kept_plan(folder, schema.Trials, "try", "tuning")
        names, seeded, hold, tried = kept["methods"], kept["seeds"], HoldOut.parse(kept["hold_out"]), _kept(kept)
    else:
        tried = _wanted(choices, equal, rates, halving, optuna)
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
        rows = {name: [{"settings": dict(one.settings), "values": one.values, "failed": one.failed} for one in every]
                for name, every in found.items()}  # fmt: skip
        print(as_json(rows))
    else:
        screen().print(_table(found, plan.data.load(root).task.metric, plan, tried))
        console = screen(soft_wrap=True)
        if not isinstance(tried, list) and tried.optuna:
            console.print(f"{tried.chosen} of each method's {tried.candidates} candidates were chosen by Optuna")
        console.print(f"judged on {hold} of the training data, seeds {', '.join(map(str, seeded))}")
        console.print(f"experiment with what was chosen: {folder / 'tuned.toml'}")
    _check(found)


def _wanted(
    choices: Sequence[str], equal: str | None, rates: str | None, halving: bool, optuna: bool
) -> list[Choice] | Equal:
    """What to try, by the options; raises ConfigError."""
    from fedkin.running.candidates import Equal
    from fedkin.running.choices import Choice

    if bool(choices) == (equal is not None) or ((rates is not None or halving or optuna) and equal is None):
        raise ConfigError("--try: name at least one setting and its values, such as training.lr=0.01,0.1; or give "
                          "--equal N, with --rates LOW,HIGH and --halving or --optuna")  # fmt: skip
    return [Choice.parse(text) for text in choices] if equal is None else Equal.parse(equal, rates, halving, optuna)


def _kept(plan: Mapping[str, Any]) -> list[Choice] | Equal:
    """What to try, by the plan of a tuning that goes on."""
    from fedkin.running.candidates import Equal
    from fedkin.running.choices import Choice

    if plan.get("equal") is None:
        return [Choice(path, tuple(values), method) for method, path, values in plan["try"]]
    number, ends, drawn = plan["equal"]
    return Equal(
        number, None if ends is None else (ends[0], ends[1]), drawn, halving=plan.get("halving", False),
        optuna=plan.get("optuna") is not None,
    )  # fmt: skip


def _table(
    found: Mapping[str, Sequence[Tried]], metric: Metric, plan: Experiment, how: Sequence[Choice] | Equal
) -> Table:  # fmt: skip
    """A row for each candidate; the chosen one says which of its settings are at the border of what was tried."""
    from fedkin.running.candidates import Equal, at_the_border
    from fedkin.running.tuning import best

    table = Table("method", "settings", f"{metric.title}, held out", "", box=None)
    for name, tried in found.items():
        chosen = best(tried, metric.higher)
        for one in tried:
            value = one.failed if one.failed is not None else f"{one.mean:.4f}"
            value += "" if one.rounds is None else f" after {one.rounds} rounds"
            every = [other.settings for other in tried]
            border = (
                how.border(plan.for_method(name), one.settings, every) if isinstance(how, Equal)
                else at_the_border(one.settings, every)
            )  # fmt: skip
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
