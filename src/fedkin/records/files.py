"""Atomic writing of files: a file is written under a temporary name of its own, and then renamed."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from hashlib import blake2b, file_digest
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedkin.errors import RunError
from fedkin.folders import made, synced
from fedkin.untrusted import json_of, said, text_in

__all__ = [
    "JSON_BYTES", "SETTINGS_BYTES", "Stamp", "json_bytes", "leftovers", "read_json", "stamp_of", "write_bytes",
    "write_json", "write_with",
]  # fmt: skip

# Bytes of a file of settings, and of one of JSON, both far beyond any real one.
SETTINGS_BYTES, JSON_BYTES = 1 << 20, 1 << 29
_ASIDE = re.compile(r".+\.[0-9]+-[0-9a-f]{8}\.part")


class Stamp(NamedTuple):
    """What a file is recognised by: its size, the hash of its content, and the number of its rows if it has rows."""

    bytes: int
    blake2b: str
    rows: int | None = None


def write_with(
    path: Path, write: Callable[[BinaryIO], object], *, before: Callable[[Stamp], None] | None = None, sync: bool = True
) -> Stamp:
    """Let `write` fill a temporary file, then rename it to `path`; both are on the disk when this returns.

    before: called right before the renaming, when the content is on the disk. sync: if False, the caller sees to it
    that the name gets on the disk (`synced`). Raises RunError.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        made(path.parent)
        try:
            with aside.open("x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                stamp = _stamp(file)
            if before is not None:
                before(stamp)
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        if sync:
            synced(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None
    return stamp


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> Stamp:
    """Write these bytes atomically."""
    return write_with(path, lambda file: file.write(data), sync=sync)


def json_bytes(value: Any) -> bytes:
    """Return what `write_json` writes."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> Stamp:
    """Write this value atomically as indented JSON."""
    return write_bytes(path, json_bytes(value))


def stamp_of(source: Path | bytes) -> Stamp:
    """Return the stamp of a file, or of one with this content; raises OSError."""
    if isinstance(source, bytes):
        return Stamp(len(source), _hash(source).hexdigest())
    with source.open("rb") as file:
        return _stamp(file)


def _stamp(file: BufferedIOBase) -> Stamp:
    digest = file_digest(file, _hash).hexdigest()
    return Stamp(file.tell(), digest)


def _hash(data: bytes = b"") -> Any:
    return blake2b(data, digest_size=16)


def leftovers(folder: Path) -> list[Path]:
    """Return the temporary files that a killed process left in this folder and the folders in it that are no runs."""
    inside = (path for path in folder.iterdir() if path.is_dir() and not (path / "experiment.toml").exists())
    found = (path for place in (folder, *inside) for path in place.glob("*.part"))
    return sorted(path for path in found if _ASIDE.fullmatch(path.name))


def read_json(path: Path) -> Any:
    """Read the JSON value in a file; raises RunError naming the file."""
    try:
        return json_of(text_in(path, JSON_BYTES))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({said(error)})") from None
