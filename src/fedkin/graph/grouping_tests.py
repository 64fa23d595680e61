"""Groups by tests: p-values of whether clients' data can be told apart (docs/groups.md).

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import to_tree
from scipy.spatial.distance import cdist

from fedkin.errors import GraphError, first_few
from fedkin.graph._check import Array, Labels
from fedkin.graph.moments import Moments, fields_of, pool
from fedkin.graph.p_values import (
    ClassClientFit,
    Interaction,
    clump_p,
    interaction,
    outlier_p,
    same_p,
    split_p,
    top_p,
    two_means,
    ward,
)
from fedkin.graph.record import MEANINGS, Evidence
from fedkin.graph.signatures import BLOCKS, Cells, Signature


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

        Of newcomers like a group's m members about one in m + 1 has a smaller one.
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
    """Groups of clients whose data cannot be told apart at level `alpha`.

    signatures: {id: signature} or a list (ids "0", "1", ..), all of one plan, in any order: the result depends only on
    their content. alpha: how often clients with the same distribution may be split, per node. least: groups nearer than
    this are merged again, because a small but certain difference does not pay for the lost samples (squared distance /
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
    search.run()
    if least:
        search.leaves = merge_close_groups(search.stacks, search.leaves, least)
    return _verdicts(search, ids, signed, np.array(order))


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
            raise GraphError(f"signatures: client {id!r} and {ids[0]!r} signed with two plans; sign with one")
    return ids, signed


def _content(signature: Signature) -> Any:
    return signature.n, *(signature.blocks[name].mean.tobytes() for name in BLOCKS if name in signature.blocks)


def _verdicts(search: Search, ids: tuple[str, ...], signed: list[Signature], order: Labels) -> Verdicts:
    leaves = [(order[rows], verdict) for rows, verdict in search.leaves]
    leaves.sort(key=lambda leaf: (-len(leaf[0]), leaf[0].min()))  # canonical labels
    labels = np.empty(len(ids), dtype=np.int64)
    for group, (rows, _) in enumerate(leaves):
        labels[rows] = group
    verdicts = tuple(verdict for _, verdict in leaves)
    profiles = tuple(_profile([signed[row] for row in rows], verdict) for rows, verdict in leaves)
    tree = []
    for node in map(dict, search.tree):
        rows = np.sort(order[node.pop("rows")])
        node["clients"] = [ids[row] for row in rows]
        node["group"] = int(labels[rows[0]]) if node["verdict"] else None
        tree.append(node)
    warnings = _warnings(ids, signed)
    return Verdicts(ids, labels, verdicts, tuple(tree), profiles, tuple(signed), search.alpha, search.tests, warnings)


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
        f"at {len(rows)} of {len(ids)} clients {text}, so tests see less: such as at {ids[rows[0]]!r}, "
        f"{np.median([signed[row].effect for row in rows]):.1f} samples (median) count as one"
        for text, rows in sorted(texts.items())
    )


# -- the tree of tests -------------------------------------------------------------------------------------------------


# Ward's matrix of all pairs takes 400 MB for so many clients; above, 2-means makes the cuts.
_LARGEST_WARD = 10_000
# Limits from the study in docs/groups.md: p-value of clumps, size of a concept (variance between clients over scatter
# within), and distance of label shares between groups.
_CLUMPED, _FLOOR, _APART = 0.01, 0.1, 0.1


class Search:
    """The tree of tests over clients' rows."""

    def __init__(self, signatures: list[Signature], alpha: float, seed: int) -> None:
        self.alpha, self.seed = alpha, seed
        self.views = [name for name in BLOCKS if name in signatures[0].blocks]
        moments = {name: [signature.blocks[name] for signature in signatures] for name in self.views}
        self.stacks = {name: stacked(block, shares=_exact(name, block)) for name, block in moments.items()}
        cells = [signature.cells for signature in signatures if signature.cells is not None]
        self.table: CellTable | None = table_of(cells) if len(cells) == len(signatures) else None
        self.tests = len(self.views) + (2 if self.table is not None else 0)
        self.size = len(signatures)
        self.tree: list[dict[str, Any]] = []
        self.leaves: list[tuple[Labels, str]] = []
        self._noise: dict[str, Array] = {}
        self._seen: dict[bytes, dict[str, float]] = {}
        self._branches: dict[tuple[str, bytes], tuple[Labels, Any]] = {}

    def run(self) -> None:
        """Test and cut until nothing is left to cut."""
        todo = [self._node(np.arange(self.size), None)]
        while todo:
            todo.extend(self._settle(todo.pop()))

    def _settle(self, node: int) -> list[int]:
        """Make a node one group, or one group per leaf, or cut it; return the nodes to continue with."""
        rows = self.tree[node]["rows"]
        if len(rows) == 1:
            return self._group(node, "alone")
        p, effects = self._block_p(rows), Interaction() if self.table is None else self.table.rows(rows).test()
        self._note(node, p, effects)
        rejected = [name for name in self.views if p[name] < self.alpha]
        interact = min(effects.offset_p, effects.concept_p) * self.tests < self.alpha
        if rejected or interact:
            return self._divide(node, rejected or ["xy" if "xy" in self.views else "x"], effects, interact)
        return self._group(node, "same")

    def _divide(self, node: int, blocks: list[str], effects: Interaction, interact: bool) -> list[int]:
        """Settle a node whose clients differ in these blocks. interact: whether they differ by offset or concept."""
        only_shares = self.table is not None and not interact
        if self._cut_into_groups(node, blocks, only_shares):
            return []
        if only_shares:
            return self._group(node, "shares")
        view = self._clumped_view(self.tree[node]["rows"], blocks)
        if view is not None:
            return self._cut(node, view)
        if self.table is not None and (effects.concept_p * self.tests >= self.alpha or effects.concept_size < _FLOOR):
            return self._group(node, "offsets")
        self._groups(node, blocks)
        return []

    def _cut_into_groups(self, node: int, blocks: list[str], only_shares: bool) -> bool:
        """Cut a node into at most half as many groups as it has clients; undo that if there are more.

        only_shares: whether only class shares differ; then the groups must be far enough apart.
        """
        rows, nodes, leaves = self.tree[node]["rows"], len(self.tree), len(self.leaves)
        parts = self._groups(node, blocks, most=len(rows) // 2)
        if parts is not None and not (only_shares and not self._shares_apart(rows, parts)):
            return True
        del self.tree[nodes:], self.leaves[leaves:]
        self.tree[node] |= {"cut": None, "children": []}
        return False

    def _clumped_view(self, rows: Labels, blocks: list[str]) -> str | None:
        """The blocks, one or all together, in which these rows form the clearest clumps; None if there are none."""
        if len(rows) <= 3:
            return None
        p, _, view = min((*self._clump(rows, view), view) for view in sorted({*blocks, "+".join(blocks)}))
        return view if p <= _CLUMPED else None

    def _groups(self, node: int, rejected: list[str], most: float = np.inf) -> list[Labels] | None:
        """Cut in two until no test rejects; each part is a group. Return None above `most` parts."""
        todo, parts = [(node, rejected)], list[Labels]()
        while todo:
            if len(todo) + len(parts) > most:
                return None
            at, rejected = todo.pop()
            rows = self.tree[at]["rows"]
            if len(rows) == 1 or not rejected:
                self._group(at, "alone" if len(rows) == 1 else "same")
                parts.append(rows)
                continue
            for child in self._cut(at, "+".join(rejected)):
                child_rows = self.tree[child]["rows"]
                p = self._block_p(child_rows)
                if len(child_rows) > 1:
                    self._note(child, p, None)
                todo.append((child, [name for name in self.views if p[name] < self.alpha]))
        return parts

    def _block_p(self, rows: Labels) -> dict[str, float]:
        """Corrected p-value per block."""
        key = rows.tobytes()
        if key not in self._seen:
            enough = self.alpha / self.tests
            p = {name: self.stacks[name].rows(rows).p(enough, self.seed) for name in self.views}
            self._seen[key] = {name: min(1.0, self.tests * value) for name, value in p.items()}
        return self._seen[key]

    def _shares_apart(self, rows: Labels, parts: list[Labels]) -> bool:
        """Whether parts that differ only in class shares are far enough apart to be groups."""
        if "y" not in self.stacks:
            return False
        stack = self.stacks["y"]
        distance = stack.between(parts, stack.rows(rows).pooled()[0][0])
        np.fill_diagonal(distance, np.inf)
        return bool(distance.min() >= _APART)

    def _clump(self, rows: Labels, view: str) -> tuple[float, float]:
        stack = self._view(view)
        if view not in self._noise:
            self._noise[view] = noise_covariance(stack)
        part = stack.rows(rows)
        p, strength = clump_p(part.means, np.maximum(part.n, 1e-9), self._noise[view], seed=self.seed)
        return p, -strength

    def _view(self, view: str) -> Stack:
        if view not in self.stacks:
            self.stacks[view] = joined([self.stacks[name] for name in view.split("+")])
        return self.stacks[view]

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

    def _cut(self, node: int, view: str) -> list[int]:
        self.tree[node]["cut"] = view
        children = [self._node(part, node) for part in self._halves(self.tree[node]["rows"], view)]
        self.tree[node]["children"] = children
        return children

    def _node(self, rows: Labels, parent: int | None) -> int:
        node = len(self.tree)
        blank: dict[str, Any] = {"p": {}, "rejected": [], "cut": None, "children": [], "verdict": None}
        self.tree.append({"node": node, "parent": parent, "rows": rows} | blank)
        return node

    def _note(self, node: int, p: Mapping[str, float], effects: Interaction | None) -> None:
        all_p = {name: float(value) for name, value in p.items()}
        if effects is not None and self.table is not None:
            all_p |= {
                "offset": min(1.0, effects.offset_p * self.tests), "concept": min(1.0, effects.concept_p * self.tests)
            }  # fmt: skip
        self.tree[node]["p"] = all_p
        self.tree[node]["rejected"] = [name for name, value in all_p.items() if value < self.alpha]

    def _group(self, node: int, verdict: str) -> list[int]:
        self.tree[node]["verdict"] = verdict
        self.leaves.append((self.tree[node]["rows"], verdict))
        return []


def _exact(name: str, moments: Sequence[Moments]) -> bool:
    """Whether a block holds shares of classes: at least 0, with sum 1."""
    means = np.stack([m.mean for m in moments])
    return name == "y" and bool((means >= 0).all() and np.abs(means.sum(axis=1) - 1).max() < 0.01)


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
            stack = stacked([moments, group.blocks[name]], shares=_exact(name, [moments]))
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


# -- one block of features of many clients -----------------------------------------------------------------------------


# Relative rounding of float16, in which means usually travel.
_ROUNDING = 2.0**-11
# Lower limit of traces that noise has made impossibly small.
_LEAST_TRACE = 0.05
_LOOKS = 4


@dataclass(frozen=True, eq=False)
class Stack:
    """One block of features of k clients.

    means, halves [k, D]. n [k]: weights; the covariance of each mean has trace t1 / n. traces, free [k, 3]: as in
    Moments. shares: whether means are shares of classes.
    """

    means: Array
    halves: Array
    n: Array
    traces: Array
    free: Array
    shares: bool = False

    def rows(self, rows: Labels) -> Stack:
        """Select these clients."""
        means, halves, n = self.means[rows], self.halves[rows], self.n[rows]
        return Stack(means, halves, n, self.traces[rows], self.free[rows], self.shares)

    def pooled(self) -> tuple[Array, float]:
        """Traces of the common covariance, and the degrees of freedom behind them."""
        if self.shares and self.n.sum() > 0:
            p = self.n @ self.means / self.n.sum()
            covariance = np.diag(p) - np.outer(p, p)
            square = covariance @ covariance
            return np.array([np.trace(covariance), np.trace(square), np.trace(square @ covariance)]), np.inf
        traces, total = pool(self.traces, self.free)
        if not total[0]:
            return np.zeros(3), 0.0
        if not total[1]:
            traces[1:] = self._from_halves(traces[0])
        return traces, float(total[0])

    def _from_halves(self, t1: float) -> Array:
        """tr S^2 and tr S^3 from products of different clients' halves, if no client has six samples."""
        h = self.halves * np.sqrt(self.n)[:, None]
        h = h[np.square(h).sum(axis=1) > 0]
        k = len(h)
        # A single direction is the widest null that t1 allows.
        if k < 8:
            return np.array([t1**2, t1**3])
        gram = h @ h.T
        np.fill_diagonal(gram, 0)
        return np.array([
            np.square(gram).sum() / (k * (k - 1)), np.trace(gram @ gram @ gram) / (k * (k - 1) * (k - 2)),
        ])  # fmt: skip

    def between(self, groups: Sequence[Labels], t1: float) -> Array:
        """Squared distances of groups' means / t1, less what chance adds: 0 is expected for equal distributions."""
        n = np.array([max(self.n[rows].sum(), 1e-9) for rows in groups])
        means = np.stack([self.n[rows] @ self.means[rows] for rows in groups]) / n[:, None]
        squares = np.square(means[:, None] - means).sum(axis=-1) / max(t1, 1e-9)
        return np.asarray(squares - 1 / n - 1 / n[:, None])

    def p(self, enough: float, seed: int) -> float:
        """p-value of "all of these have one mean": the smallest of four tests, times four.

        Testing stops once a p-value is below `enough`.
        """
        have = self.n > 0
        traces, free = self.pooled()
        if have.sum() < 2 or free <= 0:
            return 1.0
        means, n = self.means[have], self.n[have]
        if traces[0] <= 1e-9 * np.square(means).sum(axis=1).max():
            # No client varies at all: any difference beyond rounding is real.
            differ = np.abs(means - means[0]).max() > 4 * _ROUNDING * np.abs(means).max()
            return 0.0 if differ else 1.0
        p = same_p(means, n, traces, free)
        if _LOOKS * p >= enough:
            own = None if self.shares else self.traces[have, 0]
            p = min(p, outlier_p(means, n, traces, free, own))
        if _LOOKS * p >= enough:
            p = min(p, top_p(means, n, traces, seed))
        if _LOOKS * p >= enough:
            p = min(p, split_p(means, self.halves[have], n, traces, free))
        return min(1.0, _LOOKS * p)


def stacked(moments: Sequence[Moments], *, shares: bool = False) -> Stack:
    """Stack every client's moments of one block; added noise and rounding lower a client's weight."""
    means, halves, traces, free = fields_of(moments, "mean", "half", "traces", "free")
    weight, noise = fields_of(moments, "weight", "noise")
    width, noisy = means.shape[1], bool(noise.any())
    plain = Stack(means, halves, weight, traces, free, shares)
    noise = noise + np.square(means).mean(axis=1) * _ROUNDING**2 / 3
    pooled, _ = plain.pooled()
    # Noise may leave a trace of 0; weights need a scale above 0.
    t1 = max(pooled[0], _LEAST_TRACE) if noisy else pooled[0]
    if t1 <= 0:
        return plain
    # A mean has covariance S / weight + noise I. At the weight n its trace is t1 / n for every client.
    level = 1 / np.where(weight > 0, 1 / np.maximum(weight, 1e-300) + width * noise / t1, np.inf)
    a, b = level / np.maximum(weight, 1e-300), level * noise
    t = np.where(np.isfinite(plain.traces), plain.traces, pooled)
    mixed = np.stack([
        a * t[:, 0] + b * width,
        a**2 * t[:, 1] + 2 * a * b * t[:, 0] + b**2 * width,
        a**3 * t[:, 2] + 3 * a**2 * b * t[:, 1] + 3 * a * b**2 * t[:, 0] + b**3 * width,
    ], axis=1)  # fmt: skip
    # Shares of classes have a covariance that follows from them, unless noise was added.
    traces = np.where(np.isfinite(plain.traces), mixed, np.nan)
    return replace(plain, n=level, traces=traces, shares=shares and not noisy)


def joined(stacks: Sequence[Stack]) -> Stack:
    """Blocks side by side, each scaled to the same spread under the null, for distances between clients."""
    means, halves, traces = [], [], np.zeros_like(stacks[0].traces)
    for stack in stacks:
        pooled, _ = stack.pooled()
        scale = (2 * max(pooled[1], 1e-4 * pooled[0] ** 2)) ** -0.25 if pooled[0] > 1e-12 else 1.0
        means.append(stack.means * scale)
        halves.append(stack.halves * scale)
        traces = traces + np.where(np.isfinite(stack.traces), stack.traces, pooled) * scale ** np.array([2, 4, 6])
    n = np.max([stack.n for stack in stacks], axis=0)
    return Stack(np.hstack(means), np.hstack(halves), n, traces, stacks[0].free)


def noise_covariance(stack: Stack) -> Array:
    """Covariance of one sample's noise from all clients' halves, scaled to their pooled trace."""
    h = stack.halves * np.sqrt(stack.n)[:, None]
    covariance: Array = h.T @ h / max(len(h), 1)
    trace, t1 = float(np.trace(covariance)), stack.pooled()[0][0]
    # Signatures without halves have noise that is nearly equal in all directions.
    if trace <= 0:
        covariance, trace = np.eye(len(covariance)), float(len(covariance))
    return np.asarray(covariance * (t1 / trace))


# -- class means of many clients ---------------------------------------------------------------------------------------


# With so many degrees of freedom, a class's own scatter counts as much as that of all classes.
_PRIOR = 1.0


@dataclass(frozen=True, eq=False)
class CellTable:
    """All clients' class means in long form: one row per client and class that it has.

    client, kind [E]; n [E]: weights; means [E, P]; scatter, dof [E]; traces [k, 3], free [k].
    """

    client: Labels
    kind: Labels
    n: Array
    means: Array
    scatter: Array
    dof: Array
    traces: Array
    free: Array

    def rows(self, rows: Labels) -> CellTable:
        """Select these clients, renumbered."""
        number = np.full(len(self.free), -1)
        number[rows] = np.arange(len(rows))
        keep = number[self.client] >= 0
        return CellTable(
            number[self.client[keep]], self.kind[keep], self.n[keep], self.means[keep], self.scatter[keep],
            self.dof[keep], self.traces[rows], self.free[rows],
        )  # fmt: skip

    def test(self) -> Interaction:
        """`interaction` of these rows, with each class's own scatter."""
        traces, total = pool(self.traces, np.repeat(self.free[:, None], 3, axis=1))
        if not total[0] or len(self.client) < 2:
            return Interaction()
        of = np.unique(self.kind, return_inverse=True)[1]
        scatter, dof = np.bincount(of, self.scatter), np.bincount(of, self.dof)
        inside = ((scatter + _PRIOR * traces[0]) / (dof + _PRIOR))[of]
        return interaction(self.client, self.kind, self.n, self.means, traces, inside, (dof + _PRIOR)[of])


def table_of(cells: Sequence[Cells]) -> CellTable:
    """Every client's cells in long form."""
    lengths = [len(part.classes) for part in cells]
    client = np.repeat(np.arange(len(cells)), lengths)
    kind, counts, means, scatter, dof = (
        np.concatenate([getattr(part, name) for part in cells])
        for name in ("classes", "counts", "means", "scatter", "dof")
    )
    n = counts / np.repeat([part.effect for part in cells], lengths)
    traces, free = np.stack([part.traces for part in cells]), np.array([part.free for part in cells])
    return CellTable(client, kind, n, means, scatter, dof, traces, free)


def without_offsets(cells: Sequence[Cells]) -> list[Cells]:
    """Remove each client's own shift, so that the means can be averaged over clients."""
    table = table_of(cells)
    if not len(table.client):
        return list(cells)
    fit = ClassClientFit.of(table.client, table.kind, table.n, table.means)
    shift = fit.client - fit.client.mean(axis=0)
    means = table.means - shift[fit.i]
    return [replace(part, means=means[table.client == row]) for row, part in enumerate(cells)]
