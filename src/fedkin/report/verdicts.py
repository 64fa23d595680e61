"""What tests said of a run's groups: verdicts, words for the report and the terminal, and the tree of tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkin.graph import Evidence, Graph, load_graph
from fedkin.graph.record import MEANINGS, Node, p_text
from fedkin.records import reading
from fedkin.report.drawing import NOTHING, pack
from fedkin.report.following import Follower
from fedkin.report.units import many

__all__ = ["Settled", "Told", "choice_words", "drawn", "in_words", "lines", "settled", "terminal"]

# Nodes of a drawn tree, rows of the table of groups, and members that a row names.
_NODES = 63
_ROWS = 12
_NAMED = 16
# Lines of the terminal about one run's groups.
_LINES = 4
# The word for groups of several leaves: tests told these apart.
_NEAR = "near"
_MEANINGS = MEANINGS | {_NEAR: "differ, but by too little to pay for the samples lost apart: one model"}
# What a sentence says of the clients inside a group.
_INSIDE = {
    "same": "no test tells the clients apart",
    _NEAR: "the clients differ by too little to pay for separate models",
    "shares": "the clients differ in how often each class occurs, not in what a class looks like",
    "offsets": "each client is shifted by itself",
}


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
    settled_groups = [_settled(group, ids, verdict[ids[0]], graph.evidence) for group, ids in members.items()]
    return sorted(settled_groups, key=lambda one: (-len(one.members), one.number))


def _settled(number: int, members: Sequence[str], verdict: str, tests: Evidence | None) -> Settled:
    if tests is None:
        return Settled(number, verdict, tuple(members))
    founders = [id for id in members if id in tests.leaf]
    leaves = {tests.leaf[id] for id in founders}
    if verdict == "same" and len(leaves) > 1:
        verdict = _NEAR
    at = set(leaves)
    while len(at) > 1:
        # A parent has a lower number than its children.
        last = max(at)
        at = at - {last} | {tests.nodes[last].parent or 0}
    node = at.pop() if at else None
    if node is not None and tests.sizes[node] != len(founders):
        node = None
    return Settled(number, verdict, tuple(members), node, len(members) - len(founders))


def _alone(groups: Iterable[Settled]) -> list[str]:
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
        return cls(kinds, len(_alone(groups)), least, clients, placed)


def _node(one: Settled, tests: Evidence | None) -> Node | None:
    """The tests of the whole group; None if its clients were never tested together."""
    node = None if tests is None or one.node is None else tests.nodes[one.node]
    return node if node is not None and node.p else None


_LEVELS = {0: "one model for all", 1: "one model for each branch", 2: "one model for each group"}


def choice_words(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """What a method chose for the clients (figures `level`, `pull_weights`, `pull_bias` of the last round); or None.

    >>> choice_words([{"figures": {"level": 0, "pull_weights": 1.0, "pull_bias": 1.0}}])
    'chosen: one model for all, a head for each client (pull 1)'
    >>> choice_words([{"figures": {"level": 2, "pull_weights": None, "pull_bias": None}}])
    'chosen: one model for each group'
    """
    figures = (rounds[-1].get("figures") or {}) if rounds else {}
    if "pull_weights" not in figures:
        return None
    level = figures.get("level")
    models = _LEVELS.get(level) if isinstance(level, int) else None
    if models is None:
        return "on trial: no level is chosen yet"
    weights, bias = figures["pull_weights"], figures.get("pull_bias")
    if weights is None and bias is None:
        return f"chosen: {models}"
    if weights is None:
        return f"chosen: {models}, a bias for each client (pull {bias:g})"
    return f"chosen: {models}, a head for each client (pull {weights:g})"


def in_words(seeds: Sequence[Told], against: str = "") -> str:
    """What was found with nothing told, by a run or by one of each seed. against: words about planted groups.

    >>> in_words([Told({"same": 4}, p=0.1)], ", equal to the planted ones")[:60]
    '4 groups with nothing told, equal to the planted ones: no te'
    >>> in_words([Told({"same": 1}, alone=1)])
    '1 group and 1 client alone with nothing told: no test tells the clients apart'
    >>> in_words([Told({"same": 1}, clients=9000, placed=4000)])[53:]
    'apart (5,000 of 9,000 clients were tested; the others were placed in a group after that)'
    """
    counts = [sum(one.kinds.values()) for one in seeds]
    low, high = min(counts), max(counts)
    if not high:
        return f"no groups found with nothing told{against}: every client is like nobody else{_tests_seen(seeds)}"
    most = max(one.alone for one in seeds)
    count = many(high, "group") if low == high else f"{low} to {high} groups"
    alone = f" and {'up to ' if len(seeds) > 1 else ''}{many(most, 'client')} alone" if most else ""
    return f"{count}{alone} with nothing told{against}: {_inside(seeds)}{_tests_seen(seeds)}"


def _inside(seeds: Sequence[Told]) -> str:
    kinds = sum((Counter(one.kinds) for one in seeds), Counter[str]())
    known = [one.p for one in seeds if one.p is not None]
    words = {kind: _INSIDE.get(kind, f"the verdict is {kind}") for kind in kinds}
    if "same" in words and known:
        words["same"] += f" (smallest {p_text(min(known))})"
    if len(kinds) == 1:
        return next(iter(words.values()))
    return ", ".join(f"in {kinds[kind] if len(seeds) == 1 else 'some'} {said}" for kind, said in words.items())


def _tests_seen(seeds: Sequence[Told]) -> str:
    """How many clients the tests saw, in brackets, where these are not all."""
    if not any(one.placed for one in seeds):
        return ""
    one = seeds[0]
    count = f"{one.clients - one.placed:,} of {one.clients:,}" if len(seeds) == 1 else "not all"
    return f" ({count} clients were tested; the others were placed in a group after that)"


def terminal(label: str, runs: Mapping[int, tuple[Path, Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Two to six lines about a method's groups, with several seeds one line for each; none without verdicts.

    runs: {seed: (folder, lines of rounds.jsonl)}.
    """
    text = []
    for seed, (folder, rounds) in runs.items():
        groups, tests = _last(folder)
        if groups and len(runs) == 1:
            text += lines(label, groups, tests, choice_words(rounds))
        elif groups:
            text.append(f"{label}, seed {seed}: {in_words([Told.of(groups, tests)])}")
    return text if len(text) <= _LINES + 2 else [*text[: _LINES + 1], f"and {len(text) - _LINES - 1} more seeds"]


def _last(folder: Path) -> tuple[list[Settled], Evidence | None]:
    """The groups of a run's last graph, with the report's numbers; empty if it records no verdicts."""
    paths = reading.files_in(folder / "graphs", "npz")
    if not paths or not settled(last := load_graph(paths[max(paths)])):
        return [], None
    follower, named = Follower(), dict[str, int]()
    for round in sorted(paths):
        groups = load_graph(paths[round]).groups
        named = follower.name(groups) if groups is not None else named
    return settled(last, named), last.evidence


def lines(label: str, groups: Sequence[Settled], tests: Evidence | None, keep: str | None) -> list[str]:
    """Two to six lines about the groups of one run. keep: words about clients that keep their own models.

    >>> lines("kin", [Settled(0, "same", ("ann", "bob"))], None, None)[1:]
    ['  group 1, same: 2 clients']
    """
    several, alone = [one for one in groups if one.verdict != "alone"], _alone(groups)
    room = _LINES - bool(alone)
    shown = several if len(several) <= room else several[: room - 1]
    # The lines below have the p-values, and who is alone.
    told = Told.of(groups, None)
    text = [f"{label}: {in_words([replace(told, alone=0 if several else told.alone)])}"]
    for one in shown:
        node = _node(one, tests)
        line = f"  group {one.number + 1}, {one.verdict}: {many(len(one.members), 'client')}"
        text.append(line if node is None else f"{line}, {node.least()}")
    if left := several[len(shown) :]:
        text.append(f"  and {len(left)} more groups with {sum(len(one.members) for one in left)} clients")
    if alone:
        text.append(f"  alone: {', '.join(alone[:5])}{f' and {len(alone) - 5} more' if len(alone) > 5 else ''}")
    return [*text, f"  {keep}"] if keep is not None else text


# -- the page ---------------------------------------------------------------------------------------------------------


def drawn(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], keep: str | None
) -> dict[str, Any] | None:
    """The page's data of a graph's verdicts and tests, with clients numbered; None without verdicts.

    keep: words about clients that keep their own models.
    """
    groups = settled(graph, named)
    if not groups:
        return None
    tests = graph.evidence
    several, alone = [one for one in groups if one.verdict != "alone"], _alone(groups)
    rows = [
        {"group": one.number, "verdict": one.verdict, "size": len(one.members), "placed": one.placed,
         "words": _MEANINGS.get(one.verdict, ""), "said": _said(_node(one, tests)),
         "clients": [number[id] for id in one.members[:_NAMED]]}
        for one in several[:_ROWS]
    ]  # fmt: skip
    return {
        "words": in_words([Told.of(groups, tests)]),
        "keep": keep,
        "groups": rows,
        "more": [len(several[_ROWS:]), sum(len(one.members) for one in several[_ROWS:])],
        "alone": [len(alone), [number[id] for id in alone[:_NAMED]], MEANINGS["alone"]],
        "tests": None if tests is None else _tree(tests, groups, number),
    }


def _said(node: Node | None) -> str:
    return "" if node is None else node.said() if node.rejected else node.least()


def _tree(tests: Evidence, settled_groups: Sequence[Settled], number: Mapping[str, int]) -> dict[str, Any]:
    """At most `_NODES` nodes, those with most clients, each after its parent; and the last one of each client."""
    group = {id: one for one in settled_groups for id in one.members}
    whole = {one.node: one for one in settled_groups if one.node is not None}
    ends = {leaf: group[id] for id, leaf in tests.leaf.items()}
    only = {leaf: number[id] for id, leaf in tests.leaf.items() if tests.sizes[leaf] == 1}
    # A parent has more clients than a child, and a lower number.
    kept = sorted(sorted(range(len(tests.nodes)), key=lambda node: (-tests.sizes[node], node))[:_NODES])
    place = {node: at for at, node in enumerate(kept)}
    # The place of each node, or of the nearest node above it that is drawn.
    shown: list[int] = []
    for node, one in enumerate(tests.nodes):
        shown.append(place[node] if node in place else shown[one.parent or 0])
    hidden = Counter(shown[node] for node in range(len(tests.nodes)) if node not in place)
    nodes = []
    for node in kept:
        settled_in, tested = whole.get(node, ends.get(node)), tests.nodes[node]
        nodes.append({
            "parent": None if tested.parent is None else place[tested.parent], "size": tests.sizes[node],
            "said": tested.said() if tested.p else "", "cut": bool(tests.children[node]),
            "group": None if settled_in is None else settled_in.number,
            "verdict": None if settled_in is None else settled_in.verdict,
            "client": only.get(node), "left": hidden[place[node]],
        })  # fmt: skip
    last = [NOTHING] * len(number)
    for id, leaf in tests.leaf.items():
        last[number[id]] = shown[leaf]
    return {"alpha": tests.alpha, "nodes": nodes, "all": len(tests.nodes), "leaf": pack(last, "u2")}
