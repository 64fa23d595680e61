"""From an experiment to an advice with its files: the experiment that does what is recommended, and the figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.advice.advising import Plan, advise
from fedkin.advice.budget import Budget
from fedkin.advice.result import Advice
from fedkin.advice.tables import rows_of, without_column
from fedkin.advice.work import Bench
from fedkin.errors import ConfigError
from fedkin.learning.models import MODELS
from fedkin.records.files import write_bytes, write_json
from fedkin.running.experiment import Experiment, without_none
from fedkin.running.loop import run_experiment

__all__ = ["ADVICE", "RECOMMENDED", "recommend", "recommended"]

ADVICE, RECOMMENDED = "advice.json", "recommended.toml"


def recommend(
    experiment: Experiment,
    data_root: Path,
    folder: Path,
    *,
    budget: Budget | None = None,
    plan: Plan | None = None,
    together: str | None = None,
    told: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Advice:
    """Advise on an experiment's data; writes advice.json, recommended.toml and the runs `local` and `given`.

    budget: how long it may take (None: everything is tried); plan: what to try instead. together: a column whose
    equal values are never split between folds. What was done in `folder` is not done again.
    """
    if getattr(MODELS[experiment.model.name], "deal_bodies", None) is not None:
        raise ConfigError("advice needs one net for all clients; choose another model than 'mixed'")
    experiment = without_column(experiment, together)
    dataset = experiment.data.load(data_root)
    federation = experiment.scenario.federation(dataset, experiment.run.seed)
    bench = Bench(experiment.model, experiment.training, experiment.run, experiment.run.seed)
    rows = rows_of(experiment, federation, data_root, together)
    if budget is not None and plan is None:
        told("plan", 0, 1)
        plan = budget.plan(federation, bench, folder)
    more = {} if budget is None else {"goes_on": budget.goes_on}
    found = advise(federation, bench, plan, rows=rows, folder=folder, told=told, **more)
    final = recommended(experiment, found, plan)
    write_bytes(folder / RECOMMENDED, _text(found, final).encode())
    alone = final.with_changes(**{"training.lr": found.own_rate, "method": {"name": "local"}})
    told("recorded runs", 0, 2)
    run_experiment(alone, data_root, folder / "local", resume=True, dataset=dataset)
    told("recorded runs", 1, 2)
    run_experiment(final, data_root, folder / "given", resume=True, dataset=dataset)
    told("recorded runs", 2, 2)
    write_json(folder / ADVICE, found.to_json() | {"heads": found.heads, "rows": found.rows()})
    return found


def recommended(experiment: Experiment, found: Advice, plan: Plan | None) -> Experiment:
    """The experiment that does what is recommended: its method has the groups, by client."""
    table = experiment.resolved()
    table.pop("methods", None)
    rounds = experiment.training.rounds if plan is None or plan.rounds is None else plan.rounds
    method: dict[str, Any] = without_none(found.method.model_dump(mode="json"))
    table["method"] = {"name": found.method.name, **{name: value for name, value in method.items() if value}}
    table["training"] = {**table["training"], "lr": found.rate, "per_round": "all", "rounds": rounds}
    return replace(Experiment.of(table), table=table)


def _text(found: Advice, final: Experiment) -> str:
    said = [f"# {line}" for line in (found.sentence, found.why)]
    return "\n".join(said) + "\n" + tomli_w.dumps(final.resolved())
