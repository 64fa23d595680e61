"""The checkpoints of a run: the newest two, each with a seal of all files from which a run goes on.

`checkpoint/round-N.safetensors` is the state after round N. `checkpoint/round-N.json` is its seal. It is written
before, so a checkpoint without a seal is damaged. `parts/newest.json` is the round of the newest checkpoint. It is
written after, so a checkpoint that is gone is missed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.records import reading
from fedkin.records.files import Stamp, read_json, stamp_of, write_json, write_with
from fedkin.records.seals import GONE, Seal, faults, read_seal, write_seal

__all__ = ["ANEW", "NEWEST", "Checkpoint", "Checkpoints", "say"]

ANEW = "--restart (in Python restart=True) begins this run anew at round 0"
NEWEST = "parts/newest.json"
_EXPERIMENT = "experiment.toml"
# A line for the person who runs this; without a handler of their own it is on standard error.
say = logging.getLogger("fedkin").warning
# What a run goes on without: these files are results of one round each.
_RESULTS = ("graphs/", "features/")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is as it was written: its round, the state, and its seal."""

    round: int
    state: dict[str, Any]
    seal: Seal


class Checkpoints:
    """The checkpoints in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "checkpoint"

    def write(self, round: int, state: Mapping[str, Any], files: Mapping[str, Stamp]) -> None:
        """Write a checkpoint and its seal, which lists `files` too; the checkpoint before it stays, older ones go."""
        name = f"round-{round:06d}"
        older = [number for number in self._rounds() if number < round]
        # Resumed runs have the settings as they were written, which an older version may have done in its own way.
        known = dict(files)
        if (self.folder / _EXPERIMENT).exists():
            known[_EXPERIMENT] = stamp_of(self.folder / _EXPERIMENT)

        def seal(stamp: Stamp) -> None:
            write_seal(self.place / f"{name}.json", known | {f"checkpoint/{name}.safetensors": stamp}, round)

        write_with(self.place / f"{name}.safetensors", lambda file: codec.write(state, file), before=seal)
        write_json(self.folder / NEWEST, round)
        self.keep({round, max(older, default=round)})

    def keep(self, rounds: set[int]) -> None:
        """Remove all checkpoints but those of these rounds."""
        for kind in ("safetensors", "json"):
            for round, path in reading.files_in(self.place, kind).items():
                if round not in rounds:
                    path.unlink()

    def choose(self) -> Checkpoint | None:
        """Return the newest checkpoint that is as it was written; None if none was ever written.

        What is wrong with a newer one is said in one line. Raises RunError if none is left to go on from.
        """
        found, wrong = self.survey()
        if found is None:
            if wrong:
                raise RunError(f"{next(iter(wrong.values()))}; no checkpoint is left to go on from: put the file "
                               f"back as it was, or {ANEW}")  # fmt: skip
            return None
        if wrong:
            say("%s", f"{next(iter(wrong.values()))}; going on from the checkpoint of round {found.round}")
            write_json(self.folder / NEWEST, found.round)
        for lost in faults(self.folder, found.seal.files, (n for n in found.seal.files if n.startswith(_RESULTS))):
            say("%s", f"{lost}; going on without it")
        self.keep({found.round, *(round for round in self._rounds() if round < found.round)})
        return found

    def survey(self, all: bool = False) -> tuple[Checkpoint | None, dict[int, str]]:
        """Return the newest checkpoint that is as it was written, and what is wrong with newer ones by round.

        all: whether older ones are looked at too.
        """
        found, wrong = None, {}
        for round in sorted({*self._rounds(), *self._marked()}, reverse=True):
            try:
                known = self.read(round)
                found = found or known
            except RunError as error:
                wrong[round] = str(error)
            if found is not None and not all:
                break
        return found, wrong

    def read(self, round: int) -> Checkpoint:
        """Read the checkpoint of this round; raises RunError for the first file that is not as it was written."""
        name = f"round-{round:06d}"
        path, sealed = (self.place / f"{name}.{kind}" for kind in ("safetensors", "json"))
        for each in (path, sealed):
            if not each.exists():
                raise RunError(f"{each}: {GONE}")
        seal = read_seal(sealed)
        if f"checkpoint/{path.name}" not in seal.files or seal.round != round:
            raise RunError(f"{sealed}: not the seal of this checkpoint")
        if faults(self.folder, seal.files, [_EXPERIMENT]):
            raise RunError(
                f"{path}: the checkpoint of another run: its settings are not those of {self.folder / _EXPERIMENT}"
            )
        if wrong := faults(self.folder, seal.files, (n for n in seal.files if not n.startswith(_RESULTS))):
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

    def _marked(self) -> list[int]:
        """Return the round of the newest checkpoint as noted after it was written, in a list; empty without a note."""
        path = self.folder / NEWEST
        if not path.exists():
            return []
        try:
            round = read_json(path)
            if not isinstance(round, int):
                raise RunError(f"{path}: expected the round of the newest checkpoint")
        except RunError:
            if self._rounds():  # which vouch for themselves
                return []
            raise
        return [round]
