"""The trackers of a run, by name or as objects, and the calls to them."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin._version import __version__
from fedkin.engines import Setup
from fedkin.engines.roster import Roster
from fedkin.engines.setup import Plan
from fedkin.errors import ConfigError
from fedkin.records.files import flat
from fedkin.running.trackers.base import Tracker, need
from fedkin.running.trackers.figures import figures_of
from fedkin.running.trackers.mlflow import MLflow
from fedkin.running.trackers.tensorboard import TensorBoard
from fedkin.running.trackers.wandb import WandB
from fedkin.settings import Settings, choose

__all__ = ["TRACKERS", "Tracking", "check_trackers", "described"]

TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_trackers(names: Iterable[str]) -> None:
    """Raise ConfigError for an unknown name, or if the package of a tracker is not installed."""
    for name in names:
        choose(TRACKERS, name, "trackers")
        need(name, extra=name)


class Tracking:
    """The trackers of a run, called one after another; a tracker that fails is dropped with a warning."""

    def __init__(self, trackers: Sequence[str | Tracker], folder: Path | None) -> None:
        self.live: list[tuple[str, Tracker]] = []
        # Objects are compared by identity: they may have no hash, and equal ones may write to two places.
        for each in {each if isinstance(each, str) else id(each): each for each in trackers}.values():
            if isinstance(each, str):
                check_trackers([each])
                self.live.append((each, TRACKERS[each](folder)))
            elif isinstance(each, Tracker) and not isinstance(each, type):
                self.live.append((type(each).__name__, each))
            else:
                raise ConfigError(
                    f"trackers: expected {', '.join(TRACKERS)}, or objects with start, log and finish; got {each!r}"
                )
        self.over = False

    def started(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        """Pass on that the run begins or is resumed."""
        self._tell(lambda tracker: tracker.start(settings, name, done))

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Pass on a round; `row` is its line in rounds.jsonl."""
        if self.live:
            figures = figures_of(row)
            self._tell(lambda tracker: tracker.log(row["round"], figures))

    def ended(self, summary: Mapping[str, Any] | None) -> None:
        """Pass on, once, that the run has ended; with None it was stopped or failed."""
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
                warnings.warn(f"tracker {entry[0]}: {what}; the run goes on without it", RuntimeWarning, stacklevel=4)


def described(setup: Setup | Plan, clients: Roster, run: Settings, folder: Path | None) -> dict[str, Any]:
    """Return all settings of a run by dotted names, from the folder's experiment.toml or, without one, the setup."""
    kept = folder / "experiment.toml" if folder is not None else None
    if kept is not None and kept.exists():
        table = tomllib.loads(kept.read_text(encoding="utf-8"))
    else:
        method = {"name": setup.method.name, **setup.method.model_dump(mode="json")}
        table = {
            "method": method,
            "training": setup.training.model_dump(mode="json"),
            "faults": setup.faults.model_dump(mode="json"),
            **({"privacy": setup.privacy.model_dump(mode="json")} if setup.privacy.on else {}),
            "run": run.model_dump(mode="json"),
        }
    return flat(table) | {"federation": clients.name, "clients": len(clients), "fedkin": __version__}
