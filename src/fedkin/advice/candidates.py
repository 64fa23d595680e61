"""Candidates: which clients could train together, found on training samples only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from fedkin.federation import Samples, Task
from fedkin.federation.arrays import Floats
from fedkin.graph import Plan, Spread, Verdicts, sign
from fedkin.graph.record import SHARING
from fedkin.keys import key
from fedkin.methods.blocks.numeric_rows import arrays_of, has_columns
from fedkin.methods.blocks.signatures import SMALLEST_DIFFERENCE, find_groups

MOST_CLIENTS = 100
_MOST_INPUTS, _MOST_CLASSES = 60, 10
# Levels of the test between two groups that may merge, and between two single clients.
_MERGE_ALPHA, _NEAR = 0.01, 0.05
_RIDGE, _STEPS = 1.0, 8


class Coefficients(NamedTuple):
    """Slopes of one model for each class but one, or for each target, [k, d]; their precision matrices [k, d, d]."""

    slopes: Floats
    precision: Floats


def coefficients_of(samples: Samples, task: Task) -> Coefficients:
    """Fit linear models to one client: logistic models of each class against the others, or least squares.

    A ridge of 1 sample keeps the slopes finite. The intercept is left out, so that clients that differ only in class
    shares have equal coefficients.
    """
    x = samples.inputs(slice(None)).double().numpy()
    x = np.column_stack([x, np.ones(len(x))])
    y = samples.labels()
    if task.labels:
        labels = y.numpy()
        wanted = [1] if task.classes == 2 else range(task.classes)
        fits = [_logistic(x, (labels == label).astype(np.float64)) for label in wanted]
    else:
        fits = [_least_squares(x, column) for column in y.double().numpy().T]
    return Coefficients(np.stack([slopes for slopes, _ in fits]), np.stack([precision for _, precision in fits]))


def grouped(coefficients: Mapping[str, Coefficients]) -> dict[str, int]:
    """Group clients: merge the two least different groups until these differ at level .01 (Wald's test, corrected)."""
    order, slopes, precision = _stacked(coefficients)
    label, alive = np.arange(len(order)), list(range(len(order)))
    p = _pairs(slopes, precision)
    limit = _MERGE_ALPHA / max(1, len(order) - 1)
    while len(alive) > 1:
        inside = p[np.ix_(alive, alive)]
        one, other = sorted(alive[int(at)] for at in np.unravel_index(np.argmax(inside), inside.shape))
        if p[one, other] < limit:
            break
        both = precision[one] + precision[other]
        weighed = sum(np.einsum("kij,kj->ki", precision[at], slopes[at]) for at in (one, other))
        slopes[one] = np.linalg.solve(both, weighed[..., None])[..., 0]
        precision[one] = both
        label[label == other] = one
        alive.remove(other)
        for index in (index for index in alive if index != one):
            pair = [one, index]
            p[one, index] = p[index, one] = _pairs(slopes[pair], precision[pair])[0, 1]
    return {id: int(label[index]) for index, id in enumerate(order)}


def alike(coefficients: Mapping[str, Coefficients]) -> dict[str, tuple[str, ...]]:
    """For each client, the clients whose coefficients do not differ from its own at level .05."""
    order, *stacks = _stacked(coefficients)
    p = _pairs(*stacks)
    return {
        id: tuple(sorted(order[other] for other in np.flatnonzero(p[index] >= _NEAR) if other != index))
        for index, id in enumerate(order)
    }


def _stacked(coefficients: Mapping[str, Coefficients]) -> tuple[list[str], Floats, Floats]:
    """(clients sorted by content, [m, k, d] slopes, [m, k, d, d] precisions)."""
    order = sorted(coefficients, key=lambda id: (coefficients[id].slopes.tobytes(), id))
    in_order = [coefficients[id] for id in order]
    return order, np.stack([each.slopes for each in in_order]), np.stack([each.precision for each in in_order])


def _pairs(slopes: Floats, precision: Floats) -> Floats:
    """[m, m] p-values of "the two have the same slopes"; -1 on the diagonal."""
    m, k, d = slopes.shape
    spread = np.linalg.inv(precision)
    p = np.full((m, m), -1.0)
    for row in range(m - 1):
        apart = slopes[row] - slopes[row + 1 :]
        both = spread[row] + spread[row + 1 :]
        distance = np.einsum("mki,mki->m", apart, np.linalg.solve(both, apart[..., None])[..., 0])
        p[row, row + 1 :] = p[row + 1 :, row] = special.chdtrc(k * d, distance)
    return p


def _logistic(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Slopes by Newton's steps, and their precision with the intercept taken out (Schur complement)."""
    d = x.shape[1] - 1
    ridge = np.diag([_RIDGE] * d + [1e-6])
    beta = np.zeros(d + 1)
    information = ridge
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        information = (x * np.maximum(chance * (1 - chance), 1e-6)[:, None]).T @ x + ridge
        step = np.linalg.solve(information, x.T @ (y - chance) - ridge @ beta)
        beta = beta + step * min(1.0, 5.0 / (1e-12 + float(np.abs(step).max())))
    return beta[:d], _without_intercept(information)


def _least_squares(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    d = x.shape[1] - 1
    information = x.T @ x + np.diag([_RIDGE] * d + [1e-6])
    beta = np.asarray(np.linalg.solve(information, x.T @ y), dtype=np.float64)
    variance = max(float(np.square(y - x @ beta).sum()) / max(len(y) - d - 1, 1), 1e-12)
    precision: Floats = _without_intercept(information) / variance
    return beta[:d], precision


def _without_intercept(information: Floats) -> Floats:
    side = information[:-1, -1]
    rest: Floats = information[:-1, :-1] - np.outer(side, side) / information[-1, -1]
    return rest


# Candidates with a head for each client, each with the candidate that defines who shares a model.
HEADS = {"all-heads": "all", "branches-heads": "branches", "tests-heads": "tests"}
_BRANCHES = f"{SHARING['groups']} whose clients differ only by degrees"
_TESTED = f"{SHARING['groups']} that no test tells apart"
# From simple to complex: of candidates that cannot be told apart, the first one is chosen.
CANDIDATES = {
    "local": SHARING["alone"],
    "all": SHARING["all"],
    "branches": _BRANCHES,
    "tests": _TESTED,
    "coefficients": f"{SHARING['groups']} of equal coefficients of a linear model",
    "all-heads": f"{SHARING['all']}, with a head for each client",
    "branches-heads": f"{_BRANCHES}, with a head for each client",
    "tests-heads": f"{_TESTED}, with a head for each client",
    "neighbours": "a mean of models for each client, with those whose coefficients cannot be told from its own",
}
_TESTS_ALPHA = 0.001


@dataclass(frozen=True)
class Shape:
    """Which clients share a model, by id.

    groups: sorted ids of each group of several clients; near: for clients without a group, the clients whose models are
    averaged with their own. Clients in neither train alone.
    differs: what differs between groups: "inputs", "labels given inputs", "class shares".
    """

    groups: tuple[tuple[str, ...], ...] = ()
    near: tuple[tuple[str, tuple[str, ...]], ...] = ()
    differs: tuple[str, ...] = field(default=(), compare=False)

    def partners(self, id: str) -> tuple[str, ...]:
        """The other clients that this client's model is averaged with."""
        for members in self.groups:
            if id in members:
                return tuple(other for other in members if other != id)
        return dict(self.near).get(id, ())

    def trained_for(self, ids: AbstractSet[str]) -> Shape:
        """Keep only the groups with at least one of these ids; `near` stays if it has one of them.

        >>> Shape((("a", "b"), ("c", "d"))).trained_for({"a"}).groups
        (('a', 'b'),)
        """
        groups = tuple(members for members in self.groups if ids & set(members))
        return replace(self, groups=groups, near=self.near if ids & dict(self.near).keys() else ())

    def renamed(self, names: Mapping[str, str]) -> Shape:
        """The same shape with other ids."""
        groups = (tuple(sorted(names[id] for id in members)) for members in self.groups)
        near = ((names[id], tuple(sorted(names[other] for other in others))) for id, others in self.near)
        return Shape(tuple(sorted(groups)), tuple(sorted(near)), self.differs)

    @classmethod
    def of_labels(cls, labels: Mapping[str, Hashable], differs: Sequence[str]) -> Shape:
        """Make a shape from the label of each client's group; groups of one client are dropped."""
        members: dict[Hashable, list[str]] = {}
        for id, label in labels.items():
            members.setdefault(label, []).append(id)
        groups = [tuple(sorted(ids)) for ids in members.values() if len(ids) > 1]
        return cls(tuple(sorted(groups)), (), tuple(differs))


def shapes_of(samples: Mapping[str, Samples], task: Task, seed: int) -> tuple[dict[str, Shape], list[str]]:
    """({candidate: its shape}, why other candidates are missing), from these training samples.

    Tests need independent samples: of each person, only the first one counts.
    """
    samples, ids = {id: each.one_per_person() for id, each in samples.items()}, sorted(samples)
    shapes = {"local": Shape(), "all": Shape((tuple(ids),) if len(ids) > 1 else ())}
    missing: list[str] = []
    if len(ids) < 2:
        return shapes, missing
    shapes |= _tested(samples, task, seed)
    if limit := _why_no_coefficients(len(ids), task):
        missing.append(f"coefficients and neighbours: only for {limit}")
    else:
        shapes |= _by_coefficients({id: coefficients_of(samples[id], task) for id in ids})
    return shapes | {name: shapes[base] for name, base in HEADS.items()}, missing


def _why_no_coefficients(clients: int, task: Task) -> str:
    """To what linear models are limited, if this federation exceeds that; else empty."""
    inputs = task.shapes.get("x", ())
    if len(inputs) != 1 or task.codes:
        return "tables of numbers"
    if clients > MOST_CLIENTS:
        return f"up to {MOST_CLIENTS} clients"
    return "up to 60 inputs and 10 classes" if inputs[0] > _MOST_INPUTS or task.classes > _MOST_CLASSES else ""


def _by_coefficients(coefficients: Mapping[str, Coefficients]) -> dict[str, Shape]:
    """The candidates "coefficients" and, if clients with equal coefficients are no separate groups, "neighbours"."""
    labels, near, differs = grouped(coefficients), alike(coefficients), ("labels given inputs",)
    shapes = {"coefficients": Shape.of_labels(labels, differs if len(set(labels.values())) > 1 else ())}
    rows = {id: tuple(sorted((id, *others))) for id, others in near.items()}
    if any(rows[other] != row for row in rows.values() for other in row):
        shapes["neighbours"] = Shape((), tuple((id, others) for id, others in sorted(near.items()) if others), differs)
    return shapes


def _tested(samples: Mapping[str, Samples], task: Task, seed: int) -> dict[str, Shape]:
    """The candidates "branches" and "tests": the levels between one model and none that `kin` tries."""
    data = {id: arrays_of(samples[id], task) for id in sorted(samples)}
    plan = Plan.of(
        [Spread.of(*arrays, per_feature=has_columns(task)) for arrays in data.values()],
        classes=task.classes if task.labels else None, seed=key(seed, "advice", "plan") >> 32,
    )  # fmt: skip
    signed = {id: sign(plan, *arrays) for id, arrays in data.items()}
    verdicts = find_groups(signed, _TESTS_ALPHA, SMALLEST_DIFFERENCE, key(seed, "advice", "tests") >> 32)
    groups, differs = verdicts.groups, _differs(verdicts)
    spreads = verdicts.evidence.branches(groups)
    # A group that is below no spread is its own branch.
    branches = {id: (spreads[group], group if spreads[group] is None else None) for id, group in groups.items()}
    return {"branches": Shape.of_labels(branches, differs), "tests": Shape.of_labels(groups, differs)}


def _differs(verdicts: Verdicts) -> list[str]:
    """Say what differs between clients: what rejected tests saw, and what the groups' verdicts say."""
    cut = {name for node in verdicts.tree if node["children"] for name in node["rejected"]}
    differs = []
    if cut & {"x", "offset"} or "offsets" in verdicts.verdicts:
        differs.append("inputs")
    if cut & {"xy", "concept"}:
        differs.append("labels given inputs")
    if ("y" in cut and not cut & {"xy", "concept"}) or "shares" in verdicts.verdicts:
        differs.append("class shares")
    return differs
