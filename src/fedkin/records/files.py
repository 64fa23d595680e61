"""Files of a run: written atomically, recognised by their hashes (seals), and read with limits."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, file_digest
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedkin._version import __version__
from fedkin.errors import RunError
from fedkin.folders import made, synced
from fedkin.untrusted import cell, json_of, said, text_in

__all__ = [
    "GONE", "JSON_BYTES", "RESULT", "SEAL", "SETTINGS_BYTES", "Seal", "Stamp", "add_sealed", "csv_text", "faults",
    "flat", "json_bytes", "leftovers", "read_json", "read_seal", "say", "seal_of", "stamp_of", "versions",
    "write_bytes", "write_json", "write_seal", "write_with",
]  # fmt: skip


# A line for the person who runs this; without a handler of their own it is on standard error.
say = logging.getLogger("fedkin").warning
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
    paths = (path for place in (folder, *inside) for path in place.glob("*.part"))
    return sorted(path for path in paths if _ASIDE.fullmatch(path.name))


def read_json(path: Path) -> Any:
    """Read the JSON value in a file; raises RunError naming the file."""
    try:
        return json_of(text_in(path, JSON_BYTES))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({said(error)})") from None


# The seal of a folder; that of a checkpoint lies beside the checkpoint.
SEAL = "seal.json"
# Files of a finished run from which its result is read.
RESULT = ("summary.json", "rounds.jsonl", "clients.parquet", "messages.parquet", "federation.json", "outcomes.parquet")
GONE = "it is gone"


@dataclass(frozen=True)
class Seal:
    """A seal as it was read: files by their paths in the folder, the versions that wrote them, and the round."""

    files: Mapping[str, Stamp]
    versions: Mapping[str, str]
    round: int | None = None


@cache
def versions() -> dict[str, str]:
    """Return the versions of fedkin, Python and the packages on which the bits of a result depend."""
    packages = ("torch", "numpy", "scipy", "scikit-learn", "scikit-network", "rustworkx")
    numbers = {package: importlib.metadata.version(package) for package in packages}
    return {"fedkin": __version__, "python": sys.version.split()[0], **numbers}


def write_seal(path: Path, files: Mapping[str, Stamp], round: int | None = None) -> None:
    """Write a seal of these files."""
    listed = {
        name: {key: part for key, part in stamp._asdict().items() if part is not None}
        for name, stamp in sorted(files.items())
    }
    body = json.dumps({"format": 1, "versions": versions(), "round": round, "files": listed})
    write_bytes(path, f'{{"seal": "{stamp_of(body.encode()).blake2b}",\n"of": {body}}}\n'.encode())


def add_sealed(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write these files into a folder that has a seal, and list them in it before they are there."""
    seal = seal_of(folder)
    stamps = {name: stamp_of(content) for name, content in contents.items()}
    write_seal(folder / SEAL, {**seal.files, **stamps}, seal.round)
    for name, content in contents.items():
        write_bytes(folder / name, content)


def read_seal(path: Path) -> Seal:
    """Read a seal; raises RunError if it is not as it was written."""
    try:
        content = read_json(path)
        body: dict[str, Any] = content["of"]
        if content["seal"] != stamp_of(json.dumps(body).encode()).blake2b:
            raise ValueError("its hash differs")
        files = {name: Stamp(**stamp) for name, stamp in body["files"].items()}
        return Seal(files, body["versions"], body["round"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: not as it was written ({error})") from None


def seal_of(folder: Path) -> Seal:
    """Read the seal of a folder; an empty one if it has none. Raises RunError."""
    path = folder / SEAL
    if not path.exists():
        return Seal({}, {})
    try:
        return read_seal(path)
    except RunError as error:
        raise RunError(f"{error}; put it back as it was, or remove it: files are then not checked against it") from None


def _fault(folder: Path, name: str, stamp: Stamp) -> str | None:
    """Return what is wrong with a file that has this stamp in its seal, naming it; None if nothing is."""
    path = folder / name
    try:
        now = stamp_of(path)
    except FileNotFoundError:
        return f"{path}: {GONE}"
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror or error})"
    if now.bytes != stamp.bytes:
        return f"{path}: not as it was written: {now.bytes} bytes, written were {stamp.bytes}"
    return None if now.blake2b == stamp.blake2b else f"{path}: not as it was written: its hash differs"


def faults(folder: Path, files: Mapping[str, Stamp], names: Iterable[str] | None = None) -> list[str]:
    """Return what is wrong with these files of a seal (None: all); names that the seal lacks are passed over."""
    wanted = files if names is None else [name for name in names if name in files]
    texts = (_fault(folder, name, files[name]) for name in wanted)
    return [each for each in texts if each is not None]


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name every value of a nested table `a.b`, at any depth; None values are left out.

    >>> flat({"round": 3, "bytes": {"up": 8, "down": 9}, "groups": {"ari": None}})
    {'round': 3, 'bytes.up': 8, 'bytes.down': 9}
    """
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            values[prefix + name] = value
    return values


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a CSV line per row, with nested values in columns `a.b`; a list is replaced by its length.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    lines = [
        {cell(name): len(value) if isinstance(value, list) else cell(value) for name, value in flat(row).items()}
        for row in rows
    ]
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()
