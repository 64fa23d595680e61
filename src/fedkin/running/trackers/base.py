"""The protocol of trackers, and the base class of trackers that need a package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedkin.errors import ConfigError
from fedkin.records.recorder import rounds_so_far
from fedkin.running.trackers.figures import figures_of

__all__ = ["PackageTracker", "Tracker", "need"]


@runtime_checkable
class Tracker(Protocol):
    """A tracker of a run; if it raises, one warning is given, and the run goes on without it."""

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        """Called when a run begins, or is resumed after round `done` (0: from the start).

        settings: all settings of the run, by dotted names such as "training.lr". An interrupted run is resumed from its
        last checkpoint, so rounds above `done` that were logged before come again, with the same figures.
        """

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Called after each round with the figures of `figures_of`, all of them finite.

        A round without evaluation has no accuracy.
        """

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Called at the end of a run with the content of summary.json; None: the run was stopped or failed."""


class PackageTracker(Tracker):
    """A tracker that needs a package, and by default a run folder to write to.

    package: name of the package, which is also the name of the extra that installs it.
    """

    package: ClassVar[str]

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def home(self) -> Path:
        """The folder of the run; raises ConfigError if there is none."""
        if self.folder is None:
            raise ConfigError(f"trackers: {self.package!r} writes into the run's folder: give the run one (out=...)")
        return self.folder

    def earlier(self, done: int) -> list[tuple[int, dict[str, float]]]:
        """Return (round, figures) of rounds 1 to `done`, from the records of a resumed run."""
        rows = rounds_so_far(self.folder) if self.folder is not None and done else []
        return [(row["round"], figures_of(row)) for row in rows if row["round"] <= done]


def need(*packages: str, extra: str) -> None:
    """Raise ConfigError naming the extra if one of these packages is not installed."""
    for package in packages:
        if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
            raise ConfigError(f"trackers: {extra!r} needs the package {package}: pip install 'fedkin[{extra}]'")
