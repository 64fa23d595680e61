"""A client's states on its own disk: one file for each round in which it took part, the last three of them.

Each file begins with a hash of the rest: a state in which a bit has changed is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.folders import made_private, write_private

__all__ = ["ClientCheckpoints"]

_KEPT = 3
_HASH = 32  # bytes


class ClientCheckpoints:
    """The states of one client in one run, in this folder.

    A server that writes a checkpoint after every round goes on at most two rounds earlier, so that three are enough.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made_private(folder, "the client's states")

    def rounds(self) -> list[int]:
        """Return the rounds of which there is a state, ascending."""
        names = [path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors")]
        return sorted(int(name) for name in names if name.isdigit())

    def put(self, round: int, tree: Mapping[str, Any]) -> None:
        """Write the state of a round; it is on the disk before this returns."""
        path, data = self._path(round), codec.encode(tree)
        try:
            write_private(path, lambda file: file.write(_hash(data) + data))
        except OSError as error:
            raise RunError(f"{path}: the client's state cannot be written ({error})") from None
        self.drop(self.rounds()[:-_KEPT])

    def get(self, round: int) -> dict[str, Any]:
        """Return the state of this round; raises RunError for a file that is damaged."""
        path = self._path(round)
        try:
            data = path.read_bytes()
            if _hash(data[_HASH:]) != data[:_HASH]:
                raise MethodError("its hash does not fit: it was changed or is damaged")
            return codec.decode(data[_HASH:])
        except (OSError, MethodError) as error:
            raise RunError(f"{path}: not readable ({error}); remove it to take part with an older state") from None

    def drop(self, rounds: list[int]) -> None:
        """Forget the states of these rounds."""
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH).digest()
