"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.running.trackers.base import PackageTracker
from fedkin.running.trackers.figures import totals_of

__all__ = ["TensorBoard"]


class TensorBoard(PackageTracker):
    """Event files in the run's folder, under `tensorboard/`."""

    package = "tensorboard"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.place = self.home() / "tensorboard"
        self.writer: Any = None

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if not done:
            for old in self.place.glob("events.out.tfevents.*"):
                old.unlink()
        self._age()
        # Readers drop the rounds of older files from purge_step on, since these rounds come again.
        self.writer = SummaryWriter(str(self.place), purge_step=done + 1 if done else None)
        if not done:
            rows = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
            self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", 0)

    def _age(self) -> None:
        """Rename existing files so that they sort before the next one."""
        # Readers sort by name, which has the second and the process id. The files of a run that is killed and resumed
        # within one second would be read in the wrong order.
        latest = int(time.time())
        for old in sorted(self.place.glob("events.out.tfevents.*"), reverse=True):
            *head, stamp, rest = old.name.split(".", 4)
            latest = min(latest - 1, int(stamp))
            old.rename(old.with_name(".".join([*head, f"{latest:010d}", rest])))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, round)
        # After a kill, the file must have every round before the checkpoint.
        self.writer.flush()

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.log(summary["rounds"], totals_of(summary))
        self.writer.close()
