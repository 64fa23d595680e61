"""Trackers of a run's settings and figures: TensorBoard, MLflow, Weights & Biases, or your own object."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedkin.errors import ConfigError, imported
from fedkin.records.files import read_json, write_json
from fedkin.records.metrics import metric_of
from fedkin.records.recorder import rounds_so_far
from fedkin.settings import choose, flat

__all__ = [
    "TRACKERS", "MLflow", "PackageTracker", "TensorBoard", "Tracker", "Tracking", "WandB", "check_trackers",
    "figures_of", "totals_of",
]  # fmt: skip


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a line of rounds.jsonl that trackers log; unknown figures are left out.

    They are NAME/mean and NAME/worst10 of the task's metric; the means of the task's further metrics; metrics/NAME, the
    mean of each of `run.metrics`; loss (on test samples), unseen/mean, gap; groups/found, /ari, /nmi, /modularity;
    bytes/up and /down of this round; and method/... with the figures of the method.
    """

    def section(name: str) -> Mapping[str, Any]:
        return row.get(name) or {}

    def named(prefix: str, values: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {f"{prefix}/{name}": values.get(name) for name in names}

    metric = metric_of(row).name
    scored = section(metric)
    figures = named(metric, scored, "mean", "worst10")
    figures |= {f"{name}/mean": value.get("mean") for name, value in scored.items() if isinstance(value, Mapping)}
    figures |= {f"metrics/{name}": each.get("mean") for name, each in section("metrics").items()}
    figures |= {"loss": scored.get("loss"), **named("unseen", section("unseen"), "mean"), "gap": row.get("gap")}
    figures |= named("groups", section("groups"), "found", "ari", "nmi", "modularity")
    figures |= named("bytes", row["bytes"], "up", "down")
    figures |= {f"method/{name}": value for name, value in flat(section("figures")).items()}
    return {name: float(value) for name, value in figures.items() if _finite(value)}


def totals_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a complete run that the built-in trackers log.

    They are total/seconds, /bytes_up, /bytes_down, /flops, /parameters and /ari_mean.
    """
    totals = {
        "seconds": summary["seconds"]["total"], "bytes_up": summary["bytes"]["up"],
        "bytes_down": summary["bytes"]["down"], "flops": summary["flops"]["local_training"],
        "parameters": summary["parameters"], "ari_mean": summary["groups"].get("ari_mean"),
    }  # fmt: skip
    return {f"total/{name}": float(value) for name, value in totals.items() if _finite(value)}


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@runtime_checkable
class Tracker(Protocol):
    """A tracker of a run; if it raises, a warning is given, and the run continues without it."""

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        """Called when a run begins, or is resumed after round `done` (0: from the start).

        settings: all settings of the run, by dotted names such as "training.lr". An interrupted run resumes from its
        last checkpoint, so rounds after `done` may be logged a second time, with the same figures.
        """

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Called after each round with the figures from `figures_of`, all of them finite.

        A round without evaluation has no accuracy.
        """

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Called at the end of a run with the content of summary.json; None: the run was stopped or failed."""


class PackageTracker(Tracker):
    """A tracker that needs a package, and by default a run folder to write to.

    package: name of the package, and of the extra that installs it. last: the last round that the package has received,
    so that a resumed run repeats none.
    """

    package: ClassVar[str]

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.last = folder, -1
        # The file with the id of the package's run.
        self.id_file = None if folder is None else folder / f"{self.package}.json"

    def place(self) -> Path:
        """The package's folder in the run's folder; raises ConfigError if the run has no folder."""
        if self.folder is None:
            raise ConfigError(f"trackers: {self.package!r} writes into the run's folder: give the run one (out=...)")
        return self.folder / self.package

    def read_id(self) -> str | None:
        """Return the id of the package's run from an earlier start, or None."""
        return str(read_json(self.id_file)["run"]) if self.id_file is not None and self.id_file.exists() else None

    def write_id(self, id: str) -> None:
        """Store the id of the package's run."""
        if self.id_file is not None:
            write_json(self.id_file, {"run": id})

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        if round > self.last:
            self.send(round, figures)
            self.last = round

    def send(self, round: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round that the package has not received yet."""

    def log_earlier(self, done: int) -> None:
        """Log rounds 1 to `done` from the records of a resumed run."""
        for row in rounds_so_far(self.folder) if self.folder is not None and done else []:
            if row["round"] <= done:
                self.log(row["round"], figures_of(row))


class TensorBoard(PackageTracker):
    """Event files in the run's folder, under `tensorboard/`; a resumed run continues the same curves."""

    package = "tensorboard"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.events = str(self.place())
        self.writer: Any = None

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Readers sort files by name, not by time, so write everything again into one file.
        for old in Path(self.events).glob("events.out.tfevents.*"):
            old.unlink()
        self.writer = SummaryWriter(self.events)
        rows = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", 0)
        self.log_earlier(done)

    def send(self, round: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()  # so that users see the round at once

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.send(summary["rounds"], totals_of(summary))
        self.writer.close()


class MLflow(PackageTracker):
    """A run on the server of MLFLOW_TRACKING_URI, else in `mlflow/mlflow.db` in the run's folder."""

    package = "mlflow"
    # The largest number of characters in the value of a parameter.
    LONGEST = 6000

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or None
        self.store = None if self.uri else self.place()
        if self.store is not None:
            for package in ("sqlalchemy", "alembic"):
                imported(package, "trackers: 'mlflow'", "mlflow")
        self.client: Any = None
        self.run = ""

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        artifacts = None
        if self.store is not None:
            self.store.mkdir(parents=True, exist_ok=True)
            self.uri = f"sqlite:///{(self.store / 'mlflow.db').resolve()}"
            artifacts = (self.store / "artifacts").resolve().as_uri()
        self.client = MlflowClient(tracking_uri=self.uri, registry_uri=None if self.store is None else self.uri)
        id = self.read_id()
        if id is not None:
            self.run = id
            self.last = max((each.step for each in self.client.get_metric_history(id, "bytes/up")), default=-1)
            self.client.update_run(id, status="RUNNING")
        else:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(settings.get("name", settings["federation"]))
            experiment = self.client.get_experiment_by_name(title)
            number = (
                self.client.create_experiment(title, artifact_location=artifacts) if experiment is None
                else experiment.experiment_id
            )  # fmt: skip
            self.run = self.client.create_run(str(number), run_name=name).info.run_id
            params = [Param(_plain(key), str(value)[: self.LONGEST]) for key, value in settings.items()]
            for first in range(0, len(params), 100):
                self.client.log_batch(self.run, params=params[first : first + 100])
            self.write_id(self.run)
        # The tracking store may have been unreachable in some of these rounds.
        self.log_earlier(done)

    def send(self, round: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_plain(key), value, now, round) for key, value in figures.items()]
        for first in range(0, len(metrics), 1000):
            self.client.log_batch(self.run, metrics=metrics[first : first + 1000])

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.send(summary["rounds"], totals_of(summary))
        # MLflow prints the run's address. On stdout this could break a summary that another program reads.
        with contextlib.redirect_stdout(sys.stderr):
            self.client.set_terminated(self.run, "KILLED" if summary is None else "FINISHED")


def _plain(name: str) -> str:
    """Return a name that MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


class WandB(PackageTracker):
    """A run of Weights & Biases, online or offline as WANDB_MODE says.

    Without WANDB_MODE, the run is online if there are credentials, else offline in the run's folder.
    """

    package = "wandb"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.run: Any = None

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        import wandb

        env = os.environ
        # Do not ask the user or the network for credentials.
        offline = not env.get("WANDB_MODE") and not wandb.login(prompt=False, verify=False)
        self.run = wandb.init(
            project=None if env.get("WANDB_PROJECT") else "fedkin",
            group=None if env.get("WANDB_RUN_GROUP") else str(settings.get("name", settings["federation"])),
            name=name,
            id=self.read_id() or uuid.uuid4().hex[:12],
            resume="allow",
            dir=str(self.folder) if self.folder is not None else None,
            config=dict(settings),
            mode="offline" if offline else None,
            # Do not touch a run that the user has started, and print nothing.
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        if self.run.disabled:
            return
        self.write_id(self.run.id)
        # starting_step follows the last step on the server; it is 0 offline. wandb loses figures that were logged in
        # the last seconds before a kill.
        self.last = self.run.starting_step - 1
        self.log_earlier(done)
        self._remove_offline_files()

    def _remove_offline_files(self) -> None:
        """Remove the offline files of an interrupted run: all of its rounds were logged again."""
        for old in self.place().glob(f"offline-run-*-{self.run.id}") if self.folder is not None else ():
            if old.resolve() != Path(self.run.dir).parent.resolve():
                shutil.rmtree(old)

    def send(self, round: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=round)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.run.summary.update(totals_of(summary))
        self.run.finish(exit_code=int(summary is None))


TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_trackers(names: Iterable[str]) -> None:
    """Raise ConfigError for an unknown name, or if the package of a tracker is not installed."""
    for name in names:
        choose(TRACKERS, name, "trackers")
        imported(name, f"trackers: {name!r}", name)


class Tracking:
    """The trackers of a run, called one after another; a tracker that fails is dropped with a warning."""

    def __init__(self, trackers: Sequence[str | Tracker], folder: Path | None) -> None:
        self.live: list[tuple[str, Tracker]] = []
        # Compare objects by identity: they may have no hash, and equal objects may write to different places.
        for tracker in {tracker if isinstance(tracker, str) else id(tracker): tracker for tracker in trackers}.values():
            if isinstance(tracker, str):
                check_trackers([tracker])
                self.live.append((tracker, TRACKERS[tracker](folder)))
            elif isinstance(tracker, Tracker) and not isinstance(tracker, type):
                self.live.append((type(tracker).__name__, tracker))
            else:
                raise ConfigError(
                    f"trackers: expected {', '.join(TRACKERS)}, or objects with start, log and finish; got {tracker!r}"
                )
        self.over = False

    def started(self, settings: Callable[[], Mapping[str, Any]], name: str, done: int) -> None:
        """Tell all trackers that the run begins or is resumed."""
        if self.live:
            by_name = flat(settings())
            self._tell(lambda tracker: tracker.start(by_name, name, done))

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Tell all trackers about a round; `row` is its line in rounds.jsonl."""
        if self.live:
            figures = figures_of(row)
            self._tell(lambda tracker: tracker.log(row["round"], figures))

    def ended(self, summary: Mapping[str, Any] | None) -> None:
        """Tell all trackers, once, that the run has ended; None: it was stopped or failed."""
        if not self.over:
            self.over = True
            self._tell(lambda tracker: tracker.finish(summary))

    def _tell(self, act: Callable[[Tracker], None]) -> None:
        for entry in list(self.live):
            try:
                act(entry[1])
            except Exception as error:
                self.live.remove(entry)
                what = f"{type(error).__name__}: {error}"
                warnings.warn(f"tracker {entry[0]}: {what}; the run continues without it", RuntimeWarning, stacklevel=4)
