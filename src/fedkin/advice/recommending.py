"""From an experiment to an advice in files: a budget of time, and the experiment that follows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.advice.advising import PLAN_FILE, Plan, advise, check
from fedkin.advice.candidates import HEADS, Shape, shapes_of
from fedkin.advice.choice import enough_for_verdict
from fedkin.advice.partners import MOST
from fedkin.advice.result import Advice
from fedkin.advice.work import Bench, Progress, method_of, trained
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.learning.models import MODELS
from fedkin.records.files import read_json, write_bytes, write_json
from fedkin.running.experiment import Experiment, without_none
from fedkin.running.loop import run_experiment

ADVICE, RECOMMENDED = "advice.json", "recommended.toml"
# For this many clients, training all coalitions takes about as long as everything else.
_QUICK = 6
# From the largest plan to the smallest: (folds, number of rates, share of the rounds).
_LADDER = ((5, 3, 1.0), (5, 2, 1.0), (4, 2, 1.0), (3, 2, 1.0), (3, 1, 1.0), (3, 1, 0.5), (3, 1, 0.25))
_PROBE = 4
# Share of the budget for everything that is not measured: the choice, and the report.
_SHARE = 0.15
# Training of the recorded runs: one of local training, and one of the recommendation, where some train a second model.
_RECORDED = 3


class Budget:
    """Minutes that an advice may take, by a clock in seconds; begun: the clock's value at the start (None: now).

    >>> Budget(2.0, clock=lambda: 0.0).left
    102.0
    """

    def __init__(
        self, minutes: float, clock: Callable[[], float] = time.perf_counter, begun: float | None = None
    ) -> None:
        if not minutes > 0:
            raise ConfigError(f"budget: expected minutes above 0, got {minutes:g}")
        self.minutes, self._clock = minutes, clock
        self._begun = self._mark = clock() if begun is None else begun
        self._after = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    @property
    def left(self) -> float:
        """Seconds that are still available for the plan."""
        return (1 - _SHARE) * 60 * self.minutes - self.spent

    def plan(self, federation: Federation, bench: Bench, folder: Path | None = None) -> Plan:
        """Return the largest plan that fits into the time left, estimated from a few rounds and the tests.

        An advice that was begun in `folder` keeps its plan, so that a stop changes nothing. Raises as `check`.
        """
        check(federation)
        if folder is not None and (folder / PLAN_FILE).exists():
            kept = read_json(folder / PLAN_FILE)
            return Plan(kept["folds"], tuple(kept["factors"]), kept["rounds"])
        once, each = self._round(federation, bench)
        tests, kinds = self._tests(federation, bench)
        every = bench.run.evaluate_every
        for folds, rates, share in _LADDER:
            rounds = max(1, round(share * bench.training.rounds))
            run = once + each * rounds
            # Own bodies: in each fold the chosen candidate once more, with about as much training again.
            self._after = 2 * (1 + folds) * run + _RECORDED * rounds * (each + once / every)
            total = (folds + 1) * tests + folds * rates * kinds * run + self._after
            if total <= self.left:
                break
        return Plan(folds, Plan().rates[:rates], rounds)

    def goes_on(self, rate: int) -> bool:
        """Whether there is time for this rate (its number, from 0), if it takes as long as the previous one.

        The first rate is always tried.
        """
        now = self._clock()
        took, self._mark = now - self._mark, now
        return rate == 0 or took + self._after <= self.left

    def _round(self, federation: Federation, bench: Bench) -> tuple[float, float]:
        """(seconds of a run without rounds, seconds of a round), all clients training alone."""
        seen = federation.reorder(sorted(federation.seen))

        def run(rounds: int) -> float:
            few = replace(bench, training=bench.training.model_copy(update={"rounds": rounds}))
            begun = self._clock()
            trained(method_of(Shape()), seen, few, bench.training.lr)
            return self._clock() - begun

        run(1)  # warm-up: some things are made only once
        short, long = run(1), run(_PROBE)
        each = (long - short) / (_PROBE - 1) if long > short else long / _PROBE
        return max(0.0, short - each), each

    def _tests(self, federation: Federation, bench: Bench) -> tuple[float, int]:
        """(seconds to find the candidates, the largest number of different ones)."""
        task = federation.task
        samples = {id: client.train for id, client in federation.items()}
        samples = {id: train for id, train in samples.items() if enough_for_verdict(task, train)[0]}
        begun = self._clock()
        shapes, _ = shapes_of(samples, task, bench.seed)
        # Candidates that are equal here may differ in other folds. Heads take less time than a run.
        return self._clock() - begun, min(len(shapes), len(set(shapes.values())) + 1 + len(HEADS))


def recommend(
    experiment: Experiment,
    data_root: Path,
    folder: Path,
    *,
    budget: Budget | None = None,
    partners: bool | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Advice:
    """Advise on an experiment's data; writes advice.json, recommended.toml, and the runs `local` and `given`.

    If all should train alone, there is no run `given`. budget: the time it may take (None: try everything). partners:
    whether to compute what each partner adds (None: only without a budget, for at most 6 clients). Finished runs in
    `folder` are not run again.
    """
    if getattr(MODELS[experiment.model.name], "deal_bodies", None) is not None:
        raise ConfigError("advice needs one net for all clients; choose another model than 'mixed'")
    federation = experiment.federation(data_root)
    bench = Bench(experiment.model, experiment.training, experiment.run, experiment.run.seed)
    plan, goes_on, most = None, lambda rate: True, MOST if partners else 0
    if budget is not None:
        progress("plan", 0, 1)
        plan, goes_on = budget.plan(federation, bench, folder), budget.goes_on
    elif partners is None:
        most = _QUICK
    advice = advise(federation, bench, plan, folder=folder, progress=progress, goes_on=goes_on, partners=most)
    final = recommended(experiment, advice, plan)
    text = "".join(f"# {line}\n" for line in (advice.sentence, advice.why)) + tomli_w.dumps(_short(final))
    write_bytes(folder / RECOMMENDED, text.encode())
    alone = final.with_changes(**{"training.lr": advice.own_rate, "method": {"name": "local"}})
    progress("recorded runs", 0, 2)
    run_experiment(alone, data_root, folder / "local", federation=lambda: federation)
    progress("recorded runs", 1, 2)
    if advice.shares:
        run_experiment(final, data_root, folder / "given", federation=lambda: federation)
    progress("recorded runs", 2, 2)
    tables = {"heads": advice.heads, "rows": advice.rows(), "tables": advice.partner_tables()}
    write_json(folder / ADVICE, advice.to_json() | tables)
    return advice


def recommended(experiment: Experiment, advice: Advice, plan: Plan | None) -> Experiment:
    """The experiment that follows the advice: its method has the recommended groups, or is local training."""
    table = experiment.resolved()
    table.pop("methods", None)
    rounds = experiment.training.rounds if plan is None or plan.rounds is None else plan.rounds
    method: dict[str, Any] = without_none(advice.method.model_dump(mode="json"))
    given = {"name": advice.method.name, **{name: value for name, value in method.items() if value}}
    table["method"] = given if advice.shares else {"name": "local"}
    rate = advice.rate if advice.shares else advice.own_rate
    table["training"] = {**table["training"], "lr": rate, "clients_per_round": "all", "rounds": rounds}
    return Experiment.of(table)


def _short(experiment: Experiment) -> dict[str, Any]:
    """The table of an experiment without default values, and with paths relative to the current folder."""
    whole = experiment.resolved()
    table: dict[str, Any] = {name: whole[name] for name in ("name", "own") if name in whole}
    for section in [name for name in whole if isinstance(whole[name], dict) and name != "methods"]:
        kept = {"source", "name", *getattr(experiment, section).model_dump(exclude_defaults=True)}
        if given := {name: value for name, value in whole[section].items() if name in kept}:
            table[section] = given
    path = table["data"].get("path")
    if path is not None:
        table["data"]["path"] = Path(os.path.relpath(path)).as_posix() if Path(path).is_absolute() else path
    return table
