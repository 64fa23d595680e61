"""Where data sets come from, and where their files must lie: the table origins.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["ORIGINS", "ROOTED", "File", "Origin", "missing"]

# What an error says of a data set that is not there.
ROOTED = "; --data-root DIR (in Python data_root=) says where data sets lie"


class File(NamedTuple):
    """A file to fetch: its address, its place below the data root, its checksum, and what to take out of it.

    kind: "md5" or "sha256". holds: (pattern of the names of an archive's members, how many there are).
    """

    url: str
    to: str
    kind: str
    digest: str
    holds: tuple[str, int] | None = None


class Origin(NamedTuple):
    """A data set: its folder below the data root, what a person is told, the files to fetch, and what else it needs."""

    folder: str
    where: str
    files: tuple[File, ...]
    needs: tuple[str, ...]


def _origin(table: Mapping[str, object]) -> Origin:
    return Origin(
        str(table["folder"]), str(table["where"]), tuple(_file(each) for each in _list(table.get("file"))),
        tuple(map(str, _list(table.get("needs")))),
    )  # fmt: skip


def _file(table: object) -> File:
    assert isinstance(table, Mapping)
    (kind,) = {"md5", "sha256"} & set(table)
    holds = _list(table.get("holds"))
    return File(table["url"], table["to"], kind, table[kind], (str(holds[0]), int(str(holds[1]))) if holds else None)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


ORIGINS: Mapping[str, Origin] = {
    name: _origin(table)
    for name, table in tomllib.loads(Path(__file__).with_name("origins.toml").read_text(encoding="utf-8")).items()
}


def missing(path: Path) -> str:
    """What an error says of a missing file or folder of a data set: where data sets lie, and where to get this one.

    >>> missing(Path("data/MNIST/raw/train-images-idx3-ubyte")).partition("lie; ")[2]
    '`fedkin data fetch mnist` gets it: four idx.gz files, as torchvision lays them out, in DIR/MNIST/raw'
    """
    for name, origin in ORIGINS.items():
        if f"/{origin.folder}/" in f"/{path.as_posix()}/":
            how = f"`fedkin data fetch {name}` gets it: " if origin.files else "get "
            return f"{ROOTED}; {how}{origin.where}, in DIR/{origin.folder}"
    return ROOTED
