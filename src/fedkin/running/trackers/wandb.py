"""Weights & Biases: a run online, or offline in the run's folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.records.files import read_json, write_json
from fedkin.running.trackers.base import PackageTracker
from fedkin.running.trackers.figures import totals_of

__all__ = ["WandB"]


class WandB(PackageTracker):
    """A run of Weights & Biases, online or offline by WANDB_MODE.

    Without WANDB_MODE it is online if there are credentials, else offline in the run's folder.
    """

    package = "wandb"

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.kept = folder / "wandb.json" if folder is not None else None
        self.run: Any = None
        self.last = -1

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        import wandb

        known = read_json(self.kept) if self.kept is not None and self.kept.exists() else {}
        env = os.environ
        self.run = wandb.init(
            project=None if env.get("WANDB_PROJECT") else "fedkin",
            group=None if env.get("WANDB_RUN_GROUP") else str(settings.get("name", settings["federation"])),
            name=name,
            id=known.get("run") or uuid.uuid4().hex[:12],
            resume="allow",
            dir=str(self.folder) if self.folder is not None else None,
            config=dict(settings),
            mode=None if env.get("WANDB_MODE") or _logged_in(wandb) else "offline",
            # A run that the user has started stays as it is, and nothing is printed.
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        if self.run.disabled:
            return
        if self.kept is not None:
            write_json(self.kept, {"run": self.run.id})
        # The step after the last one on the server; offline 0. Figures that were logged in the last seconds before a
        # kill were neither written nor sent.
        self.last = self.run.starting_step - 1
        for round, figures in self.earlier(done):
            self.log(round, figures)
        self._supersede()

    def _supersede(self) -> None:
        """Remove the offline files of the interrupted run, since all rounds are logged again."""
        own = Path(self.run.dir).parent.resolve()
        for old in self.folder.glob(f"wandb/offline-run-*-{self.run.id}") if self.folder is not None else ():
            if old.resolve() != own:
                shutil.rmtree(old)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        if round > self.last:
            self.run.log(dict(figures), step=round)
            self.last = round

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.run.summary.update(totals_of(summary))
        self.run.finish(exit_code=int(summary is None))


def _logged_in(wandb: Any) -> bool:
    """Whether there are credentials; neither the user nor the network is asked."""
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # older versions lack these options, and have only the key
        return bool(os.environ.get("WANDB_API_KEY"))
