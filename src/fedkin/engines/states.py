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
        return [*map(_copied, tree)]
    if not isinstance(tree, dict) or (tree and all(isinstance(item, Tensor) for item in tree.values())):
        return tree
    return {name: _copied(item) for name, item in tree.items()}


class BytesStates(UserDict[str, dict[str, Any]]):
    """States that are stored as bytes, so that tests notice data that bytes cannot carry."""

    def __getitem__(self, id: str) -> dict[str, Any]:
        return codec.decode(self.data[id])  # type: ignore[arg-type]

    def __setitem__(self, id: str, state: Mapping[str, Any]) -> None:
        self.data[id] = codec.encode(state)  # type: ignore[assignment]
