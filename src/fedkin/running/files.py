"""Files that are either whole or not there: written aside, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from fedkin.errors import RunError

__all__ = ["claim", "read_json", "write_bytes", "write_json", "write_with"]


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one step."""
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
    """Put these bytes in place in one step."""
    write_with(path, lambda file: file.write(data))


def write_json(path: Path, value: Any) -> None:
    """Put this value in place as indented JSON."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON value in a file; raises RunError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({error})") from None


def claim(folder: Path, text: str, resume: bool) -> None:
    """Write `experiment.toml` into a new folder, or check that the folder holds this very text; raises RunError."""
    kept = folder / "experiment.toml"
    if kept.exists():
        if not resume:
            raise RunError(f"{folder} holds a run already: --resume {folder} goes on with it, --out names another")
        if kept.read_text(encoding="utf-8") != text:
            raise RunError(f"{kept} differs from the experiment to resume: it must be the same in every setting")
        return
    if folder.is_dir() and any(path.suffix != ".part" for path in folder.iterdir() if path.name != "plan.json"):
        raise RunError(f"{folder} exists and is not a run of fedkin: name an empty or new folder")
    write_bytes(kept, text.encode())
