"""Storage of clients' states between rounds: in memory, as bytes, or on disk above a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.offload import Offload

__all__ = ["BytesStates", "States", "apart"]


class States(Mapping[str, dict[str, Any]]):
    """The clients' states by id, in the order in which they were first stored.

    limit_mb: memory limit for all states; states above it are on disk (None: no limit). stay: tensors that never move
    to disk.
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
        """Store a client's state."""
        self._kept[id] = state
        if self._offload is not None:
            self._offload.keep(id, state)

    def drop(self, id: str) -> None:
        """Forget a client."""
        self._kept.pop(id, None)
        if self._offload is not None:
            self._offload.drop(id)

    def rest(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Release the memory of these tensors (None: all) that are on disk."""
        if self._offload is not None:
            self._offload.rest(tensors)

    @property
    def on_disk(self) -> int:
        """The number of bytes on disk."""
        return 0 if self._offload is None else self._offload.on_disk

    def close(self) -> None:
        """Remove the folder."""
        if self._offload is not None:
            self._offload.close()


def apart(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state that a flow may change; parameters are not copied, as no flow changes them in place."""
    return {name: _copied(item) for name, item in state.items()}


def _copied(tree: Any) -> Any:
    if not isinstance(tree, dict | list):
        return tree
    # By kinds of items: a server may keep a number for each of 100,000 clients, and this is done in every round.
    kinds = set(map(type, tree.values() if isinstance(tree, dict) else tree))
    if any(issubclass(kind, dict | list) for kind in kinds):
        return {n: _copied(item) for n, item in tree.items()} if isinstance(tree, dict) else [*map(_copied, tree)]
    if isinstance(tree, dict) and kinds and all(issubclass(kind, Tensor) for kind in kinds):
        return tree
    return tree.copy()


class BytesStates(States):
    """States that pass through bytes; data that bytes cannot carry are lost, so that tests notice it."""

    def __getitem__(self, id: str) -> dict[str, Any]:
        return codec.decode(self._kept[id])

    def keep(self, id: str, state: Mapping[str, Any]) -> None:
        self._kept[id] = codec.encode(state)
