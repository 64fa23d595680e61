"""Who could train with whom: the candidates, found on training samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.advice.coefficients import MOST_CLIENTS, alike, coefficients_of, grouped
from fedkin.federation import Samples, Task
from fedkin.graph import Plan, Signature, Spread, Verdicts, sign
from fedkin.keys import key
from fedkin.methods.blocks.signatures import LEAST, found_among, rows_of

__all__ = ["CANDIDATES", "Shape", "shapes_of"]

# From simple to complex: where two cannot be told apart, the one that stands first is taken.
CANDIDATES = {
    "local": "each client by itself",
    "all": "one model for all",
    "tests": "groups that no test tells apart (signatures)",
    "coefficients": "groups of equal coefficients of a linear model",
    "neighbours": "each with those whose coefficients cannot be told from its own",
}
_ALPHA = 0.001


@dataclass(frozen=True)
class Shape:
    """Who shares a model with whom, by id.

    groups: sorted ids of each group of several clients, with its verdict ("same", "shares", "offsets"); near: for a
    client in none, those whose models are averaged with its own. Clients in neither train alone.
    differs: what tells the groups apart: "inputs", "labels given inputs", "class shares".
    """

    groups: tuple[tuple[tuple[str, ...], str], ...] = ()
    near: tuple[tuple[str, tuple[str, ...]], ...] = ()
    differs: tuple[str, ...] = field(default=(), compare=False)

    def partners(self, id: str) -> tuple[str, ...]:
        """The others that this client's model is averaged with."""
        for members, _ in self.groups:
            if id in members:
                return tuple(other for other in members if other != id)
        return dict(self.near).get(id, ())

    def renamed(self, names: Mapping[str, str]) -> Shape:
        """The same under other ids."""
        groups = (
            (tuple(sorted(names[id] for id in members)), verdict) for members, verdict in self.groups
        )  # fmt: skip
        near = ((names[id], tuple(sorted(names[other] for other in others))) for id, others in self.near)
        return Shape(tuple(sorted(groups)), tuple(sorted(near)), self.differs)

    @classmethod
    def of_labels(cls, labels: Mapping[str, int], verdict: Mapping[int, str], differs: Sequence[str] = ()) -> Shape:
        """Of a group's number for each client; groups of one client and of the verdict "alone" are dropped."""
        members: dict[int, list[str]] = {}
        for id, label in labels.items():
            members.setdefault(label, []).append(id)
        found = [
            (tuple(sorted(ids)), verdict.get(label, "same")) for label, ids in members.items()
            if len(ids) > 1 and verdict.get(label) != "alone"
        ]  # fmt: skip
        return cls(tuple(sorted(found)), (), tuple(differs))


def shapes_of(samples: Mapping[str, Samples], task: Task, seed: int) -> tuple[dict[str, Shape], list[str]]:
    """(each candidate by its name in CANDIDATES, why others are missing), from these training samples."""
    ids = sorted(samples)
    every: tuple[tuple[tuple[str, ...], str], ...] = ((tuple(ids), "same"),) if len(ids) > 1 else ()
    found = {"local": Shape(), "all": Shape(every)}
    missing: list[str] = []
    if len(ids) < 2:
        return found, missing
    found["tests"] = _tested(samples, task, seed)
    if len(task.shapes.get("x", ())) != 1 or task.codes:
        missing.append("coefficients and neighbours: only for tables of numbers")
    elif len(ids) > MOST_CLIENTS:
        missing.append(f"coefficients and neighbours: only for up to {MOST_CLIENTS} clients")
    else:
        each = {id: coefficients_of(samples[id], task) for id in ids}
        if any(one is None for one in each.values()):
            missing.append("coefficients and neighbours: only for up to 60 inputs and 10 classes")
        else:
            known = {id: one for id, one in each.items() if one is not None}
            labels = grouped(known)
            differs = ("labels given inputs",) if len(set(labels.values())) > 1 else ()
            found["coefficients"] = Shape.of_labels(labels, {}, differs)
            near = alike(known)
            rows = {id: tuple(sorted((id, *others))) for id, others in near.items()}
            if any(rows[other] != row for row in rows.values() for other in row):
                told = tuple((id, others) for id, others in sorted(near.items()) if others)
                found["neighbours"] = Shape((), told, ("labels given inputs",))
    return found, missing


def _tested(samples: Mapping[str, Samples], task: Task, seed: int) -> Shape:
    """Groups by the tests of `fedkin.graph.find`, as `kin` makes them."""
    data = {
        id: (
            rows_of(one, task),
            one.labels().numpy() if task.labels else one.labels().double().sum(1).numpy(),
        )
        for id, one in samples.items()
    }
    columns = isinstance(task.shape, Mapping) or len(task.shape) == 1
    plan = Plan.of(
        [Spread.of(*data[id], per_feature=columns) for id in sorted(data)],
        classes=task.classes if task.labels else None, seed=key(seed, "advice", "plan") >> 32,
    )  # fmt: skip
    signed: dict[str, Signature] = {id: sign(plan, *data[id]) for id in sorted(data)}
    found = found_among(signed, _ALPHA, LEAST, key(seed, "advice", "tests") >> 32)
    return Shape.of_labels(found.groups, dict(enumerate(found.verdicts)), _differs(found))


def _differs(found: Verdicts) -> list[str]:
    """In words, what the tests that cut clients apart saw, and what differs inside groups by their verdicts."""
    cut = {name for node in found.tree if node["children"] for name in node["rejected"]}
    said = []
    if cut & {"x", "offset"} or "offsets" in found.verdicts:
        said.append("inputs")
    if cut & {"xy", "concept"}:
        said.append("labels given inputs")
    if ("y" in cut and not cut & {"xy", "concept"}) or "shares" in found.verdicts:
        said.append("class shares")
    return said
