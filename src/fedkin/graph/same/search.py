"""The tree of tests: which clients to test together, where to cut, when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedkin.graph._check import Array, Labels
from fedkin.graph.same.anova import CellTable, Interaction, table_of
from fedkin.graph.same.clump import clump_p, noise_covariance
from fedkin.graph.same.cluster import Tree, two_means, ward
from fedkin.graph.same.signature import BLOCKS, Signature
from fedkin.graph.same.stack import Stack, joined, stacked

__all__ = ["Search"]

# Ward's matrix of all pairs takes 400 MB for so many clients; beyond, 2-means cuts.
_LARGEST_WARD = 10_000
# p-value at which clumps are believed, size of a concept that matters (variance between clients over scatter
# within), and distance of label shares that makes groups of them: the study's, in docs/groups.md.
_CLUMPED, _FLOOR, _APART = 0.01, 0.1, 0.1


class Search:
    """The tree of tests over clients' rows."""

    def __init__(self, signatures: list[Signature], alpha: float, seed: int) -> None:
        self.alpha, self.seed = alpha, seed
        self.views = [name for name in BLOCKS if name in signatures[0].blocks]
        self.stacks = {
            name: stacked([one.blocks[name] for one in signatures], shares=_exact(name, signatures))
            for name in self.views
        }
        cells = [one.cells for one in signatures if one.cells is not None]
        self.table: CellTable | None = table_of(cells) if len(cells) == len(signatures) else None
        self.tests = len(self.views) + (2 if self.table is not None else 0)
        self.size = len(signatures)
        self.tree: list[dict[str, Any]] = []
        self.leaves: list[tuple[Labels, str]] = []
        self._noise: dict[str, Array] = {}
        self._seen: dict[bytes, dict[str, float]] = {}
        self._dendrograms: dict[tuple[str, bytes], tuple[Labels, Tree, int]] = {}

    def run(self) -> None:
        """Test and cut until nothing is left to cut."""
        todo = [self._node(np.arange(self.size), None)]
        while todo:
            todo.extend(self._settle(todo.pop()))

    def _settle(self, node: int) -> list[int]:
        """Decide on a node: a group, its leaves as groups, or two nodes to go on with."""
        rows = self.tree[node]["rows"]
        if len(rows) == 1:
            return self._group(node, "alone")
        p, effects = self._block_p(rows), self.interaction(rows)
        rejected = [name for name in self.views if p[name] < self.alpha]
        real = self.table is None or min(effects.offset_p, effects.concept_p) * self.tests < self.alpha
        self._note(node, p, effects)
        if not rejected and not (real and self.table is not None):
            return self._group(node, "same")
        if not rejected:
            rejected = ["xy" if "xy" in self.views else "x"]
        parts = self._parts(rows, most=len(rows) // 2)
        if parts is not None and (real or self._shares_apart(rows, parts)):
            return self._groups(node, rejected)
        if real and len(rows) > 3:
            best = min((*self._clump(rows, view), view) for view in sorted({*rejected, "+".join(rejected)}))
            if best[0] <= _CLUMPED:
                return self._cut(node, best[2])
        if not real:
            return self._group(node, "shares")
        if self.table is not None and (effects.concept_p * self.tests >= self.alpha or effects.concept_size < _FLOOR):
            return self._group(node, "offsets")
        return self._groups(node, rejected)

    def _groups(self, node: int, rejected: list[str]) -> list[int]:
        """Cut in two until what is left cannot be told apart; each part is a group."""
        todo = [(node, rejected)]
        while todo:
            at, rejected = todo.pop()
            rows = self.tree[at]["rows"]
            if len(rows) == 1:
                self._group(at, "alone")
            elif not rejected:
                self._group(at, "same")
            else:
                for child in self._cut(at, "+".join(rejected)):
                    p = self._block_p(self.tree[child]["rows"])
                    if len(self.tree[child]["rows"]) > 1:
                        self._note(child, p, None)
                    todo.append((child, [name for name in self.views if p[name] < self.alpha]))
        return []

    def _parts(self, rows: Labels, most: int) -> list[Labels] | None:
        """The same parts as `_groups` makes, or None once there are more than `most`."""
        todo: list[Labels] = [rows]
        done: list[Labels] = []
        while todo:
            if len(todo) + len(done) > most:
                return None
            part = todo.pop()
            p = self._block_p(part) if len(part) > 1 else {}
            rejected = [name for name in p if p[name] < self.alpha]
            if part is rows and not rejected:
                rejected = ["xy" if "xy" in self.views else "x"]
            if rejected:
                todo.extend(self._halves(part, "+".join(rejected)))
            else:
                done.append(part)
        return done

    def _block_p(self, rows: Labels) -> dict[str, float]:
        """Corrected p-value per block."""
        key = rows.tobytes()
        if key not in self._seen:
            enough = self.alpha / self.tests
            self._seen[key] = {
                name: min(1.0, self.tests * self.stacks[name].rows(rows).p(enough, self.seed)) for name in self.views
            }
        return self._seen[key]

    def interaction(self, rows: Labels) -> Interaction:
        """The tests beyond class of these clients; without cells, nothing rejects."""
        return Interaction() if self.table is None else self.table.rows(rows).test()

    def _shares_apart(self, rows: Labels, parts: list[Labels]) -> bool:
        """Whether parts that differ in class shares only do so far enough to be groups."""
        if "y" not in self.stacks:
            return False
        stack = self.stacks["y"]
        t1 = max(float(stack.rows(rows).pooled()[0][0]), 1e-9)
        n = np.array([stack.n[part].sum() for part in parts])
        means = np.stack([stack.n[part] @ stack.means[part] for part in parts]) / n[:, None]
        distance = np.square(means[:, None] - means).sum(axis=-1) / t1 - 1 / n - 1 / n[:, None]
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
        """The two parts that Ward's tree of these rows has at its root."""
        key = (view, rows.tobytes())
        stack = self._view(view)
        weights = np.maximum(stack.n[rows], 1e-9)
        if key not in self._dendrograms:
            if len(rows) > _LARGEST_WARD:
                label = two_means(stack.means[rows], weights)
                if 0 < label.sum() < len(label):
                    return rows[label == 0], rows[label == 1]
            tree = Tree(ward(stack.means[rows], weights))
            self._dendrograms[key] = rows, tree, tree.root
        base, tree, at = self._dendrograms[key]
        left, right = tree.children(at)
        # A branch of Ward's tree is Ward's tree of that branch.
        parts = base[tree.leaves(left)], base[tree.leaves(right)]
        for part, child in zip(parts, (left, right), strict=True):
            if len(part) > 1:
                self._dendrograms[view, part.tobytes()] = base, tree, child
        return parts

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


def _exact(name: str, signatures: list[Signature]) -> bool:
    """Whether a block holds shares of classes: they are of at least 0 and sum to 1."""
    if name != "y":
        return False
    means = np.stack([one.blocks[name].mean for one in signatures])
    return bool((means >= 0).all() and np.abs(means.sum(axis=1) - 1).max() < 0.01)
