"""Groups of clients with the verdicts of the tests behind them: in words, and as the page's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from fedkin.graph import Evidence, Graph
from fedkin.graph.record import MEANINGS, SHARING, Node, p_text
from fedkin.records.run import Result
from fedkin.report.choice import KinChoice
from fedkin.report.units import plural

# Largest numbers of nodes of a drawn tree, rows of the table of groups, and members named in a row.
_NODES, _ROWS, _NAMED = 63, 12, 16
# The verdict for groups of several leaves of the tree, which tests told apart.
_NEAR = "near"
_MEANINGS = MEANINGS | {_NEAR: "differ, but by too little to pay for the samples lost apart: one model"}
# What a sentence says about the clients inside a group.
_INSIDE = {
    "same": "no difference is significant",
    _NEAR: "clients differ too little for separate models to be better",
    "shares": "clients differ, but not clearly in what a class looks like",
    "offsets": "each client's inputs have a shift of their own",
}


@dataclass(frozen=True)
class JudgedGroup:
    """A group with its verdict. number: on the page, from 0. node: the node in the tree of tests with these clients.

    verdict: "same", "shares", "offsets", "alone", or "near": clients that tests tell apart, but hardly.
    placed: number of members that took part in no test, and were placed in the group afterwards. tested: the tests of
    the complete group; None if its clients were never tested together.
    """

    number: int
    verdict: str
    members: tuple[str, ...]
    node: int | None = None
    placed: int = 0
    tested: Node | None = None


def judged_groups(graph: Graph, named: Mapping[str, int] | None = None) -> list[JudgedGroup]:
    """The groups with their verdicts, largest first; empty if the graph has no verdicts. named: the page's numbers."""
    if graph.groups is None or "verdict" not in graph.values or graph.values["verdict"].dtype.kind != "U":
        return []
    members: dict[int, list[str]] = {}
    for id, group in (graph.groups if named is None else named).items():
        members.setdefault(group, []).append(id)
    verdict = dict(zip(graph.ids, graph.values["verdict"].tolist(), strict=True))
    groups = [_judged_group(group, ids, verdict[ids[0]], graph.evidence) for group, ids in members.items()]
    return sorted(groups, key=lambda group: (-len(group.members), group.number))


def _judged_group(number: int, members: Sequence[str], verdict: str, tests: Evidence | None) -> JudgedGroup:
    if tests is None:
        return JudgedGroup(number, verdict, tuple(members))
    founders = [id for id in members if id in tests.leaf]
    leaves = {tests.leaf[id] for id in founders}
    if verdict == "same" and len(leaves) > 1:
        verdict = _NEAR
    node = _common_node(leaves, tests) if leaves else None
    if node is not None and tests.sizes[node] != len(founders):
        node = None
    tested = tests.nodes[node] if node is not None and tests.nodes[node].p else None
    return JudgedGroup(number, verdict, tuple(members), node, len(members) - len(founders), tested)


def _common_node(leaves: AbstractSet[int], tests: Evidence) -> int:
    """The lowest node above all these leaves."""
    nodes = set(leaves)
    while len(nodes) > 1:
        # A parent has a lower number than its children.
        last = max(nodes)
        nodes = nodes - {last} | {tests.nodes[last].parent or 0}
    return nodes.pop()


def _lone_clients(groups: Iterable[JudgedGroup]) -> list[str]:
    """Ids of the clients that are alone."""
    return sorted(id for group in groups if group.verdict == "alone" for id in group.members)


@dataclass(frozen=True)
class Findings:
    """Counts from a run's tests: groups by verdict, clients that are alone, and the tests inside groups "same".

    p, tests: the smallest p-value of these tests and their number. clients: number of all clients. placed: number of
    clients in no test. warnings: reasons why the tests have less power.
    """

    kinds: Mapping[str, int]
    alone: int = 0
    p: float | None = None
    clients: int = 0
    placed: int = 0
    alpha: float | None = None
    tests: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, groups: Sequence[JudgedGroup], tests: Evidence | None) -> Findings:
        """Count these groups and tests."""
        kinds = Counter(group.verdict for group in groups)
        del kinds["alone"]
        nodes = [group.tested for group in groups if group.verdict == "same" and group.tested is not None]
        p = [value for node in nodes for value in node.p.values()]
        clients, placed = sum(len(group.members) for group in groups), sum(group.placed for group in groups)
        alpha, warnings = (None, ()) if tests is None else (tests.alpha, tests.warnings)
        return cls(kinds, len(_lone_clients(groups)), min(p, default=None), clients, placed, alpha, len(p), warnings)


def findings_of(run: Result) -> Findings | None:
    """The tests' findings about a run's last graph; None without verdicts."""
    if not run.graphs:
        return None
    graph = run.graph_at(max(run.graphs))
    groups = judged_groups(graph)
    return Findings.of(groups, graph.evidence) if groups else None


def findings_text(seeds: Sequence[Findings], against: str = "") -> str:
    """The tests' findings in words, for one run or one run per seed. against: words about planted groups.

    >>> findings_text([Findings({"same": 4}, p=0.1, alpha=0.001, tests=12)])[:67]
    '4 groups found by tests: within groups no difference is significant'
    >>> findings_text([Findings({"same": 4}, p=0.1, alpha=0.001, tests=12)])[67:]
    ' (alpha = 0.001, corrected for 12 tests; smallest p 0.1)'
    >>> findings_text([Findings({"same": 1}, alone=1)])
    '1 group and 1 client alone found by tests: within groups no difference is significant'
    """
    counts = [sum(findings.kinds.values()) for findings in seeds]
    if not any(counts):
        return f"no groups found by tests{against}: every client differs from all others{_tests_seen(seeds)}"
    most = max(findings.alone for findings in seeds)
    alone = f" and {'up to ' if len(seeds) > 1 else ''}{plural(most, 'client')} alone" if most else ""
    return f"{group_count(counts)}{alone} found by tests{against}: {_inside(seeds)}{_tests_seen(seeds)}"


def group_count(counts: Sequence[int]) -> str:
    """The number of groups, or its range over seeds."""
    low, high = min(counts), max(counts)
    return plural(high, "group") if low == high else f"{low} to {high} groups"


def _inside(seeds: Sequence[Findings]) -> str:
    kinds = sum((Counter(findings.kinds) for findings in seeds), Counter[str]())
    words = {kind: _INSIDE.get(kind, f"the verdict is {kind}") for kind in kinds}
    if "same" in words:
        words["same"] += _smallest_p(seeds)
    if len(kinds) == 1:
        return f"within groups {next(iter(words.values()))}"
    return ", ".join(f"in {kinds[kind] if len(seeds) == 1 else 'some'} {text}" for kind, text in words.items())


def _smallest_p(seeds: Sequence[Findings]) -> str:
    """The smallest p-value inside groups, in brackets, with the level of its test; empty if no test is known."""
    known = [findings.p for findings in seeds if findings.p is not None]
    if not known:
        return ""
    tests = sum(findings.tests for findings in seeds)
    alpha = next((findings.alpha for findings in seeds if findings.alpha is not None), None)
    level = "" if alpha is None else f"alpha = {alpha:g}, corrected for {plural(tests, 'test')}; "
    return f" ({level}smallest {p_text(min(known))})"


def _tests_seen(seeds: Sequence[Findings]) -> str:
    """The number of tested clients, in brackets; empty if all were tested."""
    if not any(findings.placed for findings in seeds):
        return ""
    findings = seeds[0]
    count = f"{findings.clients - findings.placed:,} of {findings.clients:,}" if len(seeds) == 1 else "not all"
    return f" ({count} clients were tested; the others were placed in a group after that)"


# -- the page's data ---------------------------------------------------------------------------------------------------


def verdict_data(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], rounds: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The page's data of a graph's verdicts and tests, with clients numbered; None without verdicts.

    rounds: lines of rounds.jsonl; the last one says what was chosen.
    """
    groups = judged_groups(graph, named)
    if not groups:
        return None
    tests, choice = graph.evidence, KinChoice.of(rounds)
    findings = Findings.of(groups, tests)
    several, alone = [group for group in groups if group.verdict != "alone"], _lone_clients(groups)
    return {
        "words": "; ".join([findings_text([findings]), *findings.warnings]), "choice": choice and choice.explained(),
        "groups": [_group_row(group, number) for group in several[:_ROWS]],
        "more": [len(several[_ROWS:]), sum(len(group.members) for group in several[_ROWS:])],
        "alone": [len(alone), [number[id] for id in alone[:_NAMED]], MEANINGS["alone"]],
        "tests": None if tests is None else _tree(tests, groups, number, _levels_at(graph, tests, choice)),
    }  # fmt: skip


def _group_row(group: JudgedGroup, number: Mapping[str, int]) -> dict[str, Any]:
    node = group.tested
    return {
        "group": group.number, "verdict": group.verdict, "size": len(group.members), "placed": group.placed,
        "words": _MEANINGS.get(group.verdict, ""),
        "said": "" if node is None else node.summary() if node.rejected else node.smallest_p(),
        "clients": [number[id] for id in group.members[:_NAMED]],
    }  # fmt: skip


def _levels_at(graph: Graph, tests: Evidence, choice: KinChoice | None) -> dict[int, tuple[str, bool]]:
    """{node of the tree: (the level that has a model there, whether it was chosen)}, above the groups."""
    if choice is None:
        return {}
    tried = {choice.level, *choice.leads}
    nodes: dict[int, tuple[str, bool]] = {}
    if "branches" in tried and graph.groups is not None:
        branches = {node for node in tests.branches(graph.groups).values() if node is not None}
        nodes |= dict.fromkeys(sorted(branches), ("one model for this branch", choice.level == "branches"))
    # A branch that is the root contains all clients, so the level of branches is not tried then.
    return nodes | ({0: (SHARING["all"], choice.level == "all")} if "all" in tried else {})


def _tree(
    tests: Evidence, groups: Sequence[JudgedGroup], number: Mapping[str, int], levels: Mapping[int, tuple[str, bool]]
) -> dict[str, Any]:
    """The `_NODES` nodes with most clients, each after its parent, and the last drawn node of each client."""
    by_client = {id: group for group in groups for id in group.members}
    by_node = {leaf: by_client[id] for id, leaf in tests.leaf.items()}
    by_node |= {group.node: group for group in groups if group.node is not None}
    only = {leaf: number[id] for id, leaf in tests.leaf.items() if tests.sizes[leaf] == 1}
    kept, shown = _drawn_nodes(tests)
    below = Counter(shown)
    nodes = []
    for index, node in enumerate(kept):
        tested, judged = tests.nodes[node], by_node.get(node)
        nodes.append({
            "parent": None if tested.parent is None else shown[tested.parent], "size": tests.sizes[node],
            "said": tested.summary() if tested.p else "", "cut": bool(tests.children[node]),
            "group": judged and judged.number, "verdict": judged and judged.verdict,
            "client": only.get(node), "left": below[index] - 1, "level": levels.get(node),
        })  # fmt: skip
    last = [-1] * len(number)
    for id, leaf in tests.leaf.items():
        last[number[id]] = shown[leaf]
    return {"alpha": tests.alpha, "nodes": nodes, "all": len(tests.nodes), "leaf": last}


def _drawn_nodes(tests: Evidence) -> tuple[list[int], list[int]]:
    """Return (the drawn nodes, for each node the place of itself or its nearest ancestor among them)."""
    # A parent has more clients than a child, and a lower number.
    kept = sorted(sorted(range(len(tests.nodes)), key=lambda node: (-tests.sizes[node], node))[:_NODES])
    place = {node: at for at, node in enumerate(kept)}
    shown: list[int] = []
    for node, tested in enumerate(tests.nodes):
        shown.append(place[node] if node in place else shown[tested.parent or 0])
    return kept, shown
