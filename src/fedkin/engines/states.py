"""Storage of clients' states between rounds: in memory, or as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec

__all__ = ["BytesStates", "States", "apart"]


class States(Mapping[str, dict[str, Any]]):
    """The clients' states by id, in the order in which they were first stored."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

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

    def drop(self, id: str) -> None:
        """Forget a client."""
        self._kept.pop(id, None)


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
