"""Groups by tests of whether clients' data have one distribution (docs/groups.md).

Messages: every client sends `Spread.of(x, y)`; the server sends `Plan.of(spreads)` to all; every client sends
`sign(plan, x, y)` (a `Signature`, 2 KB); the server calls `find(signatures)` and, for newcomers, `place`.

>>> import numpy as np
>>> from fedkin.graph import Plan, Spread, sign
>>> rng = np.random.default_rng(0)
>>> data = {f"c{i}": (rng.normal(size=(80, 6)) + i % 2, rng.integers(3, size=80)) for i in range(8)}
>>> plan = Plan.of(Spread.of(x, y) for x, y in data.values())
>>> found = find({id: sign(plan, x, y) for id, (x, y) in data.items()})
>>> found.labels, found.verdicts
(array([0, 1, 0, 1, 0, 1, 0, 1]), ('same', 'same'))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import to_tree
from scipy.spatial.distance import cdist

from fedkin.errors import GraphError, first_few
from fedkin.graph._check import Array, Labels
from fedkin.graph.p_values import clump_p, two_means, ward
from fedkin.graph.record import MEANINGS, Evidence
from fedkin.graph.signatures import BLOCKS, Cells, Signature
from fedkin.graph.stacks import (
    CellTable,
    Stack,
    are_shares,
    joined,
    stacked,
    table_of,
    without_offsets,
)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The groups that `find` found.

    ids [n]; labels [n]: canonical, 0 is the largest group. verdicts: "same", "shares", "offsets" or "alone" for each
    group. tree: every tested node, a flat list of plain dicts, the root first: node, parent, children (numbers in the
    list), clients (ids), p (corrected p-value per test), rejected, cut (blocks used for the cut), verdict and group at
    a leaf. profiles: one merged signature per group. signed [n]: the signatures.

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
    signed: tuple[Signature, ...]
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
    def weakest(self) -> tuple[float, ...]:
        """For each group the smallest p-value of a member against the others (`member_p`); 1 for a client alone.

        Of newcomers with the distribution of a group's m members, about one in m + 1 has a smaller one.
        """
        smallest = [1.0] * len(self.verdicts)
        for row, group in enumerate(self.labels.tolist()):
            others = [self.signed[other] for other in np.flatnonzero(self.labels == group) if other != row]
            if others:
                verdict = self.verdicts[group]
                p = member_p(self.signed[row], _profile(others, verdict), verdict, 0.0)
                smallest[group] = min(smallest[group], p)
        return tuple(smallest)

    @cached_property
    def evidence(self) -> Evidence:
        """The tree of tests as a graph records it (`Graph.evidence`)."""
        leaf = {id: node["node"] for node in self.tree if not node["children"] for id in node["clients"]}
        return Evidence.of(self.tree, leaf, self.alpha, self.warnings)

    def to_json(self) -> dict[str, Any]:
        """All but the signatures, as plain data."""
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
        lines = [f"{len(self.ids)} clients, {count} group{'s' * (count != 1)} (alpha {self.alpha:g})"]
        for g in range(min(count, most)):
            members = self.members(g)
            lines.append(f"group {g}: {self.verdicts[g]}, {len(members)}: {first_few(members)}")
        lines += [f"{verdict}: {MEANINGS[verdict]}" for verdict in MEANINGS if verdict in self.verdicts]
        lines += [f"warning: {text}" for text in self.warnings]
        todo = [(0, 0)]
        for _ in range(min(most, len(self.tree))):
            number, depth = todo.pop()
            lines.append("  " * min(depth, 20) + self._line(number))
            todo += [(child, depth + 1) for child in reversed(self.tree[number]["children"])]
        if len(self.tree) > most:
            lines.append(f"and {len(self.tree) - most} more tests")
        return lines

    def _line(self, number: int) -> str:
        node = self.tree[number]
        size = len(node["clients"])
        if size == 1:
            return f"{node['clients'][0]}: group {node['group']}"
        end = "cut in two" if node["children"] else f"group {node['group']}, {node['verdict']}"
        return f"{size} clients: {self.evidence.nodes[number].summary()}; {end}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


# -- from signatures to groups -----------------------------------------------------------------------------------------


def find(
    signatures: Mapping[str, Signature] | Sequence[Signature], *, alpha: float = 0.001, least: float = 0.0,
    seed: int = 0,
) -> Verdicts:  # fmt: skip
    """Groups of clients whose data do not differ significantly at level `alpha`.

    signatures: {id: signature} or a list (ids "0", "1", ..), all of one plan, in any order: the result depends only on
    their content. alpha: how often clients with the same distribution may be split, per node. least: groups nearer than
    this are merged again, because samples lost to a split cost more than a small difference (squared distance /
    variance within, of x; a third of it for xy; .03 is where it breaks even). seed: of the simulated replicas of two of
    the tests.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(60, 6)) for _ in range(10)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> print(find([sign(plan, x) for x in data]).lines()[0])
    10 clients, 1 group (alpha 0.001)
    """
    ids, signed = _checked(signatures)
    if not 0 < alpha < 1:
        raise GraphError(f"alpha: expected a number between 0 and 1, got {alpha}")
    if least < 0:
        raise GraphError(f"least: expected a number of at least 0, got {least}")
    # By content, so that sums and draws do not depend on the order of clients.
    order = sorted(range(len(signed)), key=lambda row: _content(signed[row]))
    search = Search([signed[row] for row in order], alpha, seed)
    root = search.run()
    leaves = [(node.rows, node.verdict) for node in root.below() if node.verdict]
    if least:
        leaves = merge_close_groups(search.stacks, leaves, least)
    rows_of = np.array(order)
    # Canonical labels: 0 is the largest group.
    groups = sorted(((rows_of[rows], verdict) for rows, verdict in leaves), key=lambda g: (-len(g[0]), g[0].min()))
    labels = np.empty(len(ids), dtype=np.int64)
    for group, (rows, _) in enumerate(groups):
        labels[rows] = group
    verdicts = tuple(verdict for _, verdict in groups)
    profiles = tuple(_profile([signed[row] for row in rows], verdict) for rows, verdict in groups)
    tree = _numbered(root, rows_of, ids, labels, alpha)
    return Verdicts(ids, labels, verdicts, tree, profiles, tuple(signed), alpha, search.tests, _warnings(ids, signed))


def _checked(signatures: Any) -> tuple[tuple[str, ...], list[Signature]]:
    if isinstance(signatures, Mapping):
        ids, signed = tuple(str(id) for id in signatures), list(signatures.values())
    else:
        signed = list(signatures)
        ids = tuple(str(row) for row in range(len(signed)))
    if not signed:
        raise GraphError("signatures: expected those of at least one client, got none")
    for id, signature in zip(ids, signed, strict=True):
        if not isinstance(signature, Signature):
            raise GraphError(f"signatures: client {id!r}: expected a Signature, got {type(signature).__name__}")
        if signature.plan != signed[0].plan or set(signature.blocks) != set(signed[0].blocks):
            raise GraphError(f"signatures: client {id!r} and {ids[0]!r} have signatures of two plans; use one plan")
    return ids, signed


def _content(signature: Signature) -> Any:
    return signature.n, *(signature.blocks[name].mean.tobytes() for name in BLOCKS if name in signature.blocks)


def _numbered(
    root: TreeNode, rows_of: Labels, ids: tuple[str, ...], labels: Labels, alpha: float
) -> tuple[dict[str, Any], ...]:
    """The nodes as plain data, a node's children after it (`Verdicts.tree`); rows_of: the row in `ids` of each row."""
    nodes = [root]
    for node in root.below():
        nodes += node.children
    number = {node: place for place, node in enumerate(nodes)}
    parent = {child: number[node] for node in nodes for child in node.children}
    tree = []
    for node in nodes:
        rows = np.sort(rows_of[node.rows])
        tree.append({
            "node": number[node], "parent": parent.get(node), "p": node.p, "rejected": node.rejected(alpha),
            "cut": node.cut, "children": [number[child] for child in node.children], "verdict": node.verdict,
            "clients": [ids[row] for row in rows], "group": int(labels[rows[0]]) if node.verdict else None,
        })  # fmt: skip
    return tuple(tree)


def _profile(members: list[Signature], verdict: str) -> Signature:
    merged = Signature.total(members)
    cells = [member.cells for member in members if member.cells is not None]
    if verdict != "offsets" or merged.cells is None:
        return merged
    return replace(merged, cells=Cells.total(without_offsets(cells)))


def _warnings(ids: tuple[str, ...], signed: list[Signature]) -> tuple[str, ...]:
    texts: dict[str, list[int]] = {}
    for row, signature in enumerate(signed):
        for text in signature.warnings:
            texts.setdefault(text, []).append(row)
    return tuple(
        f"at {len(rows)} of {len(ids)} clients {text}, so tests have less power: at {ids[rows[0]]!r}, for example, "
        f"{np.median([signed[row].effect for row in rows]):.1f} samples (median) count as one"
        for text, rows in sorted(texts.items())
    )


# -- the tree of tests -------------------------------------------------------------------------------------------------


# Ward's matrix of all pairs takes 400 MB for so many clients; above, 2-means makes the cuts.
_LARGEST_WARD = 10_000
# Limits from the study in docs/groups.md: p-value of clumps, size of a concept (variance between clients over scatter
# within), and distance of label shares between groups.
_CLUMPED, _FLOOR, _APART = 0.01, 0.1, 0.1


@dataclass(eq=False)
class TreeNode:
    """Clients that were tested together.

    rows: theirs. p: {test: corrected p-value}; empty for one client. cut: the blocks used to cut them in two.
    verdict: of a node that is a group.
    """

    rows: Labels
    p: dict[str, float] = field(default_factory=dict)
    cut: str | None = None
    children: list[TreeNode] = field(default_factory=list)
    verdict: str | None = None

    def rejected(self, alpha: float) -> list[str]:
        """The tests that reject at this level."""
        return [name for name, value in self.p.items() if value < alpha]

    def below(self) -> Iterator[TreeNode]:
        """This node and all nodes below it, in the order of a depth-first search."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo += node.children


class Search:
    """The tree of tests over clients' rows."""

    def __init__(self, signatures: list[Signature], alpha: float, seed: int) -> None:
        self.alpha, self.seed = alpha, seed
        self.views = [name for name in BLOCKS if name in signatures[0].blocks]
        moments = {name: [signature.blocks[name] for signature in signatures] for name in self.views}
        self.stacks = {name: stacked(block, shares=are_shares(name, block)) for name, block in moments.items()}
        cells = [signature.cells for signature in signatures if signature.cells is not None]
        self.table: CellTable | None = table_of(cells) if len(cells) == len(signatures) else None
        self.tests = len(self.views) + (2 if self.table is not None else 0)
        self.size = len(signatures)
        self._seen: dict[bytes, dict[str, float]] = {}
        self._branches: dict[tuple[str, bytes], tuple[Labels, Any]] = {}

    def run(self) -> TreeNode:
        """Test and cut until nothing is left to cut; return the root."""
        root = TreeNode(np.arange(self.size))
        todo = [root]
        while todo:
            todo += self._settle(todo.pop())
        return root

    def _settle(self, node: TreeNode) -> list[TreeNode]:
        """Make a node one group, or cut it into groups or in two; return the children that are not settled yet."""
        if len(node.rows) == 1:
            node.verdict = "alone"
            return []
        node.p, concept_size = self._block_p(node.rows), 0.0
        if self.table is not None:
            effects = self.table.rows(node.rows).test()
            node.p |= {"offset": self._corrected(effects.offset_p), "concept": self._corrected(effects.concept_p)}
            concept_size = effects.concept_size
        rejected = node.rejected(self.alpha)
        if not rejected:
            node.verdict = "same"
            return []
        blocks = [name for name in self.views if name in rejected] or ["xy" if "xy" in self.views else "x"]
        only_shares = self.table is not None and not {"offset", "concept"} & set(rejected)
        if self._cut_into_groups(node, blocks, only_shares):
            return []
        if only_shares:
            node.verdict = "shares"
        elif (view := self._clumped_view(node.rows, blocks)) is not None:
            return self._cut(node, view)
        elif self.table is not None and ("concept" not in rejected or concept_size < _FLOOR):
            node.verdict = "offsets"
        else:
            self._groups(node, blocks)
        return []

    def _cut_into_groups(self, node: TreeNode, blocks: list[str], only_shares: bool) -> bool:
        """Cut a node into at most half as many groups as it has clients; undo that if there are more.

        only_shares: whether only class shares differ; then the groups must be far enough apart.
        """
        groups = self._groups(node, blocks, most=len(node.rows) // 2)
        if groups is not None and not (only_shares and not self._shares_apart(node.rows, groups)):
            return True
        node.cut, node.children = None, []
        return False

    def _groups(self, node: TreeNode, rejected: list[str], most: float = np.inf) -> list[Labels] | None:
        """Cut in two until no test of a block rejects; each part is a group. Return None above `most` groups."""
        todo, groups = [(node, rejected)], list[Labels]()
        while todo:
            if len(todo) + len(groups) > most:
                return None
            at, because = todo.pop()
            if not because:
                at.verdict = "alone" if len(at.rows) == 1 else "same"
                groups.append(at.rows)
                continue
            for child in self._cut(at, "+".join(because)):
                child.p = self._block_p(child.rows) if len(child.rows) > 1 else {}
                todo.append((child, child.rejected(self.alpha)))
        return groups

    def _block_p(self, rows: Labels) -> dict[str, float]:
        """Corrected p-value per block."""
        key = rows.tobytes()
        if key not in self._seen:
            enough = self.alpha / self.tests
            p = {name: self.stacks[name].rows(rows).p(enough, self.seed) for name in self.views}
            self._seen[key] = {name: self._corrected(value) for name, value in p.items()}
        return self._seen[key].copy()

    def _corrected(self, p: float) -> float:
        """A p-value, corrected for the number of tests of a node (Bonferroni)."""
        return float(min(1.0, self.tests * p))

    def _shares_apart(self, rows: Labels, groups: list[Labels]) -> bool:
        """Whether parts that differ only in class shares are far enough apart to be groups."""
        if "y" not in self.stacks:
            return False
        stack = self.stacks["y"]
        distance = stack.between(groups, stack.rows(rows).pooled()[0][0])
        np.fill_diagonal(distance, np.inf)
        return bool(distance.min() >= _APART)

    def _clumped_view(self, rows: Labels, blocks: list[str]) -> str | None:
        """The blocks, one or all together, in which these rows form the clearest clumps; None if there are none."""
        if len(rows) <= 3:
            return None
        clumps = []
        for view in sorted({*blocks, "+".join(blocks)}):
            stack = self._view(view)
            part = stack.rows(rows)
            p, strength = clump_p(part.means, np.maximum(part.n, 1e-9), stack.noise, seed=self.seed)
            clumps.append((p, -strength, view))
        p, _, view = min(clumps)
        return view if p <= _CLUMPED else None

    def _view(self, view: str) -> Stack:
        if view not in self.stacks:
            self.stacks[view] = joined([self.stacks[name] for name in view.split("+")])
        return self.stacks[view]

    def _cut(self, node: TreeNode, view: str) -> list[TreeNode]:
        node.cut, node.children = view, [TreeNode(rows) for rows in self._halves(node.rows, view)]
        return node.children

    def _halves(self, rows: Labels, view: str) -> tuple[Labels, Labels]:
        """The two parts at the root of Ward's tree of these rows."""
        key = (view, rows.tobytes())
        stack = self._view(view)
        weights = np.maximum(stack.n[rows], 1e-9)
        if key not in self._branches:
            if len(rows) > _LARGEST_WARD:
                label = two_means(stack.means[rows], weights)
                if 0 < label.sum() < len(label):
                    return rows[label == 0], rows[label == 1]
            self._branches[key] = rows, to_tree(ward(stack.means[rows], weights))
        all_rows, branch = self._branches[key]
        # A branch of Ward's tree is Ward's tree of that branch.
        left, right = branch.get_left(), branch.get_right()
        parts = tuple(all_rows[np.sort(half.pre_order())] for half in (left, right))
        self._branches[view, parts[0].tobytes()] = all_rows, left
        self._branches[view, parts[1].tobytes()] = all_rows, right
        return parts[0], parts[1]


# -- groups with certain differences that are too small to pay for the lost samples ------------------------------------


# Splitting broke even in the study at .03 in x and .01 in xy.
SHARE = {"x": 1.0, "xy": 1 / 3, "y": 1.0}


def merge_close_groups(
    stacks: Mapping[str, Stack], leaves: list[tuple[Labels, str]], least: float
) -> list[tuple[Labels, str]]:
    """Merge groups "same" and "alone", nearest first, while a pair is near in every block."""
    mergeable = [leaf for leaf in leaves if leaf[1] in ("same", "alone")]
    others = [leaf for leaf in leaves if leaf[1] not in ("same", "alone")]
    while len(mergeable) > 1:
        gaps = _gaps(stacks, [rows for rows, _ in mergeable], least)
        a, b = sorted(divmod(int(np.argmin(gaps)), len(mergeable)))
        if not gaps[a, b] < 1:
            break
        mergeable.append((np.sort(np.concatenate([mergeable[a][0], mergeable[b][0]])), "same"))
        del mergeable[b], mergeable[a]
    return others + mergeable


def _gaps(stacks: Mapping[str, Stack], groups: list[Labels], least: float) -> Array:
    """Debiased squared distance of means / tr S, in units of `least`; the largest over blocks."""
    worst = np.full((len(groups), len(groups)), -np.inf)
    for name, share in SHARE.items():
        if name in stacks:
            gaps = stacks[name].between(groups, stacks[name].pooled()[0][0])
            worst = np.maximum(worst, gaps / (least * share))
    np.fill_diagonal(worst, np.inf)
    return worst


# -- newcomers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where a client belongs.

    p [groups]: corrected p-value of "the client belongs to this group". group: the likeliest, or None if it belongs to
    none.
    """

    p: tuple[float, ...]
    group: int | None


def place(signature: Signature, verdicts: Verdicts) -> Placement:
    """Test a new client against every group.

    A "same" group, or a client alone, is compared in every block; a "shares" group only in its class means; an
    "offsets" group only in what remains of these without a shift of all classes. A client belongs to the group of its
    largest p-value if this is at least alpha, or at least that of the group's own weakest member
    (`Verdicts.weakest`): members may differ by more than chance.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, find, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(80, 6)) + 2 * (i % 2) for i in range(8)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> found = find([sign(plan, x) for x in data])
    >>> place(sign(plan, rng.normal(size=(40, 6)) + 2), found).group == found.groups["1"]
    True
    >>> place(sign(plan, rng.normal(size=(40, 6)) - 4), found).group is None
    True
    """
    groups = list(zip(verdicts.profiles, verdicts.verdicts, strict=True))
    p = tuple(member_p(signature, profile, verdict, verdicts.alpha) for profile, verdict in groups)
    if max(p) < verdicts.alpha:
        p = tuple(member_p(signature, profile, verdict, 0.0) for profile, verdict in groups)
    best = int(np.argmax(p))
    fits = p[best] >= verdicts.alpha or p[best] >= verdicts.weakest[best] > 0
    return Placement(p, best if fits else None)


def member_p(signature: Signature, group: Signature, verdict: str, alpha: float) -> float:
    """Return the p-value of "these samples are of this group", corrected for the number of tests.

    verdict: of the group. alpha: testing stops once a p-value is below it.
    """
    if signature.plan != group.plan:
        raise GraphError("the client signed with another plan than the group; sign with the group's plan")
    tests = len(signature.blocks) + (2 if signature.cells is not None else 0)
    # Only the tests that a group of this verdict itself passes.
    p_values = [1.0]
    if verdict in ("same", "alone"):
        for name, moments in signature.blocks.items():
            stack = stacked([moments, group.blocks[name]], shares=are_shares(name, [moments]))
            p_values.append(stack.p(alpha / tests, 0))
    if signature.cells is not None and group.cells is not None:
        effects = table_of([signature.cells, group.cells]).test()
        p_values.append(effects.concept_p)
        if verdict != "offsets":
            p_values.append(effects.offset_p)
    return min(1.0, tests * min(p_values))


# -- distances between clients -----------------------------------------------------------------------------------------


def apart(signatures: Sequence[Signature], others: Sequence[Signature] | None = None) -> Array:
    """Distances between the distributions of clients [n, n]; with `others` [n, m], between clients and these.

    The root of the sum over blocks of |m_i - m_j|^2 / tr S - 1/n_i - 1/n_j, with blocks scaled as for `least` in
    `find`. Equal distributions have expectation 0, and values below 0 become 0. tr S is that of `others`, if there are
    any.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(80, 6)) + i % 2 for i in range(4)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> apart([sign(plan, x) for x in data])[0] > 0.5
    array([False,  True, False,  True])
    """
    columns = list(signatures if others is None else others)
    total = np.zeros((len(signatures), len(columns)))
    for name in columns[0].blocks:
        theirs = stacked([one.blocks[name] for one in columns])
        ours = theirs if others is None else stacked([one.blocks[name] for one in signatures])
        t1 = max(float(theirs.pooled()[0][0]), 1e-9)
        squares = cdist(ours.means, theirs.means, "sqeuclidean") / t1
        noise = [1 / np.maximum(one.n, 1e-9) for one in (ours, theirs)]
        total += (squares - noise[0][:, None] - noise[1]) / SHARE[name]
    distances = np.sqrt(np.maximum(total, 0.0))
    if others is None:
        np.fill_diagonal(distances, 0.0)
    return np.asarray(distances)
