"""Files and folders of runs: written atomically, checked by their hashes (seals), locked by one process."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b, file_digest
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedkin._version import __version__
from fedkin.errors import RunError, first_few
from fedkin.folders import LOCKS, fsync_folder, locked, make_durable
from fedkin.untrusted import cell, error_text, escaped, json_of, text_in, toml_of

# Logs a line for the user; without a logging handler, it goes to standard error.
say = logging.getLogger("fedkin").warning
# The largest sizes in bytes of a settings file and of a JSON file, far above any real one.
SETTINGS_BYTES, JSON_BYTES = 1 << 20, 1 << 29
_hash = partial(blake2b, digest_size=16)
_PARTIAL = re.compile(r".+\.[0-9]+-[0-9a-f]{8}\.part")


class Stamp(NamedTuple):
    """The identity of a file: its size, the hash of its content, and the number of its rows if it has rows."""

    bytes: int
    blake2b: str
    rows: int | None = None


def write_with(
    path: Path, write: Callable[[BinaryIO], object], *, before: Callable[[Stamp], None] | None = None, sync: bool = True
) -> Stamp:
    """Let `write` fill a temporary file, then rename it to `path`; both are on the disk when this returns.

    before: called right before the renaming, when the content is on the disk. sync: if False, the caller must make
    sure that the name is on the disk (`fsync_folder`). Raises RunError.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        make_durable(path.parent)
        try:
            with partial.open("x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                stamp = _stamp(file)
            if before is not None:
                before(stamp)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if sync:
            fsync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None
    return stamp


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> Stamp:
    """Write these bytes atomically."""
    return write_with(path, lambda file: file.write(data), sync=sync)


def json_bytes(value: Any) -> bytes:
    """Return the bytes that `write_json` writes."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> Stamp:
    """Write this value atomically as indented JSON."""
    return write_bytes(path, json_bytes(value))


def stamp_of(source: Path | bytes) -> Stamp:
    """Return the stamp of a file, or of a file with this content; raises OSError."""
    if isinstance(source, bytes):
        return Stamp(len(source), _hash(source).hexdigest())
    with source.open("rb") as file:
        return _stamp(file)


def _stamp(file: BufferedIOBase) -> Stamp:
    digest = file_digest(file, _hash).hexdigest()
    return Stamp(file.tell(), digest)


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files that a killed process left in this folder, or in its subfolders that are no runs."""
    inside = (path for path in folder.iterdir() if path.is_dir() and not (path / "experiment.toml").exists())
    paths = (path for parent in (folder, *inside) for path in parent.glob("*.part"))
    return sorted(path for path in paths if _PARTIAL.fullmatch(path.name))


def read_json(path: Path) -> Any:
    """Read the JSON value in a file; raises RunError naming the file."""
    try:
        return json_of(text_in(path, JSON_BYTES))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({error_text(error)})") from None


# The seal of a folder; the seal of a checkpoint is next to the checkpoint.
SEAL = "seal.json"
# The files of a finished run that its result is read from.
RESULT = ("summary.json", "rounds.jsonl", "clients.parquet", "messages.parquet", "federation.json", "outcomes.parquet")
GONE = "it is gone"


@dataclass(frozen=True)
class Seal:
    """A seal that was read: stamps of files by path in the folder, the versions that wrote them, and the round."""

    files: Mapping[str, Stamp]
    versions: Mapping[str, str]
    round: int | None = None


@cache
def versions() -> dict[str, str]:
    """Return the versions of fedkin, Python and the packages that influence the bits of a result."""
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
    """Write these files into a folder with a seal; the seal lists them before they are written."""
    seal = seal_of(folder)
    stamps = {name: stamp_of(content) for name, content in contents.items()}
    write_seal(folder / SEAL, {**seal.files, **stamps}, seal.round)
    for name, content in contents.items():
        write_bytes(folder / name, content)


def read_seal(path: Path) -> Seal:
    """Read a seal; raises RunError if it was changed."""
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
    """Read the seal of a folder; an empty seal if there is none. Raises RunError."""
    path = folder / SEAL
    if not path.exists():
        return Seal({}, {})
    try:
        return read_seal(path)
    except RunError as error:
        raise RunError(f"{error}; put it back as it was, or remove it: files are then not checked against it") from None


def _fault(folder: Path, name: str, stamp: Stamp) -> str | None:
    """Return the problem of a file that has this stamp in its seal, with the file's path; None if it is unchanged."""
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
    """Return the problems of these files of a seal (None: all); names that are not in the seal are ignored."""
    wanted = files if names is None else [name for name in names if name in files]
    texts = (_fault(folder, name, files[name]) for name in wanted)
    return [each for each in texts if each is not None]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a CSV line per row, with nested values in columns `a.b`; a list is replaced by its length.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    from fedkin.settings import flat  # imports pydantic, which takes long

    lines = [
        {cell(name): len(value) if isinstance(value, list) else cell(value) for name, value in flat(row).items()}
        for row in rows
    ]
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


# -- the folder of a run, a comparison or a tuning ---------------------------------------------------------------------

_EXPERIMENT, _PLAN, _ROOT = "experiment.toml", "plan.json", "data-root.json"
# What a run, a comparison or a tuning has beside its experiment, if some of its files were lost.
_BESIDE = (SEAL, _PLAN, _ROOT, "summary.json", "federation.json", "parts", "checkpoint")
# Written by each participant of a federation over a network.
_STATUS = "status.json"


@contextmanager
def claimed(
    folder: Path, text: str, *, plan: Mapping[str, Any] | None = None, data_root: str | None = None
) -> Iterator[None]:
    """Lock `folder` for this experiment: a new folder, or one that was begun with the same experiment.

    text: the experiment as TOML. plan: the content of plan.json for a new folder. data_root: the content of
    data-root.json, also for a resumed folder. `experiment.toml` is written last: a folder without it counts as not
    begun. Raises RunError.
    """
    if not is_unused(folder) and not begun(folder):
        if is_state(folder):
            raise RunError(f"{describe_state_folder(folder)}; name another folder")
        raise RunError(f"{folder} exists and is not a run of fedkin: name an empty or new folder")
    with locked(folder):
        if begun(folder):
            check_claim(folder, text)
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


def has_records(folder: Path) -> bool:
    """Whether a run, a comparison or a tuning left records in this folder; a user's experiment file alone is none."""
    return begun(folder) and any((folder / name).exists() for name in _BESIDE)


def is_state(folder: Path) -> bool:
    """Whether this is a client's state folder of a federation over a network."""
    return (folder / _STATUS).is_file() and not begun(folder)


def describe_state_folder(folder: Path) -> str:
    """Explain what a client's state folder is, and which commands read it."""
    return (
        f"{folder}: the state folder of a client (fedkin net join) without records of a run: the server has them; "
        f"fedkin net status {folder} says how it went, and fedkin export {folder} writes its model"
    )


def is_unused(folder: Path) -> bool:
    """Whether a folder is new or empty, except for files of a process that was killed before the run had begun."""
    if not folder.is_dir():
        return not folder.exists()
    left = {*leftovers(folder), *(folder / name for name in (*LOCKS, _PLAN, _ROOT, SEAL))}
    return all(path in left for path in folder.iterdir())


def check_claim(folder: Path, text: str) -> None:
    """Check that `folder` was begun with this experiment; raises RunError."""
    kept = folder / _EXPERIMENT
    try:
        stored_text = text_in(kept, SETTINGS_BYTES)
        unlike = "" if stored_text == text else _unlike(stored_text, text)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{kept}: not readable as the experiment of a run ({error_text(error)}); put the file back as it was, or "
            "name another folder"
        ) from None
    if unlike:
        raise RunError(f"{kept} differs from the experiment to resume: it must be the same in every setting. {unlike}")
    if wrong := faults(folder, seal_of(folder).files, (_EXPERIMENT, _PLAN)):
        raise RunError(f"{wrong[0]}; put the file back as it was, or name another folder")


def _unlike(stored_text: str, here: str) -> str:
    """Return the first settings that differ between two experiments, as a sentence."""
    from fedkin.settings import differing

    differences = (
        escaped(f"{name}: {one} there, {other} here", 200)
        for name, one, other in differing(toml_of(stored_text), toml_of(here))
    )
    return first_few(differences, 3, "; ")


_HEAVY = ("models", "checkpoint")


def conclude(folder: Path, sealed: Mapping[str, Stamp], summary: Mapping[str, Any]) -> None:
    """Write the seal of all files, then the summary, which marks the run as finished. sealed: stamps of files."""
    text = json_bytes(summary)
    files = {name: stamp for name, stamp in sealed.items() if not name.startswith("parts/")}
    newest = sorted((folder / "checkpoint").glob("*.safetensors"))[-1:]
    for path in (folder / "experiment.toml", *newest):
        if path.exists():
            files.setdefault(path.relative_to(folder).as_posix(), stamp_of(path))
    write_seal(folder / SEAL, files | {"summary.json": stamp_of(text)}, summary["rounds"])
    write_bytes(folder / "summary.json", text)
    remove_resume_files(folder)


def remove_resume_files(folder: Path) -> None:
    """Remove from a finished run the files that only a resume needs, and files left by killed processes."""
    shutil.rmtree(folder / "parts", ignore_errors=True)
    states = sorted((folder / "checkpoint").glob("*.safetensors"))
    with suppress(OSError):
        for left in (*states[:-1], *(folder / "checkpoint").glob("*.json"), *leftovers(folder)):
            left.unlink(missing_ok=True)


def drop_models(folder: Path) -> None:
    """Remove the models and the last state of a finished run; its figures stay. Other folders stay unchanged."""
    names = [name for name in _HEAVY if (folder / name).exists()]
    if not names or not (folder / "summary.json").exists():
        return
    seal = seal_of(folder)
    light = {name: stamp for name, stamp in seal.files.items() if not name.startswith(tuple(f"{h}/" for h in _HEAVY))}
    # First change the seal: if the process is killed here, the next call removes the remaining files.
    if len(light) < len(seal.files):
        write_seal(folder / SEAL, light, seal.round)
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
