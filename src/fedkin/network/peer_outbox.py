"""What a peer has offered in its last rounds, on its own disk: a peer that was killed offers it again.

When all peers are killed at once, some have finished a round that others repeat, and these need its messages once more.
The files are flushed to the system, so that they survive a kill; after a loss of power an exchange may be missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.folders import made_private

__all__ = ["PeerOutbox"]


class PeerOutbox:
    """The offers of one peer: a file for each exchange. folder: where they are; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            made_private(folder, "what this peer sends")

    def keep(self, round: int, turn: int, offers: Mapping[str, bytes]) -> None:
        """Write the offers of an exchange by receiver, before they are made; equal ones are written once."""
        if self.folder is None or not offers:
            return
        places = {data: str(place) for place, data in enumerate(dict.fromkeys(offers.values()))}
        parts = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for data, name in places.items()}
        tree = {"to": {id: places[data] for id, data in offers.items()}, "parts": parts}
        path = self.folder / f"{round}-{turn}.offers"
        try:
            path.with_suffix(".new").write_bytes(codec.encode(tree))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            raise RunError(f"{path}: what this peer sends cannot be written ({error})") from None

    def read(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Yield (round, turn, receiver, offer) of all that is kept; a damaged file counts as lost."""
        for path, round, turn in self._files():
            with suppress(OSError, MethodError, KeyError, AttributeError):
                tree = codec.decode(path.read_bytes())
                for id, name in tree["to"].items():
                    yield round, turn, id, tree["parts"][name].numpy().tobytes()

    def life(self, anew: bool = False) -> str:
        """Return what names this run of the peer, also after a restart of its process; another one if begun anew."""
        made = secrets.token_hex(8)
        if self.folder is None:
            return made
        path = self.folder / "life"
        try:
            if anew or not path.exists():
                path.with_suffix(".new").write_text(made)
                path.with_suffix(".new").replace(path)
            return path.read_text()
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error})") from None

    def drop(self, but: Container[int]) -> None:
        """Forget all rounds but these."""
        for path, round, _ in list(self._files()):
            if round not in but:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, int, int]]:
        found = []
        for path in self.folder.glob("*-*.offers") if self.folder is not None else ():
            round, _, turn = path.stem.partition("-")
            if round.isdigit() and turn.isdigit():
                found.append((int(round), int(turn), path))
        yield from ((path, round, turn) for round, turn, path in sorted(found))
