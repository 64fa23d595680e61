"""From data to an advice: folds, candidates, runs, the choice, and the final models on test samples."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedkin.advice.candidates import CANDIDATES, HEADS, Shape, shapes_of
from fedkin.advice.choice import LEVEL, Judged, Marks, Trials, enough_for_verdict, marks_of, outcomes_of
from fedkin.advice.partners import MOST, PartnerValues, coalitions_of, worth_of
from fedkin.advice.partners import shapes_of as coalition_shapes
from fedkin.advice.result import Advice, OfClient
from fedkin.advice.work import (
    LATEST,
    Bench,
    Folds,
    Outputs,
    RowFacts,
    Work,
    folds_of,
    method_of,
    trained,
    tried_strengths,
)  # fmt: skip
from fedkin.analysis.paired import Difference, Outcomes, difference
from fedkin.data.sources.tables import TableSource
from fedkin.errors import ConfigError, DataError, RunError, nearest
from fedkin.federation import Federation
from fedkin.federation.samples import hash_of
from fedkin.federation.table_columns import columns_of
from fedkin.federation.table_values import numbers, texts
from fedkin.learning.models import MODELS
from fedkin.learning.sgd import infer
from fedkin.methods.blocks.pulled_head import SHARED, Strength
from fedkin.records.files import read_json, write_bytes, write_json
from fedkin.running.experiment import Experiment, without_none
from fedkin.running.loop import run_experiment

# Called with a step in words, the number of its parts that are done, and of all.
Progress = Callable[[str, int, int], None]
# The file with the data and settings of the runs in a folder.
PLAN_FILE = "advice-plan.json"
# For this many clients, training all coalitions takes about as long as everything else.
_QUICK = 6


@dataclass(frozen=True)
class Plan:
    """How much to try.

    folds: number of parts in which each client's training samples are held out. rates: multiples of the experiment's
    learning rate to try for every candidate. rounds: of each run (None: those of the experiment).
    """

    folds: int = 5
    rates: tuple[float, ...] = (1.0, 3.0, 1 / 3)
    rounds: int | None = None


def advise(
    federation: Federation,
    bench: Bench,
    plan: Plan | None = None,
    *,
    rows: Mapping[str, RowFacts] | None = None,
    folder: Path | None = None,
    progress: Progress = lambda step, done, total: None,
    goes_on: Callable[[int], bool] = lambda rate: True,
    partners: int = 0,
) -> Advice:
    """Recommend which clients should train together, judged on held-out training samples.

    Test samples are used only for the test figures in the advice. rows: further facts about clients' training samples,
    by id. folder: where finished runs are stored, so that the same call resumes after a stop. progress(step, done,
    total) is called with the progress. goes_on(rate) is called with the number of each rate of the plan before its
    runs: whether there is time for it; the folder's plan then lacks rates that are left out. partners: compute what
    each partner adds only if at most this many clients can be judged.

    Raises ConfigError for a federation that cannot be advised on, DataError if fewer than two clients have enough
    samples.
    """
    plan = plan or Plan()
    rounds = bench.training.rounds
    if plan.rounds is not None:
        bench = replace(bench, training=bench.training.model_copy(update={"rounds": plan.rounds}))
    check(federation)
    if len(federation.seen) < 2:
        raise DataError(f"advice compares clients, and here is only {', '.join(federation.seen)}; expected at least 2")
    judgeable = _judgeable(federation, plan, bench.seed, rows or {})
    _check_enough(judgeable, len(federation))
    renamed = judgeable.renamed(federation)
    progress("candidates", 0, 1)
    splits = _candidates_by_split(renamed, judgeable.folds, bench.seed)
    final, missing = shapes_of({id: client.train for id, client in renamed.items()}, renamed.task, bench.seed)
    strengths = tried_strengths(bench, renamed)
    candidates = _distinct_candidates(splits, final, bool(strengths))
    rates = [bench.training.lr * factor for factor in plan.rates]
    shapes = [list(dict.fromkeys(split[name] for name in candidates)) for split in splits]
    heads = [frozenset(split[name] for name in candidates if name in HEADS) for split in splits]
    work = Work(renamed, judgeable.folds, shapes, heads, rates, bench, strengths)
    work, plan, outputs = _run_folds(work, plan, folder, progress, goes_on)
    share = sum(each.share for each in judgeable.folds.values()) / len(judgeable.folds)
    judged = Judged.of(_trials(work, splits, final, candidates, plan.folds, outputs), share)
    shape = final[judged.candidate]
    rate, model = _options(judged.candidate, work)[judged.option]
    worth = None
    if len(judgeable.ids) <= min(partners, MOST):
        worth = _partner_values(work, judgeable.ids, rate, plan.folds, shape, folder, progress)
    strength = [SHARED, *strengths][model]
    advice = _advice(federation, work, judgeable, judged, shape, strength, rate, progress)
    left_out = _left_out(plan, bench.training.rounds, rounds)
    return replace(advice, folds=plan.folds, missing=tuple(missing), left_out=left_out, worth=worth)


def _candidates_by_split(federation: Federation, folds: Mapping[str, Folds], seed: int) -> list[dict[str, Shape]]:
    """For each split, the candidates found on its training samples."""
    candidates = []
    for split in range(max(each.splits for each in folds.values())):
        samples = {id: client.train.take(folds[id].trained(split)) for id, client in federation.items()}
        candidates.append(shapes_of(samples, federation.task, seed)[0])
    return candidates


def _run_folds(
    work: Work, plan: Plan, folder: Path | None, progress: Progress, goes_on: Callable[[int], bool]
) -> tuple[Work, Plan, Outputs]:
    """Do the runs; returns the work and the plan without rates for which there was no time, and the outcomes."""
    if folder is not None:
        _claim(folder, _identity(work, plan))
    place = None if folder is None else folder / "folds"
    outputs = work.run_all(place, lambda done, total: progress("validation", done, total), goes_on)
    tried = 1 + max(rate for rate, _, _ in outputs)
    if tried < len(plan.rates):
        plan = replace(plan, rates=plan.rates[:tried])
        work = replace(work, rates=work.rates[:tried])
        if folder is not None:
            write_json(folder / PLAN_FILE, _identity(work, plan))
    return work, plan, outputs


def _left_out(plan: Plan, rounds: int, whole: int) -> tuple[str, ...]:
    """Describe what a plan leaves out, compared with the usual plan."""
    usual = Plan()
    rates = [f"{rate:.2g}" for rate in usual.rates[len(plan.rates) :]]
    return tuple(
        text for text, less in (
            (f"{plan.folds} folds, not {usual.folds}", plan.folds < usual.folds),
            (f"{rounds} rounds of each run, not {whole}", rounds < whole),
            (f"no run with {' or '.join(rates)} times the rate", bool(rates)),
        ) if less
    )  # fmt: skip


def check(federation: Federation) -> None:
    """Raise ConfigError for a federation that cannot be advised on."""
    if federation.task.kind == "segmentation":
        raise ConfigError("advice is for classification, risk and regression; this task is segmentation")
    for client in federation.values():
        if not client.still:
            why = f"client {client.id!r} joins later, leaves or changes"
            raise ConfigError(f"advice is for data that stand still; {why}")


@dataclass(frozen=True, eq=False)
class _Judgeable:
    """Clients with enough samples, under names derived from their content.

    Thus the advice depends neither on client ids nor on the other clients. ids: {name: client id}. folds: by name.
    unknown: {client id: what it has} for clients with too few samples.
    """

    ids: Mapping[str, str]
    folds: Mapping[str, Folds]
    unknown: Mapping[str, str]

    def renamed(self, federation: Federation) -> Federation:
        """These clients without their test samples."""
        clients = []
        for name in sorted(self.ids):
            client = federation[self.ids[name]]
            clients.append(replace(client, id=name, test=client.train.take([]), group=None, about={}))
        return Federation(clients, federation.task, federation.name)


def _judgeable(federation: Federation, plan: Plan, seed: int, rows: Mapping[str, RowFacts]) -> _Judgeable:
    ids, folds, unknown = dict[str, str](), dict[str, Folds](), dict[str, str]()
    for id in federation.seen:
        client = federation[id]
        name = hash_of(client.train).hex()[:16]
        while name in ids:
            name = blake2b(name.encode(), digest_size=8).hexdigest()
        dealt = folds_of(client.train, federation.task, plan.folds, name, seed, rows.get(id))
        enough, has = enough_for_verdict(federation.task, client.train.labels()[np.flatnonzero(dealt.fold >= 0)])
        trains = all(len(dealt.trained(split)) for split in range(dealt.splits))
        if enough and trains:
            ids[name], folds[name] = id, dealt
        else:
            late = f" in the latest {LATEST:.0%} of its rows" if dealt.by_time else ""
            unknown[id] = "too few groups of rows that belong together" if enough else has + late
    return _Judgeable(ids, folds, unknown)


def _check_enough(judgeable: _Judgeable, clients: int) -> None:
    """Raise DataError if less than two of this number of clients can be judged."""
    if len(judgeable.ids) < 2:
        some = ", ".join(f"{id}: {why}" for id, why in sorted(judgeable.unknown.items())[:4])
        raise DataError(
            "advice needs at least 2 clients with enough training samples (10 events and 10 others for a risk, else "
            f"8); {len(judgeable.ids)} of {clients} have them ({some})"
        )


def _distinct_candidates(splits: Sequence[Mapping[str, Shape]], final: Mapping[str, Shape], heads: bool) -> list[str]:
    """Names of the candidates that are not the same as an earlier one in all splits; heads: also those of HEADS."""
    names: list[str] = []
    found = set[tuple[Shape | None, ...]]()
    for name in CANDIDATES:
        shapes = tuple(each.get(name) for each in (*splits, final))
        if (heads and HEADS[name] in names) if name in HEADS else (None not in shapes and shapes not in found):
            names.append(name)
            found.add(shapes)
    return names


def _options(name: str, work: Work) -> list[tuple[int, int]]:
    """A candidate's options: (number of the rate, number of a client's model), with the strongest pull first."""
    models = range(1, 1 + len(work.strengths)) if name in HEADS else (0,)
    return [(rate, model) for model in models for rate in range(len(work.rates))]


def _claim(folder: Path, identity: dict[str, Any]) -> None:
    """Write the identity of its runs into the folder; raises RunError if the folder has another identity."""
    path = folder / PLAN_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, identity)
    elif read_json(path) != identity:
        raise RunError(f"{folder}: holds an advice on other data or with other settings; name another folder")


def _identity(work: Work, plan: Plan) -> dict[str, Any]:
    bench, folds = work.bench, b"".join(each.fold.tobytes() for _, each in sorted(work.folds.items()))
    return {
        "federation": work.federation.fingerprint(), "folds": plan.folds, "factors": list(plan.rates),
        "rounds": bench.training.rounds, "model": bench.model.model_dump(mode="json"),
        "training": bench.training.model_dump(mode="json"), "seed": bench.seed,
        "held_out": blake2b(folds, digest_size=8).hexdigest(),
    }  # fmt: skip


def _marks(
    work: Work, outputs: Outputs, rate: int, shapes: Sequence[Shape], id: str, fold: int, model: int = 0
) -> Marks | None:
    """The marks of a client's model on the samples of a fold; shapes: the model's shape in each split.

    model: number of the client's model; a client that shares no model has only one.
    """
    kind: Any = work.federation.task.kind
    dealt = work.folds[id]
    split = 0 if dealt.by_time else fold
    rows = dealt.validated(split)
    inside = dealt.fold[rows] == fold
    truth = work.federation[id].train.labels().numpy()[rows][inside] if kind == "risk" else None
    by_model = outputs[rate, split, shapes[split]][id]
    return marks_of(Outcomes(kind, by_model[min(model, len(by_model) - 1)][inside], truth))


def _partner_values(
    work: Work, names: Mapping[str, str], rate: int, folds: int, shape: Shape, folder: Path | None, progress: Progress
) -> PartnerValues:
    """Compute what each partner adds, from models of coalitions at this rate, by `names`; shape: the chosen one."""
    ids = sorted(work.federation)
    groups = {id: frozenset({id, *shape.partners(id)}) for id in ids}
    shapes = coalition_shapes(coalitions_of(groups.values(), ids, work.bench.seed))
    splits = len(work.shapes)
    none: list[frozenset[Shape]] = [frozenset()] * splits
    trained_all = replace(work, shapes=[shapes] * splits, rates=[work.rates[rate]], heads=none)
    place = None if folder is None else folder / "partners"
    outputs = trained_all.run_all(place, lambda done, total: progress("partners", done, total))

    def coalition(members: Iterable[str]) -> frozenset[str]:
        return frozenset(names[id] for id in members)

    def marks_by_coalition(id: str, fold: int) -> dict[frozenset[str], Marks | None]:
        return {
            coalition((id, *each.partners(id))): _marks(trained_all, outputs, 0, [each] * splits, id, fold)
            for each in shapes
        }

    marks: dict[str, list[dict[frozenset[str], Any]]] = {}
    for id in ids:
        by_fold = [marks_by_coalition(id, fold) for fold in range(folds)]
        # Whether a fold determines the metric depends only on its labels.
        marks[names[id]] = [by_coalition for by_coalition in by_fold if None not in by_coalition.values()]
    return worth_of(marks, {names[id]: coalition(group) for id, group in groups.items()})


def _trials(
    work: Work, splits: Sequence[Mapping[str, Shape]], final: Mapping[str, Shape], candidates: Sequence[str],
    folds: int, outputs: Outputs,
) -> Trials:  # fmt: skip
    """Collect the marks of every candidate's models, by fold."""
    marks: dict[str, list[dict[str, list[Marks | None]]]] = {}
    for name in candidates:
        shapes = [split[name] for split in splits]
        marks[name] = [
            {
                id: [_marks(work, outputs, rate, shapes, id, fold, model) for fold in range(folds)]
                for id in work.federation
            }
            for rate, model in _options(name, work)
        ]
    shares = {
        name: frozenset(id for id in work.federation if final[name].partners(id))
        for name in candidates if name != "local"
    }  # fmt: skip
    return Trials(candidates, marks, shares, folds)


def _advice(
    federation: Federation, work: Work, judgeable: _Judgeable, judged: Judged, shape: Shape, strength: Strength,
    rate_index: int, progress: Progress,
) -> Advice:  # fmt: skip
    """Train the final models, judge them on test samples, and return the advice.

    rate_index: of the shape's rate in `work.rates`.
    """
    shape, judged = shape.renamed(judgeable.ids), judged.renamed(judgeable.ids)
    gains, takes = judged.gains, judged.takes
    bench, rate, local_rate = work.bench, work.rates[rate_index], work.rates[judged.local_option]
    # Do not train a model that no member of its group should use.
    used = shape.trained_for(takes)
    keep = [id for id in sorted(gains.keys() - takes) if used.partners(id)]
    method = method_of(used, strength, keep, None if local_rate == rate else local_rate)
    progress("models of the end", 0, 2)
    seen = federation.reorder(sorted(federation.seen))
    net, shared = trained(method_of(shape, strength), seen, bench, rate)
    progress("models of the end", 1, 2)
    _, alone = trained(method_of(Shape()), seen, bench, local_rate)
    progress("models of the end", 2, 2)
    task, module = federation.task, net.scratch()

    def on_test_samples(id: str) -> Difference | None:
        test = federation[id].test
        if not len(test) or not shape.partners(id):
            return None
        mine, local = (
            outcomes_of(task, infer(net, module, run.models[id], "logits", test), test.labels())
            for run in (shared, alone)
        )
        return difference(task.metric.name, mine, local, LEVEL)

    clients = tuple(
        OfClient(
            id, client.size, enough_for_verdict(task, client.train.labels())[1], judgeable.unknown.get(id),
            shape.partners(id), id in takes, gains.get(id), judged.whole.get(id), on_test_samples(id),
        ) for id, client in seen.items()
    )  # fmt: skip
    return Advice(
        name=federation.name, task=task, clients=clients, candidate=judged.candidate if takes else "local",
        judged=judged.candidate, shape=used, differs=shape.differs, method=method, rate=rate, own_rate=local_rate,
        rates=tuple(work.rates), stable=judged.stable, alone=alone.models, shared=shared.models, net=net,
        models={**alone.models, **{id: shared.models[id] for id in takes}},
    )  # fmt: skip


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

        An advice that was begun in `folder` keeps its plan, so that a stop changes nothing. Raises ConfigError for a
        federation that cannot be advised on.
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
            self._after = 2 * run + _RECORDED * rounds * (each + once / every)
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
        samples = {id: train for id, train in samples.items() if enough_for_verdict(task, train.labels())[0]}
        begun = self._clock()
        shapes, _ = shapes_of(samples, task, bench.seed)
        # Candidates that are equal here may differ in other folds. Heads take less time than a run.
        return self._clock() - begun, min(len(shapes), len(set(shapes.values())) + 1 + len(HEADS))


def without_column(experiment: Experiment, together: str | None, data_root: Path) -> Experiment:
    """The experiment without this column among the inputs: a patient's number must not be an input.

    Raises ConfigError if there is no such column.
    """
    data = experiment.data
    if together is None or not isinstance(data, TableSource) or together in (*data.leave_out, *data.roles.values()):
        return experiment
    names = data.rows(data_root)[0].column_names
    if together not in names:
        raise ConfigError(f"together: no column {together!r}; {nearest(together, names)}")
    return experiment.with_changes(**{"data.leave_out": [*data.leave_out, together]})


def rows_of(
    experiment: Experiment, federation: Federation, data_root: Path, together: str | None = None
) -> Mapping[str, RowFacts]:
    """Facts about each client's training samples: which have the same value in column `together`, and their times.

    Raises ConfigError if the data are no table of the clients' own rows.
    """
    source = experiment.data
    if not isinstance(source, TableSource) or experiment.scenario.name != "natural":
        if together is not None:
            raise ConfigError("together: only for tables whose rows are the clients' own (scenario natural)")
        return {}
    if together is None and source.time is None:
        return {}
    facts = _rows_of_table(source, data_root, together)
    return {
        id: facts if client.train.rows is None else facts.take(client.train.rows.numpy())
        for id, client in federation.items()
    }


def _rows_of_table(source: TableSource, data_root: Path, together: str | None) -> RowFacts:
    """Facts about all training rows of a table."""
    table, owner = source.table(data_root)
    plain = table if source.tokens is None else table.drop_columns([source.tokens])
    train = np.flatnonzero(~columns_of(plain, source.reading(owner)).is_test)
    unit = when = None
    if together is not None:
        values = [repr(value) for value in texts(table, together)]
        unit = np.unique(np.array(values), return_inverse=True)[1].reshape(-1)
    if source.time is not None:
        when = numbers(table, source.time)
    return RowFacts(unit, when).take(train)


ADVICE, RECOMMENDED = "advice.json", "recommended.toml"


def recommend(
    experiment: Experiment,
    data_root: Path,
    folder: Path,
    *,
    budget: Budget | None = None,
    together: str | None = None,
    partners: bool | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Advice:
    """Advise on an experiment's data; writes advice.json, recommended.toml, and the runs `local` and `given`.

    If all should train alone, there is no run `given`. budget: the time it may take (None: try everything). together: a
    column whose equal values are never split between folds. partners: whether to compute what each partner adds (None:
    only without a budget, for at most 6 clients). Finished runs in `folder` are not run again.
    """
    if getattr(MODELS[experiment.model.name], "deal_bodies", None) is not None:
        raise ConfigError("advice needs one net for all clients; choose another model than 'mixed'")
    experiment = without_column(experiment, together, data_root)
    federation = experiment.scenario.federation(experiment.data.loaded(data_root), experiment.run.seed)
    bench = Bench(experiment.model, experiment.training, experiment.run, experiment.run.seed)
    rows = rows_of(experiment, federation, data_root, together)
    plan, goes_on, most = None, lambda rate: True, MOST if partners else 0
    if budget is not None:
        progress("plan", 0, 1)
        plan, goes_on = budget.plan(federation, bench, folder), budget.goes_on
    elif partners is None:
        most = _QUICK
    advice = advise(
        federation, bench, plan, rows=rows, folder=folder, progress=progress, goes_on=goes_on, partners=most
    )  # fmt: skip
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
    return replace(Experiment.of(table), table=table)
