"""What every tracker does, and what those have in common that need a package of their own."""

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
    """What a run tells whoever tracks it. One that raises is warned of once, and hears no more of the run."""

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        """A run begins, or goes on after round `done` (0: from the start).

        settings: all that the run is made with, by dotted names such as "training.lr". A cut run goes on from its last
        checkpoint, so rounds above `done` that were logged before the cut come again, with the same figures.
        """

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """A round is over; `figures` as `figures_of` gives them, all finite.

        In a round that is not evaluated there is no accuracy.
        """

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """The run is over, and `summary` is what summary.json holds; None: it was stopped or failed."""


class PackageTracker(Tracker):
    """A tracker that needs a package, and by default a run folder to write to.

    package: its name, which is also the name of the extra that installs it.
    """

    package: ClassVar[str]

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def home(self) -> Path:
        """The run's folder; raises ConfigError when there is none."""
        if self.folder is None:
            raise ConfigError(f"trackers: {self.package!r} writes into the run's folder: give the run one (out=...)")
        return self.folder

    def earlier(self, done: int) -> list[tuple[int, dict[str, float]]]:
        """(round, figures) of rounds 1 to `done`, from the records of a run that goes on."""
        rows = rounds_so_far(self.folder) if self.folder is not None and done else []
        return [(row["round"], figures_of(row)) for row in rows if row["round"] <= done]


def need(*packages: str, extra: str) -> None:
    """Raise ConfigError naming the extra when one of these packages is not installed."""
    for package in packages:
        if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
            raise ConfigError(f"trackers: {extra!r} needs the package {package}: pip install 'fedkin[{extra}]'")
