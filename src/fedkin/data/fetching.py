"""Where data sets come from (the table origins.toml), where their files must lie, and how they are fetched."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from pydantic import TypeAdapter

from fedkin.errors import DataError
from fedkin.settings import choose
from fedkin.untrusted import error_text

# Part of the error message for a missing data set.
ROOTED = "; --data-root DIR (in Python data_root=) says where data sets lie"


class File(NamedTuple):
    """A file to fetch: its address, its path below the data root, its checksum, and the members to extract.

    kind: "md5" or "sha256". holds: (pattern for the names of an archive's members, number of matching members).
    """

    url: str
    to: str
    kind: str
    digest: str
    holds: tuple[str, int] | None = None


class Origin(NamedTuple):
    """A data set: its folder below the data root, a hint for users, the files to fetch, and data sets that it needs."""

    folder: str
    where: str
    files: tuple[File, ...] = ()
    needs: tuple[str, ...] = ()


ORIGINS: Mapping[str, Origin] = TypeAdapter(dict[str, Origin]).validate_python(
    tomllib.loads(Path(__file__).with_name("origins.toml").read_text(encoding="utf-8"))
)


def missing(path: Path) -> str:
    """Error text for a missing file or folder of a data set: where data sets must lie, and where to get this one.

    >>> missing(Path("data/MNIST/raw/train-images-idx3-ubyte")).partition("lie; ")[2]
    '`fedkin data fetch mnist` gets it: four idx.gz files, as torchvision lays them out, in DIR/MNIST/raw'
    """
    for name, origin in ORIGINS.items():
        if f"/{origin.folder}/" in f"/{path.as_posix()}/":
            how = f"`fedkin data fetch {name}` gets it: " if origin.files else "get "
            return f"{ROOTED}; {how}{origin.where}, in DIR/{origin.folder}"
    return ROOTED


# -- fetching: downloads can be resumed, and no file is used before its checksum is right ---------------------------

_CHUNK = 1 << 20
_LARGEST = 4 << 30  # bytes; no file in the table is larger
_WAIT = 30.0  # seconds without a byte
_GONE = 416  # "Range Not Satisfiable"


def fetch(name: str, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Download the files of a data set below `root`, and check their checksums; files that exist are kept.

    An interrupted download is resumed. say: called with a line of text for each file. Raises ConfigError for an unknown
    name, and DataError if the publisher allows no download by programs, without a network, or for a wrong checksum.
    """
    origin = choose(ORIGINS, name, "NAME")
    if not origin.files:
        at = root / origin.folder
        raise DataError(f"{name}: cannot be fetched by a program: get {origin.where}, and put it in {at}")
    for other in origin.needs:
        fetch(other, root, say)
    for file in origin.files:
        path, folder = root / file.to, root / origin.folder
        if file.holds is not None and _unpacked(folder, *file.holds):
            say(f"{folder}: its {file.holds[1]} files are there; what they hold was not checked")
            continue
        if not (path.is_file() and _digest(path, file.kind) == file.digest):
            _download(file, path, say)
        if file.holds is None:
            say(f"{path}: is there, and its checksum is right")
        else:
            _unpack(path, folder, *file.holds)
            path.unlink()
            say(f"{folder}: is there, and its checksum was right")


def _unpacked(folder: Path, pattern: str, count: int) -> bool:
    """Whether all files of an archive were unpacked: a file gets its final name only when it is complete."""
    held = [path for path in folder.iterdir() if fnmatch(path.name, pattern)] if folder.is_dir() else []
    return len(held) >= count and all(path.stat().st_size for path in held)


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _download(file: File, path: Path, say: Callable[[str], None]) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _download_rest(file.url, part, say)
    except (OSError, http.client.HTTPException) as error:
        how = f"the same command continues where it stopped; or fetch it elsewhere and put it at {path}"
        raise DataError(f"{file.url}: cannot be fetched ({error_text(error)}); {how}") from None
    digest = _digest(part, file.kind)
    if digest != file.digest:
        part.unlink()
        why = "it was changed or damaged on the way, and is not kept; try again"
        raise DataError(f"{file.url}: its {file.kind} is {digest}, expected {file.digest}: {why}")
    part.replace(path)


def _download_rest(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Download what `part` still lacks of the file at `url`."""
    have = part.stat().st_size if part.exists() else 0
    try:
        headers = {"User-Agent": "fedkin", **({"Range": f"bytes={have}-"} if have else {})}
        request = urllib.request.Request(url, headers=headers)
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_WAIT)
    except urllib.error.HTTPError as error:
        if error.code != _GONE or not have:
            raise
        # The file is complete, or `part` is of another file: the checksum will tell.
        return
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        mode, begins = "ab", "continues, "
    else:
        mode, begins, have = "wb", "", 0
    length = int(answer.headers.get("Content-Length") or 0)
    say(f"{url}: {begins}{length:,} bytes" if length else url)
    end = have + length
    with answer, part.open(mode) as file:
        while piece := answer.read(_CHUNK):
            have += len(piece)
            if have > _LARGEST:
                raise OSError(f"more than {_LARGEST >> 30} GiB")
            file.write(piece)
    if have < end:
        raise OSError(f"the connection was cut after {have:,} of {end:,} bytes")


def _unpack(archive: Path, folder: Path, pattern: str, count: int) -> None:
    """Extract the members whose file names match the pattern into the folder, without their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    names = set[str]()
    with ExitStack() as stack:
        members: Iterable[tuple[str, IO[bytes]]]
        if archive.suffix == ".zip":
            zipped = stack.enter_context(zipfile.ZipFile(archive))
            members = ((one.filename, zipped.open(one)) for one in zipped.infolist() if not one.is_dir())
        else:
            packed = stack.enter_context(tarfile.open(archive))
            members = ((one.name, file) for one in packed if one.isfile() and (file := packed.extractfile(one)))
        for name, member in members:
            last = PurePosixPath(name).name
            if fnmatch(last, pattern):
                part = folder / f"{last}.part"
                with part.open("wb") as file:
                    shutil.copyfileobj(member, file, _CHUNK)
                part.replace(folder / last)
                names.add(last)
    if len(names) != count:
        raise DataError(f"{archive}: {len(names)} files {pattern} in it, expected {count}")
