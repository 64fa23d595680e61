"""The checkpoints of a run: the state after a round, under a seal of all files that a resume from it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.records import files, reading

NEWEST = "parts/newest.json"
_EXPERIMENT = "experiment.toml"
# A run can be resumed without these files: each is only a result of one round.
_RESULTS = ("graphs/", "features/")


@dataclass(frozen=True)
class Checkpoint:
    """An unchanged checkpoint: its round, the state, and its seal."""

    round: int
    state: dict[str, Any]
    seal: files.Seal


class Checkpoints:
    """The checkpoints in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "checkpoint"

    def write(self, round: int, state: Mapping[str, Any], stamps: Mapping[str, files.Stamp]) -> None:
        """Write a checkpoint and its seal, which includes `stamps`; keep one older checkpoint and remove the others."""
        name = f"round-{round:06d}"
        older = [number for number in self._rounds() if number < round]
        sealed = dict(stamps)
        if (self.folder / _EXPERIMENT).exists():
            sealed[_EXPERIMENT] = files.stamp_of(self.folder / _EXPERIMENT)

        def seal(stamp: files.Stamp) -> None:
            files.write_seal(self.place / f"{name}.json", sealed | {f"checkpoint/{name}.safetensors": stamp}, round)

        files.write_with(self.place / f"{name}.safetensors", lambda file: codec.write(state, file), before=seal)
        files.write_json(self.folder / NEWEST, round)
        self.keep({round, max(older, default=round)})

    def keep(self, rounds: set[int]) -> None:
        """Remove all checkpoints except those of these rounds."""
        for kind in ("safetensors", "json"):
            for round, path in reading.files_in(self.place, kind).items():
                if round not in rounds:
                    path.unlink()

    def choose(self) -> Checkpoint | None:
        """Return the newest unchanged checkpoint; None if no checkpoint was ever written.

        Logs what is wrong with a newer one. Raises RunError if no checkpoint is left to resume from.
        """
        checkpoint, wrong = self.survey()
        if checkpoint is None:
            if wrong:
                raise RunError(f"{next(iter(wrong.values()))}; no checkpoint is left to go on from: {reading.MEND}")
            return None
        if wrong:
            files.say("%s", f"{next(iter(wrong.values()))}; going on from the checkpoint of round {checkpoint.round}")
            files.write_json(self.folder / NEWEST, checkpoint.round)
        for lost in self.lost(checkpoint):
            files.say("%s", f"{lost}; going on without it")
        self.keep({checkpoint.round, *(round for round in self._rounds() if round < checkpoint.round)})
        return checkpoint

    def lost(self, checkpoint: Checkpoint) -> list[str]:
        """Return the problems of results of single rounds, without which the run can be resumed."""
        sealed = checkpoint.seal.files
        return files.faults(self.folder, sealed, (name for name in sealed if name.startswith(_RESULTS)))

    def survey(self, all: bool = False) -> tuple[Checkpoint | None, dict[int, str]]:
        """Return the newest unchanged checkpoint, and what is wrong with newer ones, by round.

        all: whether to check older checkpoints too.
        """
        newest, wrong = None, {}
        for round in sorted({*self._rounds(), *self._noted()}, reverse=True):
            try:
                checkpoint = self.read(round)
                newest = newest or checkpoint
            except RunError as error:
                wrong[round] = str(error)
            if newest is not None and not all:
                break
        return newest, wrong

    def read(self, round: int) -> Checkpoint:
        """Read the checkpoint of this round; raises RunError for the first changed file."""
        name = f"round-{round:06d}"
        path, sealed = (self.place / f"{name}.{kind}" for kind in ("safetensors", "json"))
        for each in (path, sealed):
            if not each.exists():
                raise RunError(f"{each}: {files.GONE}")
        seal = files.read_seal(sealed)
        if f"checkpoint/{path.name}" not in seal.files or seal.round != round:
            raise RunError(f"{sealed}: not the seal of this checkpoint")
        if files.faults(self.folder, seal.files, [_EXPERIMENT]):
            raise RunError(
                f"{path}: the checkpoint of another run: its settings are not those of {self.folder / _EXPERIMENT}"
            )
        if wrong := files.faults(self.folder, seal.files, (n for n in seal.files if not n.startswith(_RESULTS))):
            raise RunError(wrong[0])
        try:
            state = codec.read(path)
            if state.pop("round") != round:
                raise ValueError("it is of another round")
            dict(state["engine"], **state["seconds"])
        except (MethodError, KeyError, TypeError, ValueError, OSError) as error:
            raise RunError(f"{path}: not a checkpoint ({error})") from None
        return Checkpoint(round, state, seal)

    def _rounds(self) -> list[int]:
        return sorted(reading.files_in(self.place, "safetensors"))

    def _noted(self) -> list[int]:
        """Return [round of the newest checkpoint], as noted in a file after it was written; empty without a note."""
        path = self.folder / NEWEST
        if not path.exists():
            return []
        try:
            round = files.read_json(path)
            if not isinstance(round, int):
                raise RunError(f"{path}: expected the round of the newest checkpoint")
        except RunError:
            if self._rounds():  # each checkpoint has its own seal, so the note is not needed
                return []
            raise
        return [round]
