"""Tuning of settings per method by grid search on held-out training data; test samples are never used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.errors import ConfigError
from fedkin.records import reading
from fedkin.records.files import add_sealed, flat, json_bytes, read_json
from fedkin.running.candidates import Equal
from fedkin.running.changes import taken_changes
from fedkin.running.choices import Choice, check_methods, grid
from fedkin.running.experiment import Experiment
from fedkin.running.guided import version
from fedkin.running.holding import HoldOut, held_out
from fedkin.running.trying import Cell, Hears, Trials, Tried, best

__all__ = ["HoldOut", "Tried", "best", "held_out", "tune", "tuned"]


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path, folder: Path, *, resume: bool = False, restart: bool = False,
    watcher: Hears | None = None,
) -> dict[str, list[Tried]]:  # fmt: skip
    """Run every candidate of every method on `held_out` federations, and write the best of each to `tuned.toml`.

    choices: a grid, or as many candidates for every method (`Equal`). restart: whether damaged runs begin anew, else
    they are refused. watcher(method, settings, seed, runs done, runs in all) watches a run. Raises ConfigError for a
    setting that a method does not have, and if every candidate of a method failed.
    """
    given = [(c.method, c.path) for c in choices] if not isinstance(choices, Equal) else ["equal"]
    for names, option in ((methods, "--methods"), (seeds, "--seeds"), (given, "--try")):
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{option}: at least one is needed, and none twice")
    plan = _plan(methods, choices, hold, seeds)
    if not isinstance(choices, Equal):
        check_methods(choices, methods, "--try")
    plans = {name: _candidates(experiment.for_method(name), choices) for name in methods}
    if (folder / "experiment.toml").exists() and (kept := read_json(folder / "plan.json")) != plan:
        raise ConfigError(f"{folder / 'plan.json'} {_differs(kept, plan)}")
    trials = Trials(experiment.data.load(data_root), hold, seeds, data_root, folder, restart, watcher)
    for cells in plans.values():
        for _, candidate in cells:
            trials.check(candidate)
    with experiment.claimed(folder, resume, data_root, plan):
        found = _found(trials, experiment, plans, choices)
        table = tuned(experiment, found, trials.higher)
        means = {name: one.mean for name, tried in found.items() if (one := best(tried, trials.higher))}
        judged = json_bytes({"hold_out": str(hold), "means": means})
        add_sealed(folder, {"tuned.toml": tomli_w.dumps(table).encode(), reading.VALIDATION: judged})
    return found


def _plan(
    methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut, seeds: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """What plan.json holds: a tuning goes on only with the same."""
    plan: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "hold_out": str(hold), "try": []}
    if not isinstance(choices, Equal):
        return plan | {"try": [[c.method, c.path, list(c.values)] for c in choices]}
    plan["equal"] = [choices.candidates, choices.rates and list(choices.rates), choices.seed]
    if choices.halving:
        plan["halving"] = True
    if choices.optuna:
        plan["optuna"] = version()  # another version may choose other candidates
    return plan


def _differs(kept: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Why a tuning cannot go on with another plan."""
    theirs, ours = kept.get("optuna"), plan.get("optuna")
    if theirs and ours and {**kept, "optuna": ours} == plan:
        return (
            f"has candidates chosen by Optuna {theirs}; {ours}, which is installed, may choose others: install that "
            "version, or begin in another folder"
        )
    return "differs from what to tune: it must be the same in every option"


def _candidates(experiment: Experiment, choices: Sequence[Choice] | Equal) -> list[Cell]:
    """Return the settings of each candidate of the experiment's method, and the experiment with them."""
    every = choices.settings(experiment) if isinstance(choices, Equal) else grid(choices, experiment.method.name)
    return [(values, experiment.with_changes(**values)) for values in every]


def _found(
    trials: Trials, experiment: Experiment, plans: Mapping[str, Sequence[Cell]], choices: Sequence[Choice] | Equal
) -> dict[str, list[Tried]]:
    """Return the candidates of each method with their figures."""
    equal = choices if isinstance(choices, Equal) else None
    if equal is None or not equal.halving:
        trials.total = len(trials.seeds) * sum(map(len, plans.values()))
        if equal is not None and equal.optuna:
            return {
                name: trials.guided(name, cells, experiment.for_method(name), equal) for name, cells in plans.items()
            }
        return {name: trials.every(name, cells) for name, cells in plans.items()}
    rungs = {name: equal.rungs(cells[0][1].training.rounds) for name, cells in plans.items()}
    trials.total = len(trials.seeds) * sum(count for steps in rungs.values() for count, _ in steps)
    return {name: trials.halved(name, cells, rungs[name]) for name, cells in plans.items()}


def tuned(experiment: Experiment, found: Mapping[str, Sequence[Tried]], higher: bool) -> dict[str, Any]:
    """Return the experiment's complete table with the best settings of each method in `[methods.NAME]`.

    A tuning that was resumed knows only the complete table, so that every tuning gives that one. A method whose
    candidates all failed keeps its settings.
    """
    table = experiment.resolved()
    sections = {name: flat(section) for name, section in table.get("methods", {}).items()}
    own = list(table.get("own", []))
    for name, tried in found.items():
        chosen = best(tried, higher)
        if chosen is not None:
            settings, files = taken_changes(chosen.settings)  # the table is read in another folder
            sections[name] = sections.get(name, {}) | settings
            own += files
    return table | {"methods": sections} | ({"own": list(dict.fromkeys(own))} if own else {})
