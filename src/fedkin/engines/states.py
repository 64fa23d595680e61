"""Copies of states, for flows that may change them, and as bytes."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedkin import codec


def copy_for_flow(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state that a flow may change; parameters are not copied, as no flow changes them in place."""
    return {name: _copied(item) for name, item in state.items()}


def _copied(tree: Any) -> Any:
    if isinstance(tree, list):
        return [*map(_copied, tree)] if _has(dict | list, set(map(type, tree))) else tree.copy()
    if not isinstance(tree, dict):
        return tree
    # Check the set of types: a server may keep a number for each of 100,000 clients, and copies it in every round.
    kinds = set(map(type, tree.values()))
    if _has(dict | list, kinds):
        return {name: _copied(item) for name, item in tree.items()}
    return tree if kinds and all(issubclass(kind, Tensor) for kind in kinds) else tree.copy()


def _has(wanted: Any, kinds: set[type]) -> bool:
    return any(issubclass(kind, wanted) for kind in kinds)


class BytesStates(UserDict[str, dict[str, Any]]):
    """States that are stored as bytes, so that tests notice data that bytes cannot carry."""

    def __getitem__(self, id: str) -> dict[str, Any]:
        return codec.decode(self.data[id])  # type: ignore[arg-type]

    def __setitem__(self, id: str, state: Mapping[str, Any]) -> None:
        self.data[id] = codec.encode(state)  # type: ignore[assignment]
