"""From data to an advice: folds, candidates, runs, the choice, and the final models on test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.advice.candidates import CANDIDATES, HEADS, Shape, shapes_of
from fedkin.advice.choice import (
    LEVEL,
    Judged,
    Marked,
    Marks,
    Option,
    Trials,
    enough_for_verdict,
    outcomes_of,
    units_of,
)
from fedkin.advice.partners import MOST, PartnerValues, coalition_shapes, coalitions_of, worth_of
from fedkin.advice.result import Advice, OfClient
from fedkin.advice.work import LATEST, Bench, Folds, Outputs, Progress, Work, folds_of, method_of, trained, tried_parts
from fedkin.analysis.paired import Difference, difference
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Federation
from fedkin.federation.samples import hash_of
from fedkin.learning.sgd import infer
from fedkin.methods.blocks.pulled_head import SHARED
from fedkin.records.files import read_json, write_json

# The file with the data and settings of the runs in a folder.
PLAN_FILE = "advice-plan.json"


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
    folder: Path | None = None,
    progress: Progress = lambda step, done, total: None,
    goes_on: Callable[[int], bool] = lambda rate: True,
    partners: int = 0,
) -> Advice:
    """Recommend which clients should train together, judged on held-out training samples.

    Test samples are used only for the test figures in the advice. If samples have times, the latest are held out.
    folder: where finished runs are stored, so that the same call resumes after a stop. progress(step, done, total) is
    called with the progress. goes_on(rate) is called with the number of each rate of the plan before its runs: whether
    there is time for it; the folder's plan then lacks rates that are left out. partners: compute what each partner adds
    only if at most this many clients can be judged.

    Raises ConfigError for a federation that cannot be advised on, DataError if fewer than two clients have enough
    samples.
    """
    plan, usual_rounds = plan or Plan(), bench.training.rounds
    if plan.rounds is not None:
        bench = replace(bench, training=bench.training.model_copy(update={"rounds": plan.rounds}))
    check(federation)
    judgeable = _judgeable(federation, plan, bench.seed)
    _check_enough(judgeable, len(federation))
    renamed = judgeable.renamed(federation)
    progress("candidates", 0, 1)
    strengths, bodies = tried_parts(bench, renamed)
    candidates = _Candidates.of(renamed, judgeable.folds, bench.seed, heads=bool(strengths))
    rates = [bench.training.lr * factor for factor in plan.rates]
    work = Work(renamed, judgeable.folds, candidates.to_train(), rates, bench, progress, folder, strengths)
    work, plan, outputs = _run_folds(work, plan, goes_on)
    share = sum(each.share for each in judgeable.folds.values()) / len(judgeable.folds)
    trials = _trials(work, candidates, plan.folds, outputs)
    judged = Judged.of(trials, share, _own_bodies(work, candidates, trials) if bodies else None)
    shape = candidates.final[judged.candidate]
    worth = None
    if len(judgeable.ids) <= min(partners, MOST):
        alone = trials.marks["local"][judged.local_option]
        worth = _partner_values(work, judgeable.ids, judged.option[0], alone, shape)
    advice = _advice(federation, work, judgeable, judged, shape)
    left_out = _left_out(plan, bench.training.rounds, usual_rounds)
    return replace(advice, folds=plan.folds, missing=tuple(candidates.missing), left_out=left_out, worth=worth)


def check(federation: Federation) -> None:
    """Raise ConfigError for a federation that cannot be advised on, DataError for a single client."""
    if federation.task.kind == "segmentation":
        raise ConfigError("advice is for classification, risk and regression; this task is segmentation")
    for client in federation.values():
        if not client.still:
            why = f"client {client.id!r} joins later, leaves or changes"
            raise ConfigError(f"advice is for data that stand still; {why}")
    if len(federation.seen) < 2:
        raise DataError(f"advice compares clients, and here is only {', '.join(federation.seen)}; expected at least 2")


@dataclass(frozen=True, eq=False)
class _Judgeable:
    """Clients with enough samples, under names derived from their content.

    Thus the advice depends neither on client ids nor on the other clients. ids: {name: client id}. folds: by name.
    unknown: {client id: what it has} for clients with too few samples. has: {client id: its samples, or events}.
    """

    ids: Mapping[str, str]
    folds: Mapping[str, Folds]
    unknown: Mapping[str, str]
    has: Mapping[str, str]

    def renamed(self, federation: Federation) -> Federation:
        """These clients without their test samples."""
        clients = []
        for name in sorted(self.ids):
            client = federation[self.ids[name]]
            clients.append(replace(client, id=name, test=client.train.take([]), group=None, about={}))
        return Federation(clients, federation.task, federation.name)


def _judgeable(federation: Federation, plan: Plan, seed: int) -> _Judgeable:
    ids, folds, unknown, all_has = dict[str, str](), dict[str, Folds](), dict[str, str](), dict[str, str]()
    for id in federation.seen:
        client = federation[id]
        name = hash_of(client.train).hex()[:16]
        while name in ids:
            name = blake2b(name.encode(), digest_size=8).hexdigest()
        dealt = folds_of(client.train, federation.task, plan.folds, name, seed)
        _, all_has[id] = enough_for_verdict(federation.task, client.train)
        enough, has = enough_for_verdict(federation.task, client.train.take(np.flatnonzero(dealt.fold >= 0)))
        trains = all(len(dealt.trained(split)) for split in range(dealt.splits))
        if enough and trains:
            ids[name], folds[name] = id, dealt
        else:
            late = f" in the latest {LATEST:.0%} of its rows" if dealt.by_time else ""
            unknown[id] = "too few persons" if enough else has + late
    return _Judgeable(ids, folds, unknown, all_has)


def _check_enough(judgeable: _Judgeable, clients: int) -> None:
    """Raise DataError if less than two of this number of clients can be judged."""
    if len(judgeable.ids) < 2:
        some = ", ".join(f"{id}: {why}" for id, why in sorted(judgeable.unknown.items())[:4])
        raise DataError(
            "advice needs at least 2 clients with enough training samples (10 events and 10 others for a risk, else "
            f"8); {len(judgeable.ids)} of {clients} have them ({some})"
        )


@dataclass(frozen=True, eq=False)
class _Candidates:
    """The candidates to try.

    names: those that are not the same as an earlier one in all splits. by_split: for each split, the shape of each
    candidate, found on the split's training samples; final: found on all training samples. missing: why others are
    missing.
    """

    names: Sequence[str]
    by_split: Sequence[Mapping[str, Shape]]
    final: Mapping[str, Shape]
    missing: Sequence[str]

    @classmethod
    def of(cls, federation: Federation, folds: Mapping[str, Folds], seed: int, heads: bool) -> _Candidates:
        """Find the candidates; heads: also those of HEADS."""
        by_split = []
        for split in range(max(each.splits for each in folds.values())):
            samples = {id: client.train.take(folds[id].trained(split)) for id, client in federation.items()}
            by_split.append(shapes_of(samples, federation.task, seed)[0])
        final, missing = shapes_of({id: client.train for id, client in federation.items()}, federation.task, seed)
        names: list[str] = []
        found = set[tuple[Shape | None, ...]]()
        for name in CANDIDATES:
            shapes = tuple(each.get(name) for each in (*by_split, final))
            if (heads and HEADS[name] in names) if name in HEADS else (None not in shapes and shapes not in found):
                names.append(name)
                found.add(shapes)
        return cls(names, by_split, final, missing)

    def to_train(self) -> list[dict[Shape, bool]]:
        """For each split {shape: whether its clients also get own heads}."""
        splits = []
        for shapes in self.by_split:
            with_heads = {shapes[name] for name in self.names if name in HEADS}
            splits.append({shapes[name]: shapes[name] in with_heads for name in self.names})
        return splits


def _run_folds(work: Work, plan: Plan, goes_on: Callable[[int], bool]) -> tuple[Work, Plan, Outputs]:
    """Do the runs; returns the work and the plan without rates for which there was no time, and the outcomes."""
    if work.folder is not None:
        _claim(work.folder, _identity(work, plan))
    outputs = work.run_all("validation", "folds", goes_on)
    tried = 1 + max(rate for rate, _, _ in outputs)
    if tried < len(plan.rates):
        plan = replace(plan, rates=plan.rates[:tried])
        work = replace(work, rates=work.rates[:tried])
        if work.folder is not None:
            write_json(work.folder / PLAN_FILE, _identity(work, plan))
    return work, plan, outputs


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
        "held_out": blake2b(folds, digest_size=8).hexdigest(), "outcomes": ["values", "losses"],
    }  # fmt: skip


def _trials(work: Work, candidates: _Candidates, folds: int, outputs: Outputs) -> Trials:
    """Collect the marks of every candidate's models, by fold."""
    marks = {}
    for name in candidates.names:
        shapes = [split[name] for split in candidates.by_split]
        models = range(1, 1 + len(work.strengths)) if name in HEADS else (0,)
        options = [(rate, model) for model in models for rate in range(len(work.rates))]
        marks[name] = _marks(work, outputs, options, shapes, folds)
    shares = {
        name: frozenset(id for id in work.federation if candidates.final[name].partners(id))
        for name in candidates.names if name != "local"
    }  # fmt: skip
    return Trials(marks, shares, folds)


def _marks(work: Work, outputs: Outputs, options: Iterable[Option], shapes: Sequence[Shape], folds: int) -> Marked:
    """Collect the marks of one candidate's models; shapes: its shape in each split."""
    return {
        option: {
            id: [work.marks(outputs, option, shapes, id, fold) for fold in range(folds)] for id in work.federation
        } for option in options
    }  # fmt: skip


def _own_bodies(work: Work, candidates: _Candidates, trials: Trials) -> Marked:
    """Try the chosen candidate with own bodies, with each rate that is chosen on all folds, or without one of them."""
    every = range(trials.folds)
    name, _ = trials.best(every)
    rates = sorted({trials.option(name, folds)[0] for folds in (every, *map(trials.without, every))})
    shapes = [split[name] for split in candidates.by_split]
    work = replace(work, own_bodies=shapes, rates=[work.rates[rate] for rate in rates])
    found = work.run_all("own bodies", "bodies")
    outputs = {(rates[at], split, shape): outcomes for (at, split, shape), outcomes in found.items()}
    options = [option for option in trials.marks[name] if option[0] in rates]
    return _marks(work, outputs, options, shapes, trials.folds)


def _partner_values(
    work: Work, names: Mapping[str, str], rate: int, alone: Mapping[str, Sequence[Marks | None]], shape: Shape
) -> PartnerValues:
    """Compute what each partner adds, from models of coalitions at this rate, by `names`.

    alone: by id, the marks of local models at their own best rate. shape: the chosen one.
    """
    ids = sorted(work.federation)
    groups = {id: frozenset({id, *shape.partners(id)}) for id in ids}
    shapes = coalition_shapes(coalitions_of(groups.values(), ids, work.bench.seed))
    splits = len(work.shapes)
    trained_all = replace(work, shapes=[dict.fromkeys(shapes, False)] * splits, rates=[work.rates[rate]])
    outputs = trained_all.run_all("partners", "coalitions")

    def coalition(members: Iterable[str]) -> frozenset[str]:
        return frozenset(names[id] for id in members)

    def marks_by_coalition(id: str, fold: int) -> dict[frozenset[str], Marks | None]:
        return {
            coalition({id}): alone[id][fold],
            **{
                coalition((id, *each.partners(id))): trained_all.marks(outputs, (0, 0), [each] * splits, id, fold)
                for each in shapes if each.partners(id)
            },
        }  # fmt: skip

    marks: dict[str, list[dict[frozenset[str], Any]]] = {}
    for id in ids:
        by_fold = [marks_by_coalition(id, fold) for fold in range(len(alone[id]))]
        # Whether a fold determines the metric depends only on its labels.
        marks[names[id]] = [by_coalition for by_coalition in by_fold if None not in by_coalition.values()]
    return worth_of(marks, {names[id]: coalition(group) for id, group in groups.items()})


def _advice(federation: Federation, work: Work, judgeable: _Judgeable, judged: Judged, shape: Shape) -> Advice:
    """Train the final models of the chosen shape, judge them on test samples, and return the advice."""
    shape, judged = shape.renamed(judgeable.ids), judged.renamed(judgeable.ids)
    gains, takes, bench = judged.gains, judged.takes, work.bench
    rate, local_rate = (work.rates[number] for number, _ in (judged.option, judged.local_option))
    strength = [SHARED, *work.strengths][judged.option[1]]
    # Do not train a model that no member of its group should use.
    used = shape.trained_for(takes)
    keep = [id for id in sorted(gains.keys() - takes) if used.partners(id)]
    method = method_of(used, strength, keep, None if local_rate == rate else local_rate, judged.own_body)
    work.progress("models of the end", 0, 2)
    seen = federation.reorder(sorted(federation.seen))
    net, shared = trained(method_of(shape, strength, own_body=judged.own_body), seen, bench, rate)
    work.progress("models of the end", 1, 2)
    _, alone = trained(method_of(Shape()), seen, bench, local_rate)
    work.progress("models of the end", 2, 2)
    task, module = federation.task, net.scratch()

    def on_test_samples(id: str) -> Difference | None:
        test = federation[id].test
        if not len(test) or not shape.partners(id):
            return None
        mine, local = (
            replace(
                outcomes_of(task, infer(net, module, run.models[id], "logits", test), test.labels()),
                persons=units_of(test),
            )
            for run in (shared, alone)
        )
        return difference(task.metric.name, mine, local, LEVEL)

    clients = tuple(
        OfClient(
            id, client.size, judgeable.has[id], judgeable.unknown.get(id),
            shape.partners(id), id in takes, gains.get(id), judged.whole.get(id), on_test_samples(id),
        ) for id, client in seen.items()
    )  # fmt: skip
    return Advice(
        name=federation.name, task=task, clients=clients, candidate=judged.candidate if takes else "local",
        judged=judged.candidate, shape=used, method=method, rate=rate, own_rate=local_rate,
        rates=tuple(work.rates), stable=judged.stable, alone=alone.models, shared=shared.models, net=net,
        models={**alone.models, **{id: shared.models[id] for id in takes}},
    )  # fmt: skip


def _left_out(plan: Plan, rounds: int, usual_rounds: int) -> tuple[str, ...]:
    """Describe what a plan leaves out, compared with the usual plan."""
    usual = Plan()
    rates = [f"{rate:.2g}" for rate in usual.rates[len(plan.rates) :]]
    return tuple(
        text for text, less in (
            (f"{plan.folds} folds, not {usual.folds}", plan.folds < usual.folds),
            (f"{rounds} rounds of each run, not {usual_rounds}", rounds < usual_rounds),
            (f"no run with {' or '.join(rates)} times the rate", bool(rates)),
        ) if less
    )  # fmt: skip
