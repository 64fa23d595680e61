"""Federations that change over time: clients that drift, and newcomers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, SerializeAsAny, field_validator

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import Scenario
from fedkin.data.scenarios.label_skew import GroupedClasses
from fedkin.errors import ConfigError
from fedkin.federation import Change, Federation
from fedkin.keys import rng
from fedkin.settings import choose, parse


def _inner(given: Any) -> Any:
    """Parse the setting `of`: a scenario's name, or a table with its name and settings."""
    from fedkin.data.scenarios import SCENARIOS

    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        return given
    known = {name: scenario for name, scenario in SCENARIOS.items() if scenario is not Drift}
    return parse(choose(known, table.get("name"), "scenario.of.name"), table, "scenario.of")


class Drift(Scenario):
    """Any other scenario, in which some clients change group in a later round or join later.

    of: the other scenario, as a section [scenario.of] with its name and settings. Of the clients that it makes:

    drifting: this number of clients moves to another planted group, in the rounds of `rounds`, over which they are
    spread evenly. From then on, each has the training and test samples of another client of `of`, which is left out
    of the federation: it is smaller than `of` by that number, and no other client has these samples.
    newcomers: this number of clients joins in the rounds of `joins`, over which they are spread evenly.

    No client both drifts and joins later, and unseen clients do neither. Drifting clients and newcomers are drawn at
    random, as evenly over the planted groups as possible. A client's first group is the planted one.
    `Client.about["role"]` is "drifting", "newcomer" or "stays".

    >>> from fedkin.data import federate
    >>> of = {"name": "label-swap", "clients": 12, "groups": 2}
    >>> fed = federate("digits", "drift", of=of, drifting=2, rounds=30, newcomers=1, joins=10)
    >>> len(fed), sum(client.joins == 10 for client in fed.values())
    (10, 1)
    >>> [len({client.group, change.group}) for client in fed.values() for change in client.changes]
    [2, 2]
    """

    name: Literal["drift"] = "drift"
    of: SerializeAsAny[Annotated[Scenario, BeforeValidator(_inner)]] = Field(default_factory=GroupedClasses)
    drifting: NonNegativeInt = 10
    rounds: int | tuple[int, ...] = 50
    newcomers: NonNegativeInt = 0
    joins: int | tuple[int, ...] = 50

    planted: ClassVar[str] = "those of the other scenario; drifting clients start in one and end in another"

    def federation(self, dataset: Dataset, seed: int) -> Federation:
        """Build the federation after the unseen clients are set apart: none of them drifts or joins later."""
        if self.unseen is None:
            return super().federation(dataset, seed)
        if self.of.unseen is not None:
            raise ConfigError("scenario.unseen and scenario.of.unseen are both set: leave one of them out")
        apart = {"unseen": self.unseen, "unseen_test": self.unseen_test}
        inner = self.model_copy(update={"of": self.of.model_copy(update=apart), "unseen": None})
        return inner.federation(dataset, seed)

    @field_validator("rounds", "joins")
    @classmethod
    def _later(cls, rounds: int | tuple[int, ...]) -> int | tuple[int, ...]:
        listed = _listed(rounds)
        if not listed or min(listed) < 2 or len(set(listed)) < len(listed):
            raise ValueError("expected a round from 2 on, or several different ones")
        return rounds

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the other scenario makes too few clients or groups."""
        inner = self.of.federation(dataset, seed)
        asked = 2 * self.drifting + self.newcomers
        if asked >= len(inner.seen):
            need = f"{self.drifting} drifting ones need 2 each, {self.newcomers} newcomers 1 each"
            raise ConfigError(
                f"scenario.of: {self.of.name} makes {len(inner.seen)} clients that take part; {need}, and one must be "
                f"there in round 1: at least {asked + 1}"
            )
        draw = rng(seed, self.name, "clients")
        left = _UndrawnClients(inner, draw)
        changed, gone = self._draw_changes(inner, left)
        late = [left.take() for _ in range(self.newcomers)]
        joins = dict(zip(late, _spread(self.joins, len(late)), strict=True))

        clients = []
        for id in (id for id in inner if id not in gone):
            role = "drifting" if id in changed else "newcomer" if id in joins else "stays"
            client = replace(inner[id], about={**inner[id].about, "role": role})
            if id in changed:
                client = replace(client, changes=(changed[id],))
            clients.append(replace(client, joins=joins.get(id, client.joins)))
        return Federation(clients, inner.task, f"{inner.name}-{self.name}")

    def _draw_changes(self, inner: Federation, left: _UndrawnClients) -> tuple[dict[str, Change], set[str]]:
        """(the change of every drifting client, the ids of the clients whose samples these take)."""
        if self.drifting and (inner.planted is None or len(set(inner.planted.values())) < 2):
            lacks = f"{self.of.name} plants no two groups between which a client could move"
            raise ConfigError(f"scenario.drifting: {lacks}; expected drifting = 0, or another scenario")
        changed: dict[str, Change] = {}
        gone: set[str] = set()
        for round in _spread(self.rounds, self.drifting):
            giver = left.give()
            mover = left.take(other_than=inner[giver].group)
            to = inner[giver]
            changed[mover] = Change(round, to.train, to.test, to.group)
            gone.add(giver)
        return changed, gone


class _UndrawnClients:
    """Clients not drawn yet, by group; each draw is from a largest group, so that draws are spread evenly."""

    def __init__(self, inner: Federation, draw: np.random.Generator) -> None:
        self._draw = draw
        planted = inner.planted or {}
        self._left: dict[str | None, list[str]] = {}
        for id in draw.permutation(inner.seen).tolist():
            self._left.setdefault(planted.get(id), []).append(id)
        self._members = {group: len(own) for group, own in self._left.items()}

    def give(self) -> str:
        """A client not drawn yet, from a largest group; it leaves the federation."""
        group = self._fullest({group: (self._members[group], len(own)) for group, own in self._left.items() if own})
        self._members[group] -= 1
        return self._left[group].pop()

    def take(self, other_than: str | None = None) -> str:
        """A client not drawn yet; from another group than `other_than`, if given."""
        counts = {
            group: (len(own), 0)
            for group, own in self._left.items() if own and (other_than is None or group != other_than)
        }  # fmt: skip
        if not counts:
            left = f"only clients of group {other_than!r} are left to draw, and none can move to another group"
            raise ConfigError(f"scenario.drifting: {left}; expected fewer, or groups of more equal size")
        return self._left[self._fullest(counts)].pop()

    def _fullest(self, counts: Mapping[str | None, tuple[int, int]]) -> str | None:
        """A group with the largest counts, ties drawn at random."""
        most = max(counts.values())
        fullest = sorted((group for group, count in counts.items() if count == most), key=str)
        return fullest[self._draw.integers(len(fullest))]


def _listed(rounds: int | Sequence[int]) -> tuple[int, ...]:
    return (rounds,) if isinstance(rounds, int) else tuple(rounds)


def _spread(rounds: int | Sequence[int], count: int) -> list[int]:
    """The round of each of `count` clients: every round gets the same number, to within one."""
    return list(islice(cycle(_listed(rounds)), count))
