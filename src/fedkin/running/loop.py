"""The round loop: rounds, evaluation, records and checkpoints; a run can stop and resume at any round."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from fedkin.analysis.embeddings import measure
from fedkin.data.dataset import Dataset
from fedkin.engines import ENGINES, Engine, Outcome, Score, Setup
from fedkin.engines.accounting.clock import Clock
from fedkin.engines.base import SERVER
from fedkin.engines.blame import blamed
from fedkin.engines.failures import TooFew
from fedkin.engines.setup import Plan
from fedkin.errors import ConfigError, RunError
from fedkin.folders import held
from fedkin.learning.devices import title
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import Model
from fedkin.records import metrics, reading
from fedkin.records.files import say, versions
from fedkin.records.folder import tidy, untidy
from fedkin.records.metrics import missing_kinds, missing_summary, privacy_spent, worst
from fedkin.records.models import About, Kept
from fedkin.records.outcomes import calibration_of, outcomes_of
from fedkin.records.recorder import ANEW, Records
from fedkin.records.run import Result, bytes_by_client, read_run
from fedkin.running.experiment import Experiment, RunSettings
from fedkin.running.trackers import Tracker, Tracking, described

__all__ = [
    "Result", "Stop", "Watcher", "cautions", "check_measures", "execute", "finished", "given", "in_round", "lasting",
    "measured", "read_finished", "run_experiment",
]  # fmt: skip


_ONCE = ("title", "higher", "share", "values")


def check_measures(measures: Sequence[Measure]) -> None:
    """Raise ConfigError for two metrics of one name."""
    names = [each.name for each in measures]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConfigError(f"metrics: {twice[0]!r} twice")


def measured(engine: Engine, scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return what the summary has of each metric: direction, statistics over the clients that take part, and values.

    values: {client id: value}, also of clients that never took part; None where it is not determined.
    """
    unseen = set(engine.everyone.unseen)
    return {
        each.name: _described(each, {id: scores[id].further[at] for id in sorted(scores)}, unseen)
        for at, each in enumerate(engine.setup.measures)
    }


def in_round(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a round's line has of each metric: the statistics over the clients that take part."""
    return {name: {what: value for what, value in row.items() if what not in _ONCE} for name, row in measured.items()}


def _described(measure: Measure, values: Mapping[str, float | None], unseen: Iterable[str]) -> dict[str, Any]:
    own = [value for id, value in values.items() if id not in unseen]
    known = np.array([value for value in own if value is not None], dtype=np.float64)
    sign = 1.0 if measure.higher else -1.0
    row: dict[str, Any] = {"title": measure.title, "higher": measure.higher, "share": measure.share}
    if len(known):
        row |= {
            "mean": float(known.mean()), "std": float(known.std()), "worst10": sign * worst(sign * known, 0.1),
            "worst20": sign * worst(sign * known, 0.2),
        }  # fmt: skip
    return row | {"clients": len(known), "left_out": len(own) - len(known), "values": dict(values)}


# A loss that ends at more than so many times its first value did not just overfit.
_GROWN = 10.0


def given(method: Mapping[str, Any], network: str) -> list[str]:
    """What was told to a method, from its settings and `run.network`; empty if nothing was.

    >>> given({"clusters": 4}, "complete"), given({"graph": {"groups": "planted"}}, "complete")
    (['4 groups, given'], ['planted groups, given'])
    """
    graph = method.get("graph") or {}
    graph = graph if isinstance(graph, Mapping) else {}
    found = []
    for value in (method.get("clusters"), method.get("groups"), graph.get("groups"), graph.get("clusters")):
        count = _count(value)
        if count is not None:
            found.append(f"{count} group{'' if count == 1 else 's'}, given")
        elif value == "planted":
            found.append("planted groups, given")
    if "oracle" in (method.get("control"), graph.get("control")):
        found.append("planted graph, given")
    if network.split(":")[0] == "planted":
        found.append("planted network, given")
    return list(dict.fromkeys(found))


def _count(value: Any) -> int | None:
    """The number of groups that a setting names."""
    if isinstance(value, str):
        name, _, number = value.partition(":")
        return int(number) if name in ("hierarchical", "kmeans") and number.isdigit() else None
    if isinstance(value, (Mapping, list, tuple)):
        return len(value) or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def cautions(
    method: Mapping[str, Any],
    rounds: int,
    lines: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Score],
    metric: str,
    precision: str = "float32",
) -> list[str]:
    """Warnings about a run, each a sentence with what to do. lines: those of rounds.jsonl; scores: the last ones."""
    found = []
    if precision != "float32":
        found.append(
            f"bodies of nets were computed in {precision}: compare with runs of the same precision, or set "
            "run.precision = 'float32'"
        )
    warmup, graph = method.get("warmup"), method.get("graph")
    off = isinstance(graph, Mapping) and graph.get("on") is False
    if isinstance(warmup, (int, float)) and warmup >= 1 and rounds and warmup >= rounds and not off:
        found.append(
            f"the warm-up of {warmup:g} rounds is not shorter than the run of {rounds}, so what follows it never began "
            "or had one round: set method.warmup lower or training.rounds higher"
        )
    losses = [row[metric].get("loss") for row in lines if row.get(metric)]
    if len(losses) == 1 and rounds > 1:
        found.append(
            f"one of {rounds} rounds was evaluated, so that nothing shows whether the run had converged: set "
            "run.evaluate_every lower"
        )
    lost = sorted(id for id, score in scores.items() if score.n and not math.isfinite(score.loss))
    if lost:
        named = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        found.append(f"the models of {len(lost)} of {len(scores)} clients diverged ({named}): set training.lr lower")
    elif len(losses) > 1 and losses[0] and losses[-1] and losses[-1] > _GROWN * losses[0] > 0:
        found.append(
            f"the mean test loss grew from {losses[0]:.3g} to {losses[-1]:.3g}: the models diverge or overfit; set "
            "training.lr or training.rounds lower"
        )
    return found


T = TypeVar("T", Setup, Plan)


class Watcher(Protocol):
    """An observer of a run, which can also stop it."""

    def started(self, rounds: int, done: int) -> None:
        """Called at the start of a run of `rounds`, of which `done` are already done."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Called after each round; `row` is its line in rounds.jsonl."""

    def stopping(self) -> bool:
        """Return True to write a checkpoint and stop after this round."""


class Stop(Exception):
    """The run was asked to stop, and can be resumed in its folder from `round`."""

    def __init__(self, round: int, folder: Path | None) -> None:
        super().__init__(f"stopped after round {round}")
        self.round, self.folder = round, folder


def execute(
    setup: T, run: RunSettings, *, name: str = "run", scenario: str = "", folder: Path | None = None,
    watcher: Watcher | None = None, trackers: Sequence[str | Tracker] = (),
    make: Callable[[T], Engine] | None = None, restart: bool = False, model: Model | None = None,
    measures: Sequence[Measure] = (),
) -> Result:  # fmt: skip
    """Run all rounds, from the checkpoint in the folder if there is one; raises Stop if the watcher stops the run.

    setup: the setup, or the plan of a run whose clients are elsewhere.
    make: a function that makes the engine, instead of the one that `run.engine` names. restart: whether a run whose
    checkpoints or records are damaged begins anew; else it is refused. model: the settings of the net, if it has any.
    measures: further metrics, beside those of `run.metrics`.
    """
    begun = time.perf_counter()
    every = (*(MEASURES[each] for each in run.metrics), *measures)
    check_measures(every)
    tracking = Tracking([*run.trackers, *trackers], folder)
    records = Records(folder, restart)
    setup = replace(setup, engine=run, measures=every)
    engine = _made(setup, make)
    try:
        try:
            loop = _Loop(engine, run, records, tracking, watcher, begun)
            loop.begin(name)
            loop.rounds()
            summary = loop.end(name, scenario or engine.everyone.name)
            models = engine.models()
        except Exception as error:
            named = blamed(error, engine.setup.method)
            if named is error:
                raise
            raise named from error.__cause__ or error
        finally:
            engine.close()
        kept = engine.setup
        if isinstance(kept, Setup) and run.models == "last":
            about = About.of(kept.federation, kept.net, kept.nets, model, kept.seed)
            records.keep_models(models, about, run.models_limit_mb)
        # After the engine's own files are gone: nothing comes back to a finished run to remove them.
        records.conclude(summary)
        tracking.ended(summary)
    finally:
        tracking.ended(None)
    return Result(
        summary, records.rows["rounds"], records.table("clients"), records.table("messages"), loop.scores,
        loop.outcome, models, folder, tuple(engine.everyone.unseen), records.all_graphs(), records.facts,
    )  # fmt: skip


def _made(setup: T, make: Callable[[T], Engine] | None) -> Engine:
    if make is not None:
        return make(setup)
    assert isinstance(setup, Setup) and isinstance(setup.engine, RunSettings)  # noqa: PT018
    return ENGINES[setup.engine.engine](setup)


class _Loop:
    """The rounds of one run, from its begin or its last checkpoint to its summary."""

    def __init__(
        self, engine: Engine, run: RunSettings, records: Records, tracking: Tracking, watcher: Watcher | None,
        begun: float,
    ) -> None:  # fmt: skip
        self.engine, self.run, self.records, self.tracking, self.watcher = engine, run, records, tracking, watcher
        self.done, self.total = 0, engine.setup.training.rounds
        self.seconds = _Seconds(begun, {}, engine)
        self.outcome: Outcome | None = None
        self.scores: dict[str, Score] = {}
        self.paths: list[dict[str, str]] = []  # those before a resume

    def begin(self, name: str) -> None:
        """Go back to the last checkpoint if there is one, and tell those who follow the run."""
        resumed = self.records.begin(self.engine.everyone.task, self.engine.facts)
        if resumed is not None:
            self.done, state = resumed
            self.engine.restore(state["engine"])
            self.seconds.before, self.paths = dict(state["seconds"]), list(state["training_paths"].values())
        if self.watcher is not None:
            self.watcher.started(self.total, self.done)
        setup = self.engine.setup
        settings = described(setup, self.engine.everyone, self.run, self.records.folder)
        self.tracking.started(settings, f"{name}-{setup.method.name}-seed{setup.seed}", self.done)

    def rounds(self) -> None:
        """Run the rounds that are left; raises Stop."""
        for number in range(self.done + 1, self.total + 1):
            self.outcome = self._round(number)
            last = number == self.total
            self.scores = self.engine.evaluate() if last or number % self.run.evaluate_every == 0 else {}
            if self.engine.missed:
                self.outcome = replace(self.outcome, traffic=(*self.outcome.traffic, *self.engine.missed))
            self._record(self.outcome, keep=last or self.run.keeps_features(number))
            stop = self.watcher is not None and self.watcher.stopping() and not last
            if last or stop or number % self.run.checkpoint_every == 0:
                with self.seconds.of("checkpoint"):
                    self.records.checkpoint(number, self._state())
            if stop:
                raise Stop(number, self.records.folder)

    def _state(self) -> dict[str, Any]:
        paths = {f"{number:06d}": path for number, path in enumerate(self._training_paths())}
        return {"engine": self.engine.state(), "seconds": self.seconds(), "training_paths": paths}

    def _training_paths(self) -> list[dict[str, str]]:
        """Return how nets were trained, also before a resume."""
        new = [path._asdict() for path in self.engine.training_paths]
        return self.paths + [path for path in new if path not in self.paths]

    def _round(self, number: int) -> Outcome:
        """Run a round; if too few clients answer and the run is to stop, write a checkpoint of the round before."""
        try:
            return self.engine.round(number)
        except TooFew as error:
            folder = self.records.folder
            if number > 1:
                self.records.checkpoint(number - 1, self._state())
            raise TooFew(f"{error}{'' if folder is None else f'; go on with --resume {folder}'}") from None

    def _record(self, outcome: Outcome, keep: bool) -> None:
        """Add a round to the records, and tell those who follow the run. keep: whether features are stored."""
        with self.seconds.of("records"):
            row = _row(outcome, self.scores, self.engine)
            if self.records.folder is not None and self.scores and keep:
                self.records.keep_features(measure(self.engine, self.scores))
            self.records.add(row, {"round": outcome.round, **self.seconds()}, outcome, self.scores)
        # This comes before the checkpoint: a tracker may receive a round twice, but must not miss one.
        self.tracking.round_done(row)
        if self.watcher is not None and outcome.round:
            self.watcher.round_done(row)

    def end(self, name: str, scenario: str) -> dict[str, Any]:
        """Write the complete tables, and return the summary."""
        if not self.scores:
            self.scores = self.engine.evaluate()
            if self.total == 0:
                self.outcome = Outcome(0, (), None, (), {})
                self._record(self.outcome, keep=False)
        with self.seconds.of("records"):
            self.records.finish(self.scores)
        paths = self._training_paths()
        return _summary(self.engine, self.run, name, scenario, self.records, self.scores, self.seconds(), paths)


class _Seconds(Clock):
    """The time spent, including the time before a resume."""

    def __init__(self, begun: float, before: Mapping[str, float], engine: Engine) -> None:
        super().__init__("records", "checkpoint")
        self.begun, self.before, self.engine = begun, before, engine

    def __call__(self) -> dict[str, float]:
        now = {"total": time.perf_counter() - self.begun, **self.engine.seconds, **self.seconds}
        # In the order of the names: a run that went on met its phases in another order.
        names = ["total", *sorted({*now, *self.before} - {"total"})]
        return {name: round(now.get(name, 0.0) + self.before.get(name, 0.0), 3) for name in names}


def _row(outcome: Outcome, scores: Mapping[str, Score], engine: Engine) -> dict[str, Any]:
    """Return the line of a round, in which nothing depends on the speed of the machine."""
    figures, missing = engine.server.info, missing_kinds(message.missing for message in outcome.traffic)
    return {
        "round": outcome.round,
        "sampled": list(outcome.sampled),
        **metrics.judged(scores, engine.roster),
        "groups": metrics.groups(outcome.graph, engine.roster.planted),
        **metrics.traffic(outcome.traffic),
        "samples": sum(outcome.samples.values()),
        "inferred": outcome.inferred,
        "flops": outcome.flops,
        **({"missing": missing} if missing else {}),
        **({"skipped": outcome.skipped} if outcome.skipped else {}),
        **({"metrics": in_round(measured(engine, scores))} if scores and engine.setup.measures else {}),
        **({"figures": dict(figures)} if figures else {}),
    }


def _summary(
    engine: Engine, run: RunSettings, name: str, scenario: str, records: Records, scores: Mapping[str, Score],
    seconds: Mapping[str, float], paths: list[dict[str, str]],
) -> dict[str, Any]:  # fmt: skip
    rounds, setup, everyone = records.rows["rounds"], engine.setup, engine.everyone
    missing = missing_summary(records.rows["messages"])
    part = {id: score for id, score in scores.items() if id not in set(everyone.unseen)}
    calibrated = calibration_of(outcomes_of(everyone.task.metric, part))
    settings = setup.method.model_dump(mode="json")
    told = given(settings, run.network)
    warned = cautions(settings, setup.training.rounds, rounds, scores, everyone.task.metric.name, run.precision)
    return {
        "name": name,
        "method": setup.method.name,
        "scenario": scenario,
        "seed": setup.seed,
        "rounds": setup.training.rounds,
        "clients": len(everyone),
        **metrics.judged(scores, everyone),
        **({"metrics": measured(engine, scores)} if setup.measures else {}),
        **_traffic_summary(records, everyone),
        **({"calibration": calibrated} if calibrated else {}),
        **({"given": told} if told else {}),
        **({"warnings": warned} if warned else {}),
        **({"missing": missing} if missing else {}),
        **({"privacy": privacy_spent(setup.privacy, engine.releases())} if setup.privacy.on else {}),
        "groups": _group_summary(rounds),
        "flops": {"local_training": sum(row["flops"] for row in rounds)},
        "seconds": dict(seconds),
        "engine": run.engine,
        "mode": engine.mode,
        **({"training_paths": paths} if paths else {}),
        "device": run.device,
        "dtype": run.dtype,
        **({} if run.precision == "float32" else {"precision": run.precision}),
        "parameters": setup.net.parameters(),
        "versions": versions(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            **({} if run.device == "cpu" else {"gpu": title(torch.device(run.device))}),
        },
    }


def _traffic_summary(records: Records, ids: Iterable[str]) -> dict[str, Any]:
    """Return bytes and floats up and down: in total, per client (mean, and bytes of each), and the largest upload."""
    ids = list(ids)
    total: dict[str, Any] = {what: {"up": 0, "down": 0} for what in ("bytes", "floats", "messages")}
    for row in records.rows["rounds"]:
        for what, ways in total.items():
            ways["up"] += row[what]["up"]
            ways["down"] += row[what]["down"]
    for ways in total.values():
        ways |= {"up_per_client": ways["up"] / len(ids), "down_per_client": ways["down"] / len(ids)}
    sent = records.rows["messages"]
    total["floats"]["largest_upload"] = max((one[5] for one in sent if one[1] != SERVER), default=0)
    return total | {"bytes": total["bytes"] | {"clients": bytes_by_client(sent, ids)}}


def _group_summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the groups of the last graph, and the mean recovery over all rounds with a graph."""
    with_graph = [row["groups"] for row in rounds if row["groups"]]
    if not with_graph:
        return {"found": None, "ari": None, "nmi": None, "modularity": None}
    known = [row["ari"] for row in with_graph if row["ari"] is not None]
    return {**with_graph[-1], "ari_mean": sum(known) / len(known) if known else None}


def run_experiment(
    experiment: Experiment,
    data_root: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
) -> Result:
    """Run one experiment; a finished run in `folder` is read instead of run again.

    Data and settings are checked before the folder is made. restart: whether a run in `folder` that is damaged, so that
    it can neither be read nor be gone on with, begins anew at round 0; else it is refused.
    """
    if folder is not None and (done := finished(experiment, folder, resume, restart)) is not None:
        return done
    dataset = dataset if dataset is not None else experiment.data.dataset(data_root)
    setup = experiment.setup(experiment.scenario.federation(dataset, experiment.run.seed), data_root)
    with nullcontext() if folder is None else experiment.claimed(folder, resume, data_root):
        return execute(
            setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
            watcher=watcher, restart=restart, model=experiment.model,
        )  # fmt: skip


def lasting(result: Result) -> Result:
    """The result without its models in memory, if its folder has them: they are read from there when asked for."""
    if result.folder is None or isinstance(result.models, Kept):
        return result
    with suppress(RunError):
        kept = Kept(result.folder)
        return replace(result, models=kept) if len(kept) == len(result.models) else result
    return result


def finished(experiment: Experiment, folder: Path, resume: bool, restart: bool) -> Result | None:
    """Read the run in this folder if it is a finished run of this experiment, as `read_finished`; None if it is not."""
    if not (folder / "summary.json").exists():
        return None
    experiment.check_claim(folder, resume)
    if untidy(folder):
        with suppress(RunError), held(folder):  # where it cannot be done, it is read all the same
            tidy(folder)
    return read_finished(folder, restart)


def read_finished(folder: Path, restart: bool) -> Result | None:
    """Read a finished run as `read_run`; one that is damaged is made an unfinished one if `restart` says so."""
    try:
        result = read_run(folder)
        reading.checked(reading.Finished, result.summary, folder / "summary.json")
        return result
    except RunError as error:
        if not restart:
            raise RunError(f"{error}; {ANEW}") from None
        say("%s", f"{error}; beginning anew at round 0")
        (folder / "summary.json").unlink()
        return None
