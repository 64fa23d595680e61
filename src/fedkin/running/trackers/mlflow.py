"""MLflow: a run on a tracking server, or in a database in the run's folder."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.records.files import read_json, write_json
from fedkin.running.trackers.base import PackageTracker, need
from fedkin.running.trackers.figures import totals_of

__all__ = ["MLflow"]

# The largest number of characters in the value of a parameter in MLflow.
_VALUE = 6000


class MLflow(PackageTracker):
    """A run on the server of MLFLOW_TRACKING_URI, else in `mlflow/mlflow.db` in the run's folder."""

    package = "mlflow"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or None
        self.place = None if self.uri else self.home() / "mlflow"
        if self.place is not None:
            need("mlflow", "sqlalchemy", "alembic", extra="mlflow")
        self.client: Any = None
        self.run = ""
        self.last: dict[str, int] = {}

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        from mlflow.tracking import MlflowClient

        if self.place is None:
            self.client = MlflowClient(tracking_uri=self.uri)
        else:
            self.place.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(self.place / 'mlflow.db').resolve()}"
            self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        kept = self.folder / "mlflow.json" if self.folder is not None else None
        if kept is not None and kept.exists():
            self.run = read_json(kept)["run"]
            known = self.client.get_run(self.run).data.metrics
            self.last = {key: max(each.step for each in self._history(key)) for key in known}
            self.client.update_run(self.run, status="RUNNING")
        else:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(settings.get("name", settings["federation"]))
            self.run = self.client.create_run(self._experiment(title), run_name=name).info.run_id
            self._settings(settings)
            if kept is not None:
                write_json(kept, {"run": self.run})
        # The store may have been unreachable in some of these rounds.
        for round, figures in self.earlier(done):
            self.log(round, figures)

    def _experiment(self, title: str) -> str:
        found = self.client.get_experiment_by_name(title)
        if found is not None:
            return str(found.experiment_id)
        location = (self.place / "artifacts").resolve().as_uri() if self.place is not None else None
        return str(self.client.create_experiment(title, artifact_location=location))

    def _history(self, key: str) -> Iterable[Any]:
        return self.client.get_metric_history(self.run, key)  # type: ignore[no-any-return]

    def _settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        for some in _batches([Param(_plain(key), str(value)[:_VALUE]) for key, value in settings.items()], 100):
            self.client.log_batch(self.run, params=some)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        named = {_plain(key): value for key, value in figures.items()}
        new = [Metric(key, value, now, round) for key, value in named.items() if round > self.last.get(key, -1)]
        for some in _batches(new, 1000):
            self.client.log_batch(self.run, metrics=some)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.log(summary["rounds"], totals_of(summary))
        # MLflow prints the address of the run. On stdout this could break a summary that a program reads.
        with contextlib.redirect_stdout(sys.stderr):
            self.client.set_terminated(self.run, "KILLED" if summary is None else "FINISHED")


def _plain(name: str) -> str:
    """Return a name that MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def _batches(items: Sequence[Any], most: int) -> Iterable[Sequence[Any]]:
    """Yield `items` in batches of at most `most`."""
    return (items[first : first + most] for first in range(0, len(items), most))
