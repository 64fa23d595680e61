"""Where data sets come from, and where their files must lie: the table origins.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

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
    files: tuple[File, ...] = ()
    needs: tuple[str, ...] = ()


ORIGINS: Mapping[str, Origin] = TypeAdapter(dict[str, Origin]).validate_python(
    tomllib.loads(Path(__file__).with_name("origins.toml").read_text(encoding="utf-8"))
)


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
