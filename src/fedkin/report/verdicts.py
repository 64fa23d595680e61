"""What tests said of a run's groups: verdicts, counts, and the tree of tests that the page draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from fedkin.graph import Evidence, Graph, Node
from fedkin.graph.evidence import MEANINGS
from fedkin.report.packing import NOTHING, pack

__all__ = ["NEAR", "Settled", "Told", "alone_in", "drawn", "keep_words", "node_of", "settled"]

# Nodes of a drawn tree, rows of the table of groups, and members that a row names.
_NODES = 63
_ROWS = 12
_NAMED = 16
# The word for groups of several leaves: tests told these apart.
NEAR = "near"
_MEANINGS = MEANINGS | {NEAR: "differ, but by too little to pay for the samples lost apart: one model"}


@dataclass(frozen=True)
class Settled:
    """A group with its verdict. number: on the page, from 0. node: of the tree of tests, whose clients are this group.

    verdict: "same", "shares", "offsets", "alone", or "near": clients that tests tell apart, but hardly.
    placed: members that are in none of the tree's tests, but were placed in the group after them.
    """

    number: int
    verdict: str
    members: tuple[str, ...]
    node: int | None = None
    placed: int = 0


def settled(graph: Graph, named: Mapping[str, int] | None = None) -> list[Settled]:
    """The groups with their verdicts, largest first; empty if the graph has none. named: the page's numbers."""
    if graph.groups is None or "verdict" not in graph.values or graph.values["verdict"].dtype.kind != "U":
        return []
    members: dict[int, list[str]] = {}
    for id, group in (graph.groups if named is None else named).items():
        members.setdefault(group, []).append(id)
    verdict = dict(zip(graph.ids, graph.values["verdict"].tolist(), strict=True))
    found = [_settled(group, ids, verdict[ids[0]], graph.evidence) for group, ids in members.items()]
    return sorted(found, key=lambda one: (-len(one.members), one.number))


def _settled(number: int, members: Sequence[str], verdict: str, tests: Evidence | None) -> Settled:
    if tests is None:
        return Settled(number, verdict, tuple(members))
    founders = [id for id in members if id in tests.leaf]
    leaves = {tests.leaf[id] for id in founders}
    if verdict == "same" and len(leaves) > 1:
        verdict = NEAR
    at = set(leaves)
    while len(at) > 1:
        # A parent has a lower number than its children.
        last = max(at)
        at = at - {last} | {tests.nodes[last].parent or 0}
    node = at.pop() if at else None
    if node is not None and tests.sizes[node] != len(founders):
        node = None
    return Settled(number, verdict, tuple(members), node, len(members) - len(founders))


def alone_in(groups: Iterable[Settled]) -> list[str]:
    """Ids of the clients that are like nobody else."""
    return sorted(id for one in groups if one.verdict == "alone" for id in one.members)


@dataclass(frozen=True)
class Told:
    """What a run's tests found, counted: groups by verdict, clients alone, smallest p inside groups that are "same".

    clients: all of them. placed: those of them that are in no test.
    """

    kinds: Mapping[str, int]
    alone: int = 0
    p: float | None = None
    clients: int = 0
    placed: int = 0

    @classmethod
    def of(cls, groups: Sequence[Settled], tests: Evidence | None) -> Told:
        """Counts of these groups."""
        kinds = Counter(one.verdict for one in groups if one.verdict != "alone")
        nodes = [tests.nodes[one.node] for one in groups if tests and one.node is not None and one.verdict == "same"]
        least = min((p for node in nodes for p in node.p.values()), default=None)
        clients, placed = sum(len(one.members) for one in groups), sum(one.placed for one in groups)
        return cls(kinds, len(alone_in(groups)), least, clients, placed)


def node_of(one: Settled, tests: Evidence | None) -> Node | None:
    """The tests of the whole group; None if its clients were never tested together."""
    node = None if tests is None or one.node is None else tests.nodes[one.node]
    return node if node is not None and node.p else None


def keep_words(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """How many clients keep their own model after the last round, if the method says so (`keep_own`)."""
    count = (rounds[-1].get("figures") or {}).get("keep_own") if rounds else None
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return f"{count} clients keep their own models" if count > 1 else f"{count or 'no'} client keeps its own model"


def drawn(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], keep: str | None
) -> dict[str, Any] | None:
    """The page's data of a graph's verdicts and tests, with clients numbered; None without verdicts.

    keep: words about clients that keep their own models.
    """
    found = settled(graph, named)
    if not found:
        return None
    tests = graph.evidence
    several, alone = [one for one in found if one.verdict != "alone"], alone_in(found)
    rows = [
        {"group": one.number, "verdict": one.verdict, "size": len(one.members), "placed": one.placed,
         "words": _MEANINGS.get(one.verdict, ""), "said": _said(node_of(one, tests)),
         "clients": [number[id] for id in one.members[:_NAMED]]}
        for one in several[:_ROWS]
    ]  # fmt: skip
    return {
        "keep": keep,
        "groups": rows,
        "more": [len(several[_ROWS:]), sum(len(one.members) for one in several[_ROWS:])],
        "alone": [len(alone), [number[id] for id in alone[:_NAMED]], MEANINGS["alone"]],
        "tests": None if tests is None else _tree(tests, found, number),
    }


def _said(node: Node | None) -> str:
    return "" if node is None else node.said() if node.rejected else node.least()


def _tree(tests: Evidence, found: Sequence[Settled], number: Mapping[str, int]) -> dict[str, Any]:
    """At most `_NODES` nodes, those with most clients, each after its parent; and the last one of each client."""
    group = {id: one for one in found for id in one.members}
    whole = {one.node: one for one in found if one.node is not None}
    ends = {leaf: group[id] for id, leaf in tests.leaf.items()}
    only = {leaf: number[id] for id, leaf in tests.leaf.items() if tests.sizes[leaf] == 1}
    kept = _largest(tests, whole)
    place = {node: at for at, node in enumerate(kept)}
    below = [0] * len(tests.nodes)
    for node in range(len(tests.nodes) - 1, 0, -1):
        below[tests.nodes[node].parent or 0] += 1 + below[node]
    nodes = []
    for node in kept:
        one, parent = whole.get(node, ends.get(node)), tests.nodes[node].parent
        left = below[node] if tests.children[node] and tests.children[node][0] not in place else 0
        nodes.append({
            "parent": None if parent is None else place[parent], "size": tests.sizes[node],
            "said": tests.nodes[node].said() if tests.nodes[node].p else "", "cut": bool(tests.children[node]),
            "group": None if one is None else one.number, "verdict": None if one is None else one.verdict,
            "client": only.get(node), "left": left,
        })  # fmt: skip
    return {
        "alpha": tests.alpha, "nodes": nodes, "all": len(tests.nodes),
        "leaf": pack(_last_drawn(tests, place, number), "u2"),
    }  # fmt: skip


def _largest(tests: Evidence, whole: Mapping[int, Settled]) -> list[int]:
    """Numbers of the nodes to draw: from the root, the largest are opened first, those inside one group last."""
    kept = [0] if tests.nodes else []
    todo = [(0 in whole, -tests.sizes[0], 0)] if tests.nodes else []
    while todo:
        inside, _, node = heappop(todo)
        children = tests.children[node]
        if children and len(kept) + len(children) <= _NODES:
            kept += children
            for child in children:
                heappush(todo, (inside or child in whole, -tests.sizes[child], child))
    return sorted(kept)


def _last_drawn(tests: Evidence, place: Mapping[int, int], number: Mapping[str, int]) -> list[int]:
    last = [NOTHING] * len(number)
    for id, leaf in tests.leaf.items():
        node = leaf
        while node not in place:
            node = tests.nodes[node].parent or 0
        last[number[id]] = place[node]
    return last
