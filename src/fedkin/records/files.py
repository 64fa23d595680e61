"""Atomic writing of files: a file is written under another name and then renamed."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from fedkin.errors import ConfigError, RunError
from fedkin.records.tables import flat

__all__ = ["claim", "read_json", "write_bytes", "write_json", "write_with"]


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`."""
    aside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write these bytes atomically."""
    write_with(path, lambda file: file.write(data))


def write_json(path: Path, value: Any) -> None:
    """Write this value atomically as indented JSON."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read the JSON value in a file; raises RunError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({error})") from None


def claim(folder: Path, text: str, resume: bool, complete: Callable[[str], str] = str) -> None:
    """Write `experiment.toml` into a new folder, or check that the folder has this experiment; raises RunError.

    complete: a function that completes the text of an older version, which lacks newer settings, with their defaults.
    """
    kept = folder / "experiment.toml"
    if kept.exists():
        if not resume:
            raise RunError(f"{folder} holds a run already: --resume {folder} goes on with it, --out names another")
        try:
            there = kept.read_text(encoding="utf-8")
            whole = there if there == text else complete(there)
            unlike = None if whole == text else _unlike(whole, text)
        except (OSError, ValueError, ConfigError) as error:
            raise RunError(
                f"{kept}: not readable as the experiment of a run ({error}); put the file back as it was, or name "
                "another folder"
            ) from None
        if unlike is not None:
            raise RunError(
                f"{kept} differs from the experiment to resume: it must be the same in every setting. {unlike}"
            )
        return
    if folder.is_dir() and any(path.suffix != ".part" for path in folder.iterdir() if path.name != "plan.json"):
        raise RunError(f"{folder} exists and is not a run of fedkin: name an empty or new folder")
    write_bytes(kept, text.encode())


def _unlike(there: str, here: str) -> str:
    """Return the first settings in which two experiments differ, as a sentence."""
    one, other = flat(tomllib.loads(there)), flat(tomllib.loads(here))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    told = [f"{name}: {one.get(name, 'not set')} there, {other.get(name, 'not set')} here" for name in names[:3]]
    return "; ".join(told) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
