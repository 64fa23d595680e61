"""The end of a run: the seal of all its files, its summary, and what is removed then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedkin.folders import LOCKS
from fedkin.records.files import Stamp, json_bytes, leftovers, stamp_of, write_bytes
from fedkin.records.seals import SEAL, seal_of, write_seal

__all__ = ["conclude", "lighten", "tidy", "untidy"]

_HEAVY = ("models", "checkpoint")


def conclude(folder: Path, sealed: Mapping[str, Stamp], summary: Mapping[str, Any]) -> None:
    """Write the seal of all files, then the summary, by which the run is finished. sealed: files with their stamps."""
    text = json_bytes(summary)
    files = {name: stamp for name, stamp in sealed.items() if not name.startswith("parts/")}
    newest = sorted((folder / "checkpoint").glob("*.safetensors"))[-1:]
    for path in (folder / "experiment.toml", folder / "mode.json", *newest):
        if path.exists():
            files.setdefault(path.relative_to(folder).as_posix(), stamp_of(path))
    write_seal(folder / SEAL, files | {"summary.json": stamp_of(text)}, summary["rounds"])
    write_bytes(folder / "summary.json", text)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove from a finished run what only going on needs, and what killed processes left."""
    shutil.rmtree(folder / "parts", ignore_errors=True)
    states = sorted((folder / "checkpoint").glob("*.safetensors"))
    with suppress(OSError):
        for left in (*states[:-1], *(folder / "checkpoint").glob("*.json"), *leftovers(folder)):
            left.unlink(missing_ok=True)


def lighten(folder: Path) -> None:
    """Remove the models and the last state of a finished run; its figures stay. Other folders stay as they are."""
    there = [name for name in _HEAVY if (folder / name).exists()]
    if not there or not (folder / "summary.json").exists():
        return
    seal = seal_of(folder)
    light = {name: stamp for name, stamp in seal.files.items() if not name.startswith(tuple(f"{h}/" for h in _HEAVY))}
    # First the seal: a process that is killed here leaves files that nobody misses, and the next call removes.
    if len(light) < len(seal.files):
        write_seal(folder / SEAL, light, seal.round)
    for name in there:
        shutil.rmtree(folder / name, ignore_errors=True)


def untidy(folder: Path) -> bool:
    """Whether a finished run has something for `tidy`."""
    left = ("parts", *LOCKS, *(f"checkpoint/{path.name}" for path in folder.glob("checkpoint/*.json")))
    return any((folder / name).exists() for name in left) or bool(leftovers(folder))
