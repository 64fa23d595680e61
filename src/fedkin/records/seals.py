"""Seals: files that list other files with their hashes and rows, so that one that has changed or is gone is found.

A seal is a JSON object: `of` has the format, the versions that wrote it and the files; `seal` is the hash of `of`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedkin._version import __version__
from fedkin.errors import RunError
from fedkin.records.files import Stamp, read_json, stamp_of, write_bytes

__all__ = ["GONE", "RESULT", "SEAL", "Seal", "add_sealed", "faults", "read_seal", "seal_of", "versions", "write_seal"]

# The seal of a folder; that of a checkpoint lies beside the checkpoint.
SEAL = "seal.json"
# Files of a finished run from which its result is read.
RESULT = ("summary.json", "rounds.jsonl", "clients.parquet", "messages.parquet", "federation.json", "outcomes.parquet")
GONE = "it is gone"
_FORMAT = 1


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
    found = {package: importlib.metadata.version(package) for package in packages}
    return {"fedkin": __version__, "python": sys.version.split()[0], **found}


def write_seal(path: Path, files: Mapping[str, Stamp], round: int | None = None) -> None:
    """Write a seal of these files."""
    listed = {
        name: {key: part for key, part in stamp._asdict().items() if part is not None}
        for name, stamp in sorted(files.items())
    }
    body = json.dumps({"format": _FORMAT, "versions": versions(), "round": round, "files": listed})
    write_bytes(path, f'{{"seal": "{stamp_of(body.encode()).blake2b}",\n"of": {body}}}\n'.encode())


def add_sealed(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write these files into a folder that has a seal, and list them in it before they are there."""
    known = seal_of(folder)
    stamps = {name: stamp_of(content) for name, content in contents.items()}
    write_seal(folder / SEAL, {**known.files, **stamps}, known.round)
    for name, content in contents.items():
        write_bytes(folder / name, content)


def read_seal(path: Path) -> Seal:
    """Read a seal; raises RunError if it is not as it was written, or if a later version of fedkin wrote it."""
    try:
        known = read_json(path)
        body: dict[str, Any] = known["of"]
        if body["format"] > _FORMAT:
            raise RunError(f"{path}: written by fedkin {body['versions']['fedkin']}, which is later than this "
                           f"{__version__}: go on with that version")  # fmt: skip
        if known["seal"] != stamp_of(json.dumps(body).encode()).blake2b:
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
    found = (_fault(folder, name, files[name]) for name in wanted)
    return [each for each in found if each is not None]
