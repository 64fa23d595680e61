"""The folder of a run, a comparison or a tuning: begun, held, finished, tidied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedkin.errors import RunError
from fedkin.folders import LOCKS, held
from fedkin.records.files import (
    SEAL,
    SETTINGS_BYTES,
    Stamp,
    faults,
    flat,
    json_bytes,
    leftovers,
    seal_of,
    stamp_of,
    write_bytes,
    write_json,
    write_seal,
)
from fedkin.untrusted import said, shown, text_in, toml_of

__all__ = ["begun", "check_claim", "claimed", "conclude", "free", "is_state", "lighten", "tidy", "told_state", "untidy"]


_EXPERIMENT, _PLAN, _ROOT = "experiment.toml", "plan.json", "data-root.json"
# What each participant of a federation over a network keeps about it.
_STATUS = "status.json"


@contextmanager
def claimed(
    folder: Path, text: str, resume: bool, *,
    plan: Mapping[str, Any] | None = None, data_root: str | None = None,
) -> Iterator[None]:  # fmt: skip
    """Hold `folder` against other processes, as the folder of this experiment: a new one, or one that is it already.

    text: the experiment as TOML. plan: what plan.json of a new folder has. data_root: what data-root.json has, also in
    a folder that is gone on with. `experiment.toml` is written last: a folder without it was not begun, and is begun
    again. Raises RunError.
    """
    if not free(folder) and not begun(folder):
        if is_state(folder):
            raise RunError(f"{told_state(folder)}; name another folder (--state, --out)")
        raise RunError(f"{folder} exists and is not a run of fedkin: name an empty or new folder")
    with held(folder):
        if begun(folder):
            check_claim(folder, text, resume)
        for left in leftovers(folder):
            with suppress(OSError):
                left.unlink()
        if data_root is not None:
            write_json(folder / _ROOT, data_root)
        if not begun(folder):
            sealed = {_EXPERIMENT: stamp_of(text.encode())}
            if plan is not None:
                sealed[_PLAN] = write_json(folder / _PLAN, plan)
            write_seal(folder / SEAL, sealed)
            write_bytes(folder / _EXPERIMENT, text.encode())
        yield


def begun(folder: Path) -> bool:
    """Whether a run, a comparison or a tuning was begun in this folder."""
    return (folder / _EXPERIMENT).exists()


def is_state(folder: Path) -> bool:
    """Whether this is the folder in which a client keeps its state of a federation over a network."""
    return (folder / _STATUS).is_file() and not begun(folder)


def told_state(folder: Path) -> str:
    """Say what such a folder is, and what reads it."""
    return (
        f"{folder}: the state folder of a client (fedkin net join) without records of a run: the server has them; "
        f"fedkin net status {folder} says how it went"
    )


def free(folder: Path) -> bool:
    """Whether a folder is new or empty, but for what a process leaves that was killed before it had begun."""
    if not folder.is_dir():
        return not folder.exists()
    left = {*leftovers(folder), *(folder / name for name in (*LOCKS, _PLAN, _ROOT, SEAL))}
    return all(path in left for path in folder.iterdir())


def check_claim(folder: Path, text: str, resume: bool) -> None:
    """Check that `folder` was begun with this experiment; raises RunError."""
    kept = folder / _EXPERIMENT
    if not resume:
        raise RunError(f"{folder} holds a run already: --resume {folder} goes on with it, --out names another")
    try:
        text_there = text_in(kept, SETTINGS_BYTES)
        unlike = "" if text_there == text else _unlike(text_there, text)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{kept}: not readable as the experiment of a run ({said(error)}); put the file back as it was, or "
            "name another folder"
        ) from None
    if unlike:
        raise RunError(f"{kept} differs from the experiment to resume: it must be the same in every setting. {unlike}")
    if wrong := faults(folder, seal_of(folder).files, (_EXPERIMENT, _PLAN)):
        raise RunError(f"{wrong[0]}; put the file back as it was, or name another folder")


def _unlike(text_there: str, here: str) -> str:
    """Return the first settings in which two experiments differ, as a sentence."""
    one, other = flat(toml_of(text_there)), flat(toml_of(here))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    differences = [
        shown(f"{name}: {one.get(name, 'not set')} there, {other.get(name, 'not set')} here", 200) for name in names[:3]
    ]
    return "; ".join(differences) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


_HEAVY = ("models", "checkpoint")


def conclude(folder: Path, sealed: Mapping[str, Stamp], summary: Mapping[str, Any]) -> None:
    """Write the seal of all files, then the summary, by which the run is finished. sealed: files with their stamps."""
    text = json_bytes(summary)
    files = {name: stamp for name, stamp in sealed.items() if not name.startswith("parts/")}
    newest = sorted((folder / "checkpoint").glob("*.safetensors"))[-1:]
    for path in (folder / "experiment.toml", *newest):
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
    names = [name for name in _HEAVY if (folder / name).exists()]
    if not names or not (folder / "summary.json").exists():
        return
    seal = seal_of(folder)
    light = {name: stamp for name, stamp in seal.files.items() if not name.startswith(tuple(f"{h}/" for h in _HEAVY))}
    # First the seal: a process that is killed here leaves files that nobody misses, and the next call removes.
    if len(light) < len(seal.files):
        write_seal(folder / SEAL, light, seal.round)
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)


def untidy(folder: Path) -> bool:
    """Whether a finished run has something for `tidy`."""
    left = ("parts", *LOCKS, *(f"checkpoint/{path.name}" for path in folder.glob("checkpoint/*.json")))
    return any((folder / name).exists() for name in left) or bool(leftovers(folder))
