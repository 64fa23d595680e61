"""What the tests found: groups, a verdict in words for each, and every test on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.graph._check import Labels
from fedkin.graph.evidence import MEANINGS, Evidence, Node
from fedkin.graph.same.signature import Signature

__all__ = ["Verdicts"]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The groups that `find` found.

    ids [n]; labels [n]: canonical, 0 is the largest group. verdicts: of each group "same", "shares",
    "offsets" or "alone". tree: every node tested, a flat list of plain dicts, the root first: node, parent,
    children (numbers in the list), clients (ids), p (corrected p-value per test), rejected, cut (blocks that
    the cut was made in), verdict and group at a leaf. profiles: one merged signature per group.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, find, sign
    >>> rng = np.random.default_rng(0)
    >>> data = {f"c{i}": rng.normal(size=(80, 6)) + (i % 2) for i in range(8)}
    >>> plan = Plan.of(Spread.of(x) for x in data.values())
    >>> found = find({id: sign(plan, x) for id, x in data.items()})
    >>> found.members(0), found.verdicts
    (('c0', 'c2', 'c4', 'c6'), ('same', 'same'))
    """

    ids: tuple[str, ...]
    labels: Labels
    verdicts: tuple[str, ...]
    tree: tuple[Mapping[str, Any], ...]
    profiles: tuple[Signature, ...]
    alpha: float
    tests: int
    warnings: tuple[str, ...] = ()

    @property
    def groups(self) -> dict[str, int]:
        """{client id: group}."""
        return dict(zip(self.ids, self.labels.tolist(), strict=True))

    def members(self, group: int) -> tuple[str, ...]:
        """Ids of a group, in the order given to `find`."""
        return tuple(self.ids[row] for row in np.flatnonzero(self.labels == group))

    @property
    def by_client(self) -> dict[str, str]:
        """{client id: verdict of its group}."""
        return {id: self.verdicts[label] for id, label in self.groups.items()}

    @cached_property
    def evidence(self) -> Evidence:
        """The tree of tests as a graph records it (`Graph.evidence`)."""
        return Evidence.of(self.tree, _leaves(self.tree), self.alpha)

    def to_json(self) -> dict[str, Any]:
        """All but the profiles, as plain data."""
        groups = [
            {"group": g, "verdict": verdict, "meaning": MEANINGS[verdict], "size": len(self.members(g)),
             "members": list(self.members(g))}
            for g, verdict in enumerate(self.verdicts)
        ]  # fmt: skip
        return {
            "alpha": self.alpha, "tests_per_node": self.tests, "groups": groups, "tree": [dict(n) for n in self.tree],
            "warnings": list(self.warnings),
        }  # fmt: skip

    def lines(self, most: int = 40) -> list[str]:
        """The result in words: groups, then the tree of tests, at most `most` lines of each."""
        count = len(self.verdicts)
        found = [f"{len(self.ids)} clients, {count} group{'s' * (count != 1)} (alpha {self.alpha:g})"]
        for g in range(min(count, most)):
            members = self.members(g)
            some = ", ".join(members[:6]) + (f" and {len(members) - 6} more" if len(members) > 6 else "")
            found.append(f"group {g}: {self.verdicts[g]}, {len(members)}: {some}")
        found += [f"{verdict}: {MEANINGS[verdict]}" for verdict in MEANINGS if verdict in self.verdicts]
        found += [f"warning: {text}" for text in self.warnings]
        depth: dict[int, int] = {}
        for node in self.tree:
            parent = node["parent"]
            depth[node["node"]] = 0 if parent is None else depth[parent] + 1
        for at in self._depth_first()[:most]:
            found.append("  " * min(depth[at], 20) + _line(self.tree[at], self.evidence.nodes[at]))
        if len(self.tree) > most:
            found.append(f"and {len(self.tree) - most} more tests")
        return found

    def _depth_first(self) -> list[int]:
        todo, order = [0] if self.tree else [], []
        while todo:
            order.append(at := todo.pop())
            todo.extend(reversed(self.tree[at]["children"]))
        return order

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _leaves(tree: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """{client id: its last node}, of `Verdicts.tree`."""
    return {id: node["node"] for node in tree if not node["children"] for id in node["clients"]}


def _line(node: Mapping[str, Any], tested: Node) -> str:
    size = len(node["clients"])
    if size == 1:
        return f"{node['clients'][0]}: group {node['group']}"
    ends = "cut in two" if node["children"] else f"group {node['group']}, {node['verdict']}"
    return f"{size} clients: {tested.said()}; {ends}"
