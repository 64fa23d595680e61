"""Tuning of settings per method by grid search on held-out training data; test samples are never used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.pooled import pooled
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.federation import Client, Federation, Samples
from fedkin.folders import held
from fedkin.keys import rng
from fedkin.records import schema
from fedkin.records.checkpoints import ANEW
from fedkin.records.files import json_bytes, read_json
from fedkin.records.seals import add_sealed, faults, seal_of
from fedkin.records.tables import flat
from fedkin.running.candidates import Equal
from fedkin.running.changes import taken_changes
from fedkin.running.choices import Choice, check_methods, grid
from fedkin.running.compare import finished
from fedkin.running.controls import parted
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Watcher, execute

__all__ = ["HoldOut", "Tried", "best", "held_out", "tune", "tuned"]

_FAILED = "failed.json"


@dataclass(frozen=True)
class HoldOut:
    """The held-out data for candidates: a share of every client's training samples, or of the clients."""

    what: str
    share: float

    @classmethod
    def parse(cls, text: str) -> HoldOut:
        """Read "samples:0.2" or "clients:0.25"; raises ConfigError.

        >>> HoldOut.parse("clients:0.25")
        HoldOut(what='clients', share=0.25)
        """
        what, colon, number = text.partition(":")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if what not in ("samples", "clients") or not colon or not 0 < share < 1:
            raise ConfigError(
                f'--hold-out {text!r}: expected "samples:SHARE" or "clients:SHARE" with a share between 0 and 1'
            )
        return cls(what, share)

    def __str__(self) -> str:
        return f"{self.what}:{self.share:g}"


@dataclass(frozen=True)
class Tried:
    """A candidate of a method: its settings, and for each seed its metric on held-out data or why it failed.

    rounds: after how many rounds successive halving left it (None: it ran at full length).
    """

    settings: Mapping[str, Any]
    values: tuple[float, ...]
    failed: str | None = None
    rounds: int | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds; nan for a candidate that failed."""
        return float(np.mean(self.values)) if self.values and self.failed is None else math.nan


def held_out(federation: Federation, hold: HoldOut, seed: int) -> Federation:
    """Return the clients that take part, with some of their training samples as test samples.

    By samples: `share` of each client's training samples become test samples, at least one and never all; a client with
    one sample is not tested. By clients: `share` of the clients become unseen, and are tested on all their training
    samples. The draws are keyed by the seed and the client's id. The original test samples and unseen clients are not
    in the result.
    """
    seen = federation.seen
    away: set[str] = set()
    if hold.what == "clients":
        if len(seen) < 2:
            raise ConfigError(f"--hold-out {hold}: one client takes part, so that none can be held out")
        count = min(max(1, round(hold.share * len(seen))), len(seen) - 1)
        away = {seen[place] for place in rng(seed, "hold-out").permutation(len(seen))[:count]}

    def parted(id: str, train: Samples, phase: int) -> tuple[Samples, Samples]:
        if hold.what == "clients":
            return (train.take([]), train) if id in away else (train, train.take([]))
        order = rng(seed, "hold-out", id, phase).permutation(len(train))
        count = min(max(1, round(hold.share * len(train))), len(train) - 1)
        return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))

    def remade(client: Client) -> Client:
        train, test = parted(client.id, client.train, 0)
        changes = []
        for place, change in enumerate(client.changes):
            later, tested = parted(client.id, change.train, place + 1)
            changes.append(replace(change, train=later, test=tested))
        return replace(client, train=train, test=test, seen=client.id not in away, changes=tuple(changes))

    return Federation([remade(federation[id]) for id in seen], federation.task, federation.name)


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path, folder: Path, *, resume: bool = False, restart: bool = False,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None = None,
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
    plan: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "hold_out": str(hold), "try": []}
    if isinstance(choices, Equal):
        plan["equal"] = [choices.candidates, choices.rates and list(choices.rates), choices.seed]
        if choices.halving:
            plan["halving"] = True
    else:
        plan["try"] = [[c.method, c.path, list(c.values)] for c in choices]
    if not isinstance(choices, Equal):
        check_methods(choices, [parted(name)[0] for name in methods], "--try")
    plans = {name: _candidates(experiment.for_method(name), choices) for name in methods}
    if (folder / "experiment.toml").exists() and read_json(folder / "plan.json") != plan:
        raise ConfigError(f"{folder / 'plan.json'} differs from what to tune: it must be the same in every option")
    dataset = experiment.data.load(data_root)
    for candidates in plans.values():
        for _, candidate in candidates:
            candidate.setup(_federation(candidate, dataset, hold, seeds[0]), data_root)
    with experiment.claimed(folder, resume, data_root, plan):
        found = _tried(plans, choices, dataset, hold, seeds, data_root, folder, restart, watcher)
        table = tuned(experiment, found, dataset.task.metric.higher)
        means = {name: one.mean for name, tried in found.items() if (one := best(tried, dataset.task.metric.higher))}
        judged = json_bytes({"hold_out": str(hold), "means": means})
        add_sealed(folder, {"tuned.toml": tomli_w.dumps(table).encode(), schema.VALIDATION: judged})
    return found


def _candidates(
    experiment: Experiment, choices: Sequence[Choice] | Equal
) -> list[tuple[dict[str, Any], Experiment]]:  # fmt: skip
    """Return the settings of each candidate of the experiment's method, and the experiment with them."""
    every = choices.settings(experiment) if isinstance(choices, Equal) else grid(choices, experiment.method.name)
    return [(values, experiment.with_changes(**values)) for values in every]


def _tried(
    plans: Mapping[str, list[tuple[dict[str, Any], Experiment]]], choices: Sequence[Choice] | Equal, dataset: Dataset,
    hold: HoldOut, seeds: Sequence[int], data_root: Path, folder: Path, restart: bool,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None,
) -> dict[str, list[Tried]]:  # fmt: skip
    """Return the candidates of each method with their figures."""
    rungs = {
        name: choices.rungs(cells[0][1].training.rounds) if isinstance(choices, Equal) and choices.halving
        else [(len(cells), cells[0][1].training.rounds)]
        for name, cells in plans.items() if cells
    }  # fmt: skip
    total, done = sum(count for steps in rungs.values() for count, _ in steps) * len(seeds), 0
    found: dict[str, list[Tried]] = {name: [] for name in plans}
    for name, candidates in plans.items():
        left = list(range(len(candidates)))
        tried: dict[int, Tried] = {}
        for step, (count, rounds) in enumerate(rungs.get(name, ())):
            last = step == len(rungs[name]) - 1
            left = _leading(tried, left, dataset.task.metric.higher)[:count] if step else left
            for place in left:
                values, candidate = candidates[place]
                scored: list[float] = []
                failed = None
                for seed in seeds:
                    where = folder / f"{name}-{place}{'' if last else f'-{rounds}-rounds'}-seed{seed}"
                    hears = None if watcher is None else watcher(name, values, seed, done, total)
                    changes = {"run.seed": seed} | ({} if last else {"training.rounds": rounds})
                    value = _judge(candidate.with_changes(**changes), dataset, hold, data_root, where, hears, restart)
                    done += 1
                    if isinstance(value, str):
                        failed = failed or value
                    else:
                        scored.append(value)
                tried[place] = Tried(values, tuple(scored), failed, None if last else rounds)
        found[name] = [tried[place] for place in sorted(tried)]
    return found


def _leading(tried: Mapping[int, Tried], places: Sequence[int], higher: bool) -> list[int]:
    """These candidates, the best first; those that failed last."""

    def worth(place: int) -> float:
        mean = tried[place].mean
        return math.inf if math.isnan(mean) else -mean if higher else mean

    return sorted(places, key=worth)


def best(tried: Sequence[Tried], higher: bool) -> Tried | None:
    """Return the candidate at full length with the best mean, the first of equal ones; None if all failed."""
    known = [one for one in tried if one.rounds is None and not math.isnan(one.mean)]
    return max(known, key=lambda one: one.mean if higher else -one.mean) if known else None


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


def _federation(experiment: Experiment, dataset: Dataset, hold: HoldOut, seed: int) -> Federation:
    scenario = experiment.scenario
    apart = held_out(scenario.model_copy(update={"pooled": False}).federation(dataset, seed), hold, seed)
    return pooled(apart) if scenario.pooled else apart


def _judge(
    experiment: Experiment, dataset: Dataset, hold: HoldOut, data_root: Path, folder: Path, watcher: Watcher | None,
    restart: bool,
) -> float | str:  # fmt: skip
    """Return the mean of the metric on held-out data, or why the run failed."""
    if (folder / _FAILED).exists():
        experiment.check_claim(folder, True)
        if (why := _failure(folder, restart)) is not None:
            return why
    done = finished(experiment, folder, True, restart)
    if done is None:
        setup = experiment.setup(_federation(experiment, dataset, hold, experiment.run.seed), data_root)
        with experiment.claimed(folder, True, data_root):
            try:
                done = execute(
                    setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
                    watcher=watcher, restart=restart, model=experiment.model,
                )  # fmt: skip
            except MethodError as error:
                add_sealed(folder, {_FAILED: json_bytes(str(error))})
                return str(error)
    entry = done.summary["unseen" if hold.what == "clients" else dataset.task.metric.name] or {}
    value = entry.get("mean")
    return "nothing that was held out could be judged" if value is None else float(value)


def _failure(folder: Path, restart: bool) -> str | None:
    """Return why the run in this folder failed; None if the file that says so is damaged, and the run begins anew."""
    path = folder / _FAILED
    try:
        if wrong := faults(folder, seal_of(folder).files, [_FAILED]):
            raise RunError(wrong[0])
        return str(read_json(path))
    except RunError as error:
        if not restart:
            raise RunError(f"{error}; {ANEW}") from None
    with held(folder):
        path.unlink()
    return None
