"""The server's side: from signatures to groups that cannot be told apart, with nothing told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Labels
from fedkin.graph.groups import canonical
from fedkin.graph.same.anova import without_offsets
from fedkin.graph.same.close import merged_when_close
from fedkin.graph.same.search import Search
from fedkin.graph.same.signature import BLOCKS, Cells, Signature
from fedkin.graph.same.verdicts import Verdicts

__all__ = ["find"]


def find(
    signatures: Mapping[str, Signature] | Sequence[Signature], *, alpha: float = 0.001, least: float = 0.0,
    seed: int = 0,
) -> Verdicts:  # fmt: skip
    """Groups of clients whose data cannot be told apart at level `alpha`; nothing else is told.

    signatures: {id: signature} or a list (ids "0", "1", ..), all of one plan, in any order: the result
    depends on their content only. alpha: how often clients with one distribution may be split, per node.
    least: groups nearer than this are merged again, as a small sure difference does not pay for the samples
    lost (squared distance / variance within, of x; a third of it for xy; .03 is where it breaks even).
    seed: of the replicas behind two of the tests.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(60, 6)) for _ in range(10)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> print(find([sign(plan, x) for x in data]).lines()[0])
    10 clients, 1 group (alpha 0.001)
    """
    ids, found = _checked(signatures)
    if not 0 < alpha < 1:
        raise GraphError(f"alpha: expected a number between 0 and 1, got {alpha}")
    if least < 0:
        raise GraphError(f"least: expected a number of at least 0, got {least}")
    # By content, so that neither sums nor draws know in which order clients came.
    order = sorted(range(len(found)), key=lambda row: _content(found[row]))
    search = Search([found[row] for row in order], alpha, seed)
    search.run()
    if least:
        search.leaves = merged_when_close(search.stacks, search.leaves, least)
    return _verdicts(search, ids, found, np.array(order))


def _checked(signatures: Any) -> tuple[tuple[str, ...], list[Signature]]:
    if isinstance(signatures, Mapping):
        ids, found = tuple(str(id) for id in signatures), list(signatures.values())
    else:
        found = list(signatures)
        ids = tuple(str(row) for row in range(len(found)))
    if not found:
        raise GraphError("signatures: expected those of at least one client, got none")
    for id, one in zip(ids, found, strict=True):
        if not isinstance(one, Signature):
            raise GraphError(f"signatures: client {id!r}: expected a Signature, got {type(one).__name__}")
        if one.plan != found[0].plan or set(one.blocks) != set(found[0].blocks):
            raise GraphError(f"signatures: client {id!r} and {ids[0]!r} signed with two plans; sign with one")
    return ids, found


def _content(one: Signature) -> Any:
    return one.n, *(one.blocks[name].mean.tobytes() for name in BLOCKS if name in one.blocks)


def _verdicts(search: Search, ids: tuple[str, ...], found: list[Signature], order: Labels) -> Verdicts:
    raw = np.empty(len(ids), dtype=np.int64)
    for group, (rows, _) in enumerate(search.leaves):
        raw[order[rows]] = group
    labels = canonical(raw)
    number = {int(raw[row]): int(labels[row]) for row in range(len(ids))}
    verdicts = [""] * len(number)
    profiles: list[Any] = [None] * len(number)
    for group, (rows, verdict) in enumerate(search.leaves):
        members = [found[row] for row in order[rows]]
        verdicts[number[group]], profiles[number[group]] = verdict, _profile(members, verdict)
    tree = []
    for node in search.tree:
        rows = np.sort(order[node["rows"]])
        tree.append({name: value for name, value in node.items() if name != "rows"} | {
            "clients": [ids[row] for row in rows],
            "group": int(labels[rows[0]]) if node["verdict"] else None,
        })  # fmt: skip
    return Verdicts(
        ids, labels, tuple(verdicts), tuple(tree), tuple(profiles), search.alpha, search.tests, _warnings(ids, found)
    )  # fmt: skip


def _profile(members: list[Signature], verdict: str) -> Signature:
    merged = Signature.total(members)
    cells = [one.cells for one in members if one.cells is not None]
    if verdict != "offsets" or merged.cells is None:
        return merged
    return replace(merged, cells=Cells.total(without_offsets(cells)))


def _warnings(ids: tuple[str, ...], found: list[Signature]) -> tuple[str, ...]:
    texts: dict[str, list[int]] = {}
    for row, one in enumerate(found):
        for text in one.warnings:
            texts.setdefault(text, []).append(row)
    return tuple(
        f"{len(rows)} of {len(ids)} clients, such as {ids[rows[0]]!r}: {text}; counted as one independent sample in "
        f"{np.median([found[row].effect for row in rows]):.1f} (median)"
        for text, rows in sorted(texts.items())
    )
