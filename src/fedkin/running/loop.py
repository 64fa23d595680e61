"""The round loop: rounds, evaluation, records and checkpoints; a run can stop and resume at any round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedkin._version import __version__
from fedkin.analysis.embeddings import measure
from fedkin.analysis.intervals import Persons
from fedkin.analysis.paired import Outcomes
from fedkin.engines import ENGINES, Engine, Outcome, Score, Setup
from fedkin.engines.accounting import Clock
from fedkin.engines.failures import TooFew, method_errors
from fedkin.errors import IN_PYTHON, ConfigError, RunError
from fedkin.federation import Client, Federation
from fedkin.folders import locked
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import Model
from fedkin.records.files import remove_resume_files
from fedkin.records.models import ModelContext, StoredModels
from fedkin.records.outcomes import outcomes_of
from fedkin.records.recorder import Records, check_samples
from fedkin.records.run import Result, read_run
from fedkin.running.experiment import Experiment, RunSettings
from fedkin.running.summary import round_line, summary_of
from fedkin.running.trackers import Tracker, Tracking


class Watcher(Protocol):
    """An observer of a run, which can also stop it."""

    def started(self, rounds: int, done: int) -> None:
        """Called at the start of a run of `rounds` rounds; the first `done` rounds are already done."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Called after each round; `row` is its line in rounds.jsonl."""

    def stopping(self) -> bool:
        """Return True to write a checkpoint and stop after this round."""


class Stop(Exception):
    """The run was asked to stop, and can be resumed in its folder from `round`."""

    def __init__(self, round: int, folder: Path | None) -> None:
        super().__init__(f"stopped after round {round}")
        self.round, self.folder = round, folder


def check_measures(measures: Sequence[Measure]) -> None:
    """Raise ConfigError if two metrics have the same name."""
    names = [each.name for each in measures]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConfigError(f"metrics: {twice[0]!r} twice")


def execute(
    setup: Setup, run: RunSettings, *, name: str = "run", scenario: str = "", folder: Path | None = None,
    watcher: Watcher | None = None, trackers: Sequence[str | Tracker] = (),
    make: Callable[[Setup], Engine] | None = None, model: Model | None = None,
    measures: Sequence[Measure] = (), settings: Callable[[], Mapping[str, Any]] = dict,
    model_context: ModelContext | None = None,
) -> Result:  # fmt: skip
    """Run all rounds, from the checkpoint in the folder if there is one; raises Stop if the watcher stops the run.

    make: a function that makes the engine, instead of the one that `run.engine` names. model: the settings of the net,
    if it has any. measures: metrics in addition to `run.metrics`. settings: a function that returns the settings for
    trackers. model_context: what the models need to be used again, if the engine's setup has no samples.
    """
    begun = time.perf_counter()
    every = (*(MEASURES[each] for each in run.metrics), *measures)
    check_measures(every)
    tracking = Tracking([*run.trackers, *trackers], folder)
    records = Records(folder)
    with method_errors(setup.method):
        engine = (make or ENGINES[run.engine])(replace(setup, engine=run, measures=every))
    try:
        with closing(engine), method_errors(setup.method):
            loop = _Loop(engine, run, records, tracking, watcher, begun)
            loop.begin(name, settings)
            loop.run_rounds()
            summary = loop.end(name, scenario or engine.all_clients.name)
            models = engine.models()
        context = model_context
        if context is None and isinstance(engine.setup.clients, Federation):  # a setup may have no samples
            context = ModelContext.of(engine.setup, engine.setup.clients, model)
        kept = (
            context is not None and run.models == "last" and records.keep_models(models, context, run.models_limit_mb)
        )
        # First close the engine, which removes its files: nothing would remove them from a finished run.
        records.conclude(summary)
        tracking.ended(summary)
    finally:
        tracking.ended(None)
    scores = {id: score._replace(digest=(), outcomes=b"") for id, score in loop.scores.items()}
    return Result(
        summary, records.rows["rounds"], records.table("clients"), records.table("messages"), scores,
        loop.outcome, StoredModels(folder) if folder is not None and kept else models, folder,
        tuple(engine.all_clients.unseen), records.all_graphs(), records.facts, loop.outcomes,
    )  # fmt: skip


@dataclass
class _Loop:
    """The rounds of one run, from its begin or its last checkpoint to its summary.

    seconds_before, paths_before: times and training paths from before a resume.
    """

    engine: Engine
    run: RunSettings
    records: Records
    tracking: Tracking
    watcher: Watcher | None
    begun: float
    clock: Clock = field(default_factory=partial(Clock, "records", "checkpoint"))
    done: int = 0
    outcome: Outcome | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    seconds_before: dict[str, float] = field(default_factory=dict)
    paths_before: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = self.engine.setup.training.rounds

    def begin(self, name: str, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Restore the last checkpoint if there is one, and inform watcher and trackers."""
        resumed = self.records.begin(self.engine.all_clients.task, self.engine.facts)
        if resumed is not None:
            self.done, state = resumed
            self.engine.restore(state["engine"])
            self.seconds_before = dict(state["seconds"])
            self.paths_before = list(state["training_paths"].values())
        if self.watcher is not None:
            self.watcher.started(self.total, self.done)
        setup, clients = self.engine.setup, self.engine.all_clients

        def tracked_facts() -> dict[str, Any]:
            return {**settings(), "federation": clients.name, "clients": len(clients), "fedkin": __version__}

        self.tracking.started(tracked_facts, f"{name}-{setup.method.name}-seed{setup.seed}", self.done)

    def run_rounds(self) -> None:
        """Run the remaining rounds; raises Stop."""
        for number in range(self.done + 1, self.total + 1):
            outcome = self._round(number)
            last = number == self.total
            self.scores = self.engine.evaluate() if last or number % self.run.evaluate_every == 0 else {}
            outcome = replace(outcome, traffic=(*outcome.traffic, *self.engine.missed))
            embed = self.run.embeddings_every
            self._record(outcome, keep_features=last or (embed > 0 and number % embed == 0))
            stop = self.watcher is not None and self.watcher.stopping() and not last
            if last or stop or number % self.run.checkpoint_every == 0:
                with self.clock.of("checkpoint"):
                    self.records.checkpoint(number, self._state())
            if stop:
                raise Stop(number, self.records.folder)

    def end(self, name: str, scenario: str) -> dict[str, Any]:
        """Write the complete tables, and return the summary."""
        if not self.scores:
            self.scores = self.engine.evaluate()
            if self.total == 0:
                self._record(Outcome(0, (), None, (), {}), keep_features=False)
        with self.clock.of("records"):
            if (facts := self.engine.last_facts()) is not None:
                self.records.describe(facts)
            self.outcomes = outcomes_of(self.records.metric, self.scores, self._persons())
            self.records.finish(self.outcomes)
        return summary_of(
            self.engine, self.run, name, scenario, self.records, self.scores, self.outcomes, self._seconds(),
            self._training_paths(),
        )  # fmt: skip

    def _persons(self) -> dict[str, Persons]:
        """The numbers of the persons of clients' test samples, for clients whose samples are here and have persons."""
        clients = {id: client for id, client in self.engine.roster.items() if isinstance(client, Client)}
        return {id: client.test.units() for id, client in clients.items() if client.test.person is not None}

    def _round(self, number: int) -> Outcome:
        """Run a round; if the engine raises TooFew, write a checkpoint of the previous round."""
        try:
            return self.engine.round(number)
        except TooFew as error:
            folder = self.records.folder
            if number > 1:
                self.records.checkpoint(number - 1, self._state())
            raise TooFew(f"{error}{'' if folder is None else f'; go on with --resume {folder}{IN_PYTHON}'}") from None

    def _record(self, outcome: Outcome, keep_features: bool) -> None:
        """Add a round to the records, and inform trackers and watcher."""
        self.outcome = outcome
        with self.clock.of("records"):
            row = round_line(outcome, self.scores, self.engine)
            if self.records.folder is not None and self.scores and keep_features:
                self.records.keep_features(measure(self.engine, self.scores))
            self.records.add(row, {"round": outcome.round, **self._seconds()}, outcome, self.scores)
        # This comes before the checkpoint: a tracker may receive a round twice, but must not miss one.
        self.tracking.round_done(row)
        if self.watcher is not None and outcome.round:
            self.watcher.round_done(row)

    def _state(self) -> dict[str, Any]:
        paths = {f"{number:06d}": path for number, path in enumerate(self._training_paths())}
        return {"engine": self.engine.state(), "seconds": self._seconds(), "training_paths": paths}

    def _training_paths(self) -> list[dict[str, str]]:
        """Return how nets were trained, including before a resume."""
        new = [path._asdict() for path in self.engine.site.training_paths]
        return self.paths_before + [path for path in new if path not in self.paths_before]

    def _seconds(self) -> dict[str, float]:
        """Return the time spent, including before a resume."""
        now = {"total": time.perf_counter() - self.begun, **self.engine.clock.seconds, **self.clock.seconds}
        before = self.seconds_before
        # Sort by name: a resumed run meets its phases in another order.
        names = ["total", *sorted({*now, *before} - {"total"})]
        return {name: round(now.get(name, 0.0) + before.get(name, 0.0), 3) for name in names}


def run_experiment(
    experiment: Experiment, data_root: Path | None, folder: Path | None = None, *,
    watcher: Watcher | None = None, federation: Callable[[], Federation] | None = None,
    trackers: Sequence[str | Tracker] = (),
) -> Result:  # fmt: skip
    """Run one experiment; resumes an unfinished run in `folder`, and reads a finished one.

    Data and settings are checked before the folder is made. federation: a function that makes the clients; by default
    the experiment makes them.
    """
    clients = partial(experiment.federation, data_root) if federation is None else federation
    if folder is not None and (done := finished(experiment, folder, clients)) is not None:
        return done
    setup = experiment.setup(clients(), data_root)
    with nullcontext() if folder is None else experiment.claimed(folder, data_root):
        return execute(
            setup, experiment.run, name=experiment.name or setup.federation.name, scenario=experiment.scenario.name,
            folder=folder, watcher=watcher, trackers=trackers, model=experiment.settings_of_net,
            measures=() if experiment.inputs is None else experiment.inputs.measures, settings=experiment.resolved,
        )  # fmt: skip


def finished(experiment: Experiment, folder: Path, clients: Callable[[], Federation] | None = None) -> Result | None:
    """Read the run in this folder if it is finished, else return None; raises RunError for another experiment's folder.

    clients: a function that makes the clients; clients from a program must be the same as in the run.
    """
    if not (folder / "summary.json").exists():
        return None
    experiment.check_claim(folder)
    if experiment.inputs is not None and clients is not None:
        federation = clients()
        with locked(folder):
            check_samples(folder, federation.fingerprint())
    with suppress(RunError), locked(folder):  # the run can be read even if tidying fails
        remove_resume_files(folder)
    return read_run(folder)
