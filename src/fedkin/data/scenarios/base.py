"""The interface of all scenarios, and their common features: unseen clients, and pooling of all clients into one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.data.dataset import Dataset, Split
from fedkin.errors import ConfigError, nearest
from fedkin.federation import Change, Client, Federation, Samples
from fedkin.federation.arrays import Ints
from fedkin.federation.inputs import concatenated
from fedkin.keys import rng
from fedkin.settings import Settings, errors_in, expect

Unseen = float | str | tuple[str, ...]
UnseenTest = Literal["test", "all"]

Phase = TypeVar("Phase", Client, Change)

GROUP = "group:"
POOLED = "pooled"


class Scenario(Settings):
    """Settings that say which client gets which samples; `name` is the scenario, `planted` what its groups are.

    unseen: clients that never take part and are only evaluated: a share of them, drawn by the seed; an id, or a group
    as "group:NAME"; or a list of these. unseen_test: the samples they are tested on: their test samples, or all.
    pooled: all participating clients become one, "pooled": training on all data in one place, as a baseline.
    """

    name: str
    unseen: Annotated[float, Field(gt=0, lt=1)] | str | tuple[str, ...] | None = None
    unseen_test: UnseenTest = "test"
    pooled: bool = False

    planted: ClassVar[str] = "none"

    def federation(self, dataset: Dataset, seed: int) -> Federation:
        """Build the federation and mark unseen clients: those of `unseen`, or of the groups that the data set excluded.

        With `pooled` the remaining clients are joined into one. Raises ConfigError also if `unseen` differs from the
        groups that the data set excluded when it was prepared.
        """
        apart = self._apart(dataset, seed)
        federation = pooled(apart) if self.pooled else apart
        federation.encoding, federation.target = dataset.encoding, dataset.target
        return federation

    def _apart(self, dataset: Dataset, seed: int) -> Federation:
        with errors_in(self):
            federation = self.build(dataset, seed)
        expect(federation, Federation, f"scenario.name: {type(self).__name__}.build", "to get a fedkin.Federation")
        unseen, excluded = self.unseen, tuple(GROUP + name for name in dataset.unseen)
        if unseen is None:
            return set_apart(federation, excluded, self.unseen_test, seed) if excluded else federation
        names = (unseen,) if isinstance(unseen, str) else unseen
        if excluded and (isinstance(names, float) or set(names) != set(excluded)):
            prepared = f"{dataset.name} was prepared without {', '.join(excluded)}"
            raise ConfigError(f"scenario.unseen: {unseen!r}, but {prepared}; choose who is unseen in [data] alone")
        return set_apart(federation, unseen, self.unseen_test, seed)

    @abstractmethod
    def build(self, dataset: Dataset, seed: int) -> Federation:
        """Assign the samples to clients; the same seed gives the same federation, bit for bit.

        Training samples come from the training split, test samples from the test split, and no sample goes
        to two clients. Raises ConfigError naming the setting, or DataError, if the data are not enough.
        """

    def assembled(
        self, dataset: Dataset, seed: int, train: Sequence[Ints | Samples], test: Sequence[Ints | Samples], *,
        groups: Sequence[str] | None = None, about: Sequence[Mapping[str, Any]] | None = None,
        classes: Sequence[Sequence[int]] | None = None, ids: Sequence[str] | None = None,
    ) -> Federation:  # fmt: skip
        """Assemble a federation from each client's training and test rows, or samples.

        classes: of each client; they are stored in `about`, and name the groups if `groups` is None. ids: by default
        `shuffled_ids`. Clients with the same array of rows share one `Samples`.
        """
        if classes is not None:
            about = [{"classes": list(own)} for own in classes]
            groups = ["+".join(map(str, each)) for each in classes] if groups is None else groups
        known: dict[int, Samples] = {}

        def samples(split: Split, rows: Ints | Samples) -> Samples:
            if isinstance(rows, Samples):
                return rows
            if id(rows) not in known:
                known[id(rows)] = dataset.samples(split, rows)
            return known[id(rows)]

        clients = [
            Client(
                name, samples("train", train[index]), samples("test", test[index]),
                group=None if groups is None else groups[index], about={} if about is None else about[index],
            )
            for index, name in enumerate(shuffled_ids(len(train), seed) if ids is None else ids)
        ]  # fmt: skip
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")


def shuffled_ids(count: int, seed: int) -> list[str]:
    """Ids "c00", "c01", ... for `count` clients in order of creation; no id equals its client's position.

    The numbers follow one random cycle through all positions: ids tell nothing about groups, and code that
    uses an id's number as a position is wrong for every client.

    >>> sorted(shuffled_ids(3, seed=0))
    ['c00', 'c01', 'c02']
    """
    order = rng(seed, "client-ids").permutation(count)
    numbers = np.empty(count, np.int64)
    numbers[order] = np.roll(order, -1)
    width = max(2, len(str(count - 1)))
    return [f"c{number:0{width}d}" for number in numbers]


# -- unseen clients ------------------------------------------------------------------------------------------------


def set_apart(federation: Federation, unseen: Unseen, test: UnseenTest, seed: int) -> Federation:
    """The federation with these clients unseen.

    unseen: a share of the clients, drawn by the seed; or ids and groups, the latter as "group:NAME". test: the samples
    an unseen client is tested on: its test samples, or all its samples, so that none are left for training.
    Raises ConfigError for an unknown name, or if no client would be left.
    """
    if isinstance(unseen, float):  # at least one; independent of the order of clients
        ids = sorted(federation)
        drawn = rng(seed, "unseen").permutation(len(ids))[: max(1, round(unseen * len(ids)))]
        chosen = {ids[index] for index in drawn}
    else:
        chosen = _ids_named(federation, (unseen,) if isinstance(unseen, str) else unseen)
    if len(chosen) == len(federation):
        what = f"{unseen!r} makes all {len(chosen)} clients unseen"
        raise ConfigError(f"scenario.unseen: {what}; leave at least one client to train")
    clients = [_as_unseen(client, test) if id in chosen else client for id, client in federation.items()]
    return type(federation)(clients, federation.task, federation.name)


def groups_of(federation: Federation) -> list[str]:
    """The groups that can be left out one after another, sorted; raises ConfigError for fewer than two."""
    groups = sorted({client.group for client in federation.values() if client.group is not None})
    if len(groups) < 2:
        has = f"{federation.name} has {'one group' if groups else 'no groups'} of clients"
        raise ConfigError(
            f"{has}: to leave each out, two or more are needed, such as the domains of a folder of images"
        )
    return groups


def _ids_named(federation: Federation, unseen: Sequence[str]) -> set[str]:
    """The ids of the clients that `unseen` names by id or by group."""
    ids: set[str] = set()
    for name in unseen:
        if name.startswith(GROUP):
            group = name.removeprefix(GROUP)
            members = {id for id, client in federation.items() if client.group == group}
            if not members:
                groups = {client.group for client in federation.values() if client.group is not None}
                hint = nearest(group, groups) if groups else f"the clients of {federation.name} are in no groups"
                raise ConfigError(f"scenario.unseen: no client is in group {group!r}; {hint}")
            ids |= members
        elif name in federation:
            ids.add(name)
        else:
            hint = f'{nearest(name, federation)} (a group is "{GROUP}NAME")'
            raise ConfigError(f"scenario.unseen: no client {name!r}; {hint}")
    return ids


def _as_unseen(client: Client, test: UnseenTest) -> Client:
    if test == "test":
        return replace(client, seen=False)
    return replace(_all_as_test(client), changes=tuple(map(_all_as_test, client.changes)), seen=False)


def _all_as_test(phase: Phase) -> Phase:
    """The client, or its change, with all its samples as test samples."""
    parts = [phase.train, phase.test] if len(phase.test) else [phase.train]
    return replace(phase, train=phase.train.take([]), test=_joined(parts, 'scenario.unseen_test: "all"'))


# -- all clients as one ---------------------------------------------------------------------------------------------


def pooled(federation: Federation) -> Federation:
    """The federation with one client "pooled" that has the samples of all participating clients; unseen clients stay.

    Samples follow the order of client ids. Raises ConfigError if clients change or join later.
    """
    seen = [federation[id] for id in federation.seen]
    if moving := [client.id for client in seen if not client.still]:
        what = "joins later or leaves, or its data change"
        raise ConfigError(f"scenario.pooled: client {moving[0]!r} {what}; pooled data stand still")
    if POOLED in federation.unseen:
        raise ConfigError(f"scenario.pooled: an unseen client has the id {POOLED!r} already")
    train = _joined([client.train for client in seen], "scenario.pooled: training samples")
    test = _joined([client.test for client in seen], "scenario.pooled: test samples")
    others = [federation[id] for id in federation.unseen]
    return Federation([Client(POOLED, train, test), *others], federation.task, federation.name)


def _joined(parts: Sequence[Samples], what: str) -> Samples:
    """Concatenate samples; they are not copied if all are rows of the same arrays."""
    first = parts[0]
    if any(part.scale != first.scale for part in parts):
        raise ConfigError(f"{what}: cannot be joined, since they are on unlike scales")
    rows = [part.rows for part in parts if part.rows is not None]
    if len(rows) == len(parts) and len({(id(part.x), id(part.y)) for part in parts}) == 1:
        return Samples(first.x, first.y, torch.cat(rows), first.scale, first.person, first.time)
    if len(parts) == 1:
        return first
    own = [part.own() for part in parts]
    x, y = concatenated([part.x for part in own]), torch.cat([part.y for part in own])
    persons = _concatenated([part.person for part in own])
    return Samples(x, y, None, first.scale, persons, _concatenated([part.time for part in own]))


def _concatenated(columns: Sequence[Tensor | None]) -> Tensor | None:
    """The columns one after another; None if one is missing."""
    present = [column for column in columns if column is not None]
    return torch.cat(present) if len(present) == len(columns) else None
