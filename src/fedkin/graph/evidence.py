"""The tests that a graph's groups rest on: the tree of tests, where each client ends in it, and both in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedkin.errors import GraphError
from fedkin.untrusted import json_of

__all__ = ["Evidence", "Node"]

# Verdicts of groups.
MEANINGS = {
    "same": "cannot be told apart: one model serves all",
    "shares": "differ in how often each class occurs, not in what a class looks like: one model, with each "
    "client's own class shares",
    "offsets": "each shifted by itself, with the same relation of inputs to targets: one model, with what "
    "removes a client's shift (own normalisation)",
    "alone": "like nobody else: trained alone",
}
TESTS = {
    "x": "inputs", "xy": "how inputs go with targets", "y": "class shares", "offset": "shift of all classes",
    "concept": "shift of some classes",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """Clients that were tested together. parent: number of the node that they were cut from, None at the root.

    p: {test: corrected p-value}; empty for one client. rejected: the tests with p below alpha. cut: the blocks that
    its clients were cut in two by. verdict: of a leaf; a group of several leaves may have another one.

    >>> Node(None, {"x": 0.2, "y": 3e-12}, ("y",)).said(), Node(0, {"x": 0.2}).said()
    ('differ in class shares (p 3e-12)', 'cannot be told apart (smallest p 0.2, inputs)')
    """

    parent: int | None
    p: Mapping[str, float]
    rejected: tuple[str, ...] = ()
    cut: str | None = None
    verdict: str | None = None

    def least(self) -> str:
        """The smallest p-value and its test, in words.

        >>> Node(None, {"x": 0.2, "y": 1.0}).least(), Node(None, {"x": 1.0, "y": 1.0}).least()
        ('smallest p 0.2, inputs', 'smallest p 1')
        """
        test = min(self.p, key=lambda name: self.p[name])
        return f"smallest {p_text(self.p[test])}" + (f", {_name(test)}" if self.p[test] < 1 else "")

    def said(self) -> str:
        """What the tests say, in words."""
        if not self.p:
            return "not tested"
        if not self.rejected:
            return f"cannot be told apart ({self.least()})"
        return "differ in " + ", ".join(f"{_name(test)} ({p_text(self.p[test])})" for test in self.rejected)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The tree of tests behind groups. nodes: the root first, each after its parent. leaf: {client id: last node}.

    Clients that joined a group later have no leaf. alpha: the level of each node's tests.

    >>> root = Node(None, {"x": 1e-9}, ("x",), "x")
    >>> found = Evidence((root, Node(0, {"x": 0.4}, verdict="same"), Node(0, {}, verdict="alone")),
    ...                  {"ann": 1, "bob": 1, "cat": 2}, alpha=0.001)
    >>> found.children[0], found.sizes
    ((1, 2), (3, 2, 1))
    """

    nodes: tuple[Node, ...]
    leaf: Mapping[str, int]
    alpha: float

    def __post_init__(self) -> None:
        inner = {node.parent for node in self.nodes}
        for number, node in enumerate(self.nodes):
            _check(number, node)
        for id, number in self.leaf.items():
            if not _whole(number) or not 0 <= number < len(self.nodes) or number in inner:
                raise GraphError(
                    f"evidence: client {id!r} ends at node {number!r}, which is no leaf of the tree of tests"
                )
        if not _share(self.alpha):
            raise GraphError(f"evidence: alpha is {self.alpha!r}; expected a number from 0 to 1")

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each node, in the order of their numbers."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            if node.parent is not None:
                found[node.parent].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of clients of each node."""
        found = [0] * len(self.nodes)
        for number in self.leaf.values():
            found[number] += 1
        for number in range(len(self.nodes) - 1, 0, -1):
            found[self.nodes[number].parent or 0] += found[number]
        return tuple(found)

    @classmethod
    def of(cls, tree: Iterable[Mapping[str, Any]], leaf: Mapping[str, int], alpha: float) -> Evidence:
        """From plain nodes, such as those of `Verdicts.tree`; raises GraphError for nodes that make no tree."""
        try:
            nodes = tuple(
                Node(
                    node["parent"], {str(test): float(f"{value:.3g}") for test, value in dict(node["p"]).items()},
                    tuple(map(str, node["rejected"])), node["cut"], node["verdict"],
                ) for node in tree
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GraphError(f"evidence: a node of the tree of tests is damaged ({error})") from None
        return cls(nodes, dict(leaf), alpha)

    def to_bytes(self, ids: Sequence[str]) -> bytes:
        """As JSON, with the leaves in the order of `ids` (-1: none)."""
        leaf = [self.leaf.get(id, -1) for id in ids]
        whole = {"alpha": self.alpha, "nodes": [asdict(node) for node in self.nodes], "leaf": leaf}
        return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, ids: Sequence[str]) -> Evidence:
        """What `to_bytes` wrote; raises GraphError for other bytes."""
        try:
            whole = json_of(data.decode())
            leaf = dict(zip(ids, whole["leaf"], strict=True))
            return cls.of(whole["nodes"], {id: at for id, at in leaf.items() if at != -1}, whole["alpha"])
        except GraphError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise GraphError(f"evidence: not readable as a tree of tests ({error})") from None


def p_text(p: float) -> str:
    """A p-value in short.

    >>> p_text(0.0), p_text(4.2e-9), p_text(0.104)
    ('p < 1e-300', 'p 4e-9', 'p 0.1')
    """
    if p < 1e-300:
        return "p < 1e-300"
    return f"p {p:.2g}" if p >= 0.001 else f"p {p:.0e}".replace("e-0", "e-")


def _name(test: str) -> str:
    return TESTS.get(test, test)


def _check(number: int, node: Node) -> None:
    """Raise GraphError for a node that does not hang on one before it, or whose values are none of tests."""
    where = f"evidence: node {number} of the tree of tests"
    if number == 0 and node.parent is not None:
        raise GraphError(f"{where}: the first node is the root and has no parent, got {node.parent!r}")
    if number and not (_whole(node.parent) and 0 <= (node.parent or 0) < number):
        raise GraphError(f"{where}: expected a parent from 0 to {number - 1}, got {node.parent!r}")
    if any(not _share(p) for p in node.p.values()):
        raise GraphError(f"{where}: expected p-values from 0 to 1, got {dict(node.p)}")
    if set(node.rejected) - set(node.p):
        raise GraphError(
            f"{where}: rejects {', '.join(node.rejected)}, but has p-values of {', '.join(node.p) or 'none'}"
        )
    if any(text is not None and not isinstance(text, str) for text in (node.cut, node.verdict)):
        raise GraphError(f"{where}: expected texts for cut and verdict, got {node.cut!r} and {node.verdict!r}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1
