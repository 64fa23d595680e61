"""Data sets fetched from where their publishers have them: resumable, and never used before their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import json
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO

from fedkin.data.origins import ORIGINS, File
from fedkin.errors import DataError
from fedkin.settings import choose
from fedkin.untrusted import said

__all__ = ["fetch"]

_CHUNK = 1 << 20
_LARGEST = 4 << 30  # bytes; what sends more is not what the table names
_WAIT = 30.0  # seconds without a byte
_GONE = 416  # "Range Not Satisfiable"


def fetch(name: str, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Put a data set's files below `root`, each once its checksum is right; files that are there are kept.

    A download that was cut goes on where it ended. say: hears a line for each file. Raises ConfigError for an unknown
    name, and DataError for a data set that its publisher gives to people only, for no network, and for a wrong
    checksum.
    """
    origin = choose(ORIGINS, name, "NAME")
    if not origin.files:
        at = root / origin.folder
        raise DataError(f"{name}: cannot be fetched by a program: get {origin.where}, and put it in {at}")
    for other in origin.needs:
        fetch(other, root, say)
    for file in origin.files:
        place, folder = root / file.to, root / origin.folder
        if file.holds is not None and (there := _there(folder, file)):
            say(f"{folder}: {there}")
            continue
        if not (place.is_file() and _digest(place, file.kind) == file.digest):
            _download(file, place, say)
        if file.holds is not None:
            sizes = _unpack(place, folder, file.holds)
            _marker(folder, file).write_text(json.dumps({"digest": file.digest, "sizes": sizes}), encoding="utf-8")
            place.unlink()
        say(f"{folder if file.holds else place}: is there, and its checksum is right")


def _marker(folder: Path, file: File) -> Path:
    """Where it is noted which files were unpacked from an archive whose checksum was right."""
    return folder / f".{PurePosixPath(file.to).name}.json"


def _there(folder: Path, file: File) -> str:
    """Say why an archive need not be fetched; "" if it must be."""
    marker = _marker(folder, file)
    if marker.is_file():
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            told = json.loads(marker.read_bytes())
            whole = all((folder / name).stat().st_size == size for name, size in told["sizes"].items())
            if whole and told["digest"] == file.digest:
                return "is there, from an archive whose checksum was right"
        return ""
    pattern, count = file.holds or ("", 0)
    held = [path.stat().st_size for path in folder.iterdir() if fnmatch(path.name, pattern)] if folder.is_dir() else []
    return "is there, put by somebody: its checksum is not known" if len(held) == count and all(held) else ""


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _download(file: File, place: Path, say: Callable[[str], None]) -> None:
    part = place.with_name(f"{place.name}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _received(file.url, part, say)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{file.url}: cannot be fetched ({said(error)}); the same command goes on where it stopped; or fetch it on "
            f"a machine with a network and put it at {place}"
        ) from None
    found = _digest(part, file.kind)
    if found != file.digest:
        part.unlink()
        raise DataError(
            f"{file.url}: its {file.kind} is {found}, expected {file.digest}: it was changed or damaged on the "
            "way, and is not kept; try again"
        )
    part.replace(place)


def _received(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Append what `part` lacks of the file at this address."""
    have = part.stat().st_size if part.exists() else 0
    with ExitStack() as stack:
        try:
            answer = stack.enter_context(_asked(url, have))
        except urllib.error.HTTPError as error:
            if error.code != _GONE or not have:
                raise
            # All is there already, or this is another file: the checksum says which.
            return
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        length = answer.headers.get("Content-Length")
        say(f"{url}: {'goes on, ' if goes_on else ''}{int(length):,} bytes" if length else url)
        have = have if goes_on else 0
        end = have + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as file:
            while piece := answer.read(_CHUNK):
                have += len(piece)
                if have > _LARGEST:
                    raise OSError(f"more than {_LARGEST >> 30} GiB")
                file.write(piece)
        if end is not None and have < end:
            raise OSError(f"the connection was cut after {have:,} of {end:,} bytes")


def _asked(url: str, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "fedkin", **({"Range": f"bytes={have}-"} if have else {})}
    answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_WAIT)
    assert isinstance(answer, http.client.HTTPResponse)
    return answer


def _unpack(archive: Path, folder: Path, holds: tuple[str, int]) -> dict[str, int]:
    """Write the members that the pattern names into the folder, by their last names; returns their sizes."""
    pattern, count = holds
    folder.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    with _members(archive) as members:
        for name, member in members:
            last = PurePosixPath(name).name
            if fnmatch(last, pattern):
                aside = folder / f"{last}.part"
                with aside.open("wb") as file:
                    while piece := member.read(_CHUNK):
                        file.write(piece)
                sizes[last] = aside.stat().st_size
                aside.replace(folder / last)
    if len(sizes) != count:
        raise DataError(f"{archive}: {len(sizes)} files {pattern} in it, expected {count}")
    return sizes


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The regular files of a zip or tar archive, by their names."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            yield ((info.filename, zipped.open(info)) for info in zipped.infolist() if not info.is_dir())
        return
    with tarfile.open(archive) as packed:
        yield ((info.name, found) for info in packed if info.isfile() and (found := packed.extractfile(info)))
