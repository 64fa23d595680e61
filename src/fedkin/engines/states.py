"""Where clients' states are between rounds: in memory, as bytes, or on disk above a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.offload import Offload

__all__ = ["BytesStates", "States"]


class States(Mapping[str, dict[str, Any]]):
    """Clients' states by id, in the order in which they were first kept.

    limit_mb: memory for all of them; what exceeds it lies on disk (None: no limit). stay: tensors that never
    move there.
    """

    def __init__(self, limit_mb: float | None = None, stay: Iterable[Tensor] = ()) -> None:
        self._kept: dict[str, Any] = {}
        self._offload = None if limit_mb is None else Offload(int(limit_mb * 2**20), stay)

    def __getitem__(self, id: str) -> dict[str, Any]:
        state: dict[str, Any] = self._kept[id]
        return state

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, id: str, state: Mapping[str, Any]) -> None:
        """Store a client's state until it is next needed."""
        self._kept[id] = state
        if self._offload is not None:
            self._offload.keep(id, state)

    def drop(self, id: str) -> None:
        """Forget a client."""
        self._kept.pop(id, None)
        if self._offload is not None:
            self._offload.drop(id)

    def rest(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Let the memory of these tensors (None: of all) that lie on disk go."""
        if self._offload is not None:
            self._offload.rest(tensors)

    @property
    def on_disk(self) -> int:
        """Bytes that lie on disk."""
        return 0 if self._offload is None else self._offload.on_disk

    def close(self) -> None:
        """Give the folder back."""
        if self._offload is not None:
            self._offload.close()


class BytesStates(States):
    """States that pass through bytes, so that what does not survive that is lost, and a test sees it."""

    def __getitem__(self, id: str) -> dict[str, Any]:
        return codec.decode(self._kept[id])

    def keep(self, id: str, state: Mapping[str, Any]) -> None:
        self._kept[id] = codec.encode(state)
