"""Clients by id, for one task: with their samples (`Federation`), or without them, as over a network (`Entry`)."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import DataError
from fedkin.federation.arrays import clients_of, clients_of_datasets, is_finite
from fedkin.federation.inputs import codes_in, parts, shape_of
from fedkin.federation.samples import Absence, Change, Client, Samples, Scale, hash_of, is_here
from fedkin.tasks import Kind, Task

if TYPE_CHECKING:
    # Tables need pyarrow, which takes a fifth of a second to import.
    from fedkin.federation.table_columns import Kind as TableKind
    from fedkin.federation.table_encoding import Encoding, Target

# Number of clients that the display in a notebook lists.
_SHOWN = 20


class Entry(NamedTuple):
    """A client without its samples: whether it takes part, when it joins, its number of training samples, its group.

    later: (first round, training samples, planted group) of each change, in the order of rounds. away: (first, last)
    round of each absence (see `Client`).
    """

    seen: bool
    joins: int
    size: int
    group: str | None
    later: tuple[tuple[int, int, str | None], ...] = ()
    away: tuple[Absence, ...] = ()

    @property
    def phases(self) -> tuple[()]:
        """Empty, since an entry has no samples; `Method.check` reads the samples of a client here."""
        return ()

    @property
    def still(self) -> bool:
        """Whether the client is present in all rounds, with the same samples."""
        return self.joins <= 1 and not self.later and not self.away

    def here(self, round: int) -> bool:
        """Whether the client is present in this round."""
        return is_here(self.joins, self.away, round)

    def at(self, round: int) -> Entry:
        """The entry as it is in this round."""
        past = [change for change in self.later if change[0] <= round]
        return self._replace(size=past[-1][1], group=past[-1][2]) if past else self


C = TypeVar("C", Client, Entry)


class Roster(Mapping[str, C]):
    """Clients by id, for one task.

    seen: ids of the clients that take part, sorted. unseen: ids of the clients that are only evaluated, sorted.
    planted: the planted group of every client, or None if any client's group is unknown.
    """

    def __init__(self, clients: Mapping[str, C], task: Task, name: str = "federation") -> None:
        self._clients: Mapping[str, C] = clients
        self.task, self.name = task, name
        self.seen = tuple(sorted(id for id, client in clients.items() if client.seen))
        self.unseen = tuple(sorted(id for id, client in clients.items() if not client.seen))
        groups = {id: client.group for id, client in clients.items() if client.group is not None}
        self.planted = groups if len(groups) == len(clients) else None
        self._still = all(client.still for client in clients.values())

    def __getitem__(self, id: str) -> C:
        return self._clients[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def at(self, round: int) -> Self:
        """The clients that are present in this round, as they are then; self if nothing ever changes.

        Raises DataError if no client that takes part is present.
        """
        if self._still:
            return self
        present = {id: client.at(round) for id, client in self.items() if client.here(round) or not client.seen}
        if not any(client.seen for client in present.values()):
            raise DataError(f"round {round}: no client is there: none has joined yet, or all have left")
        now = copy(self)
        # Not the subclass's own: a federation would check all samples again.
        Roster.__init__(now, present, self.task, self.name)
        return now


AnyRoster: TypeAlias = Roster[Client] | Roster[Entry]


class Federation(Roster[Client]):
    """Clients by id with their samples, for one task.

    Raises DataError, naming the client, for an id that is empty or used twice, a client without training
    samples, inputs whose shape differs from the task's, labels outside 0..classes-1, or values that are not finite.

    >>> import numpy as np
    >>> x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
    >>> fed = Federation.from_arrays(x, y, client=["a", "a", "a", "b", "b", "b"], test_fraction=0.34)
    >>> {id: client.size for id, client in fed.items()}
    {'a': 2, 'b': 2}

    seen, unseen, planted: see `Roster`. encoding, target: how columns became inputs, and what the targets mean, if the
    clients were made from a table.
    """

    encoding: Encoding | None = None
    target: Target | None = None

    def __init__(self, clients: Sequence[Client], task: Task, name: str = "federation") -> None:
        by_id: dict[str, Client] = {}
        if clients and not task.codes:
            task = replace(task, codes=codes_in(clients[0].train.x, clients[0].train.scale is not None))
        for client in clients:
            _check_id(client.id)
            if client.id in by_id:
                raise DataError(f"two clients have the id {client.id!r}: ids must differ")
            by_id[client.id] = client
        if not by_id:
            raise DataError("a federation needs at least one client")
        checked: set[tuple[int, int]] = set()
        for client in by_id.values():
            _check_presence(client)
            _check_changes(client)
            for now in client.phases:
                _check_samples(client.id, "training", now.train, task, checked)
                _check_samples(client.id, "test", now.test, task, checked)
        super().__init__(by_id, task, name)
        if not self.seen:
            raise DataError("no client takes part: all of them are unseen")

    def __getitem__(self, id: str) -> Client:
        if id not in self._clients:
            raise KeyError(f"{id!r} is no client; ids are texts, such as {next(iter(self))!r}")
        return self._clients[id]

    def __repr__(self) -> str:
        task = f"{self.task.classes} classes" if self.task.labels else f"{self.task.kind} of {self.task.outputs}"
        return f"Federation({self.name!r}, {len(self)} clients, {task})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(id)}</th><td>{client.size:,}</td><td>{len(client.test):,}</td>"
            f"<td>{escape(client.group or '')}</td></tr>"
            for id, client in list(self.items())[:_SHOWN]
        )
        more = f"<p>and {len(self) - _SHOWN:,} more clients</p>" if len(self) > _SHOWN else ""
        heads = "".join(f"<th>{head}</th>" for head in ("client", "training samples", "test samples", "planted group"))
        return f"<p>{escape(repr(self))}</p><table><tr>{heads}</tr>{rows}</table>{more}"

    @property
    def sizes(self) -> dict[str, int]:
        """Training samples per client."""
        return {id: client.size for id, client in self.items()}

    def fingerprint(self) -> str:
        """A hash of every client's id, group, samples, persons, times and scale, whatever the order of clients."""
        digest = blake2b(digest_size=16)
        # Clients of a group often share one test set: it is read only once.
        hashes: dict[int, bytes] = {}
        for id, client in sorted(self.items()):
            if not client.seen or client.joins != 1:
                digest.update(repr((client.seen, client.joins)).encode())
            if client.away:
                digest.update(repr(client.away).encode())
            for now in client.phases:
                when = (now.round,) if isinstance(now, Change) else ()
                digest.update(repr((*when, id, now.group)).encode())
                for samples in (now.train, now.test):
                    if builtins.id(samples) not in hashes:
                        persons = b"" if samples.person is None else samples.units().tobytes()
                        times = samples.times()
                        hashes[builtins.id(samples)] = (
                            hash_of(samples) + persons + (b"" if times is None else times.tobytes())
                        )
                    digest.update(hashes[builtins.id(samples)])
        return digest.hexdigest()

    def relabel(self, names: Mapping[str, str]) -> Self:
        """The same federation under other ids; ids that `names` does not contain stay."""
        return self._like([replace(client, id=names[id]) if id in names else client for id, client in self.items()])

    def reorder(self, ids: Sequence[str]) -> Self:
        """The same clients in another order; a subset is allowed."""
        return self._like([self[id] for id in ids])

    def _like(self, clients: Sequence[Client]) -> Self:
        federation = type(self)(clients, self.task, self.name)
        federation.encoding, federation.target = self.encoding, self.target
        return federation

    @classmethod
    def from_arrays(
        cls, x: npt.ArrayLike | Mapping[str, npt.ArrayLike], y: npt.ArrayLike,
        client: Sequence[str | int] | npt.NDArray[Any], *, group: Sequence[str | int] | npt.NDArray[Any] | None = None,
        split: Sequence[str] | npt.NDArray[Any] | None = None, test_fraction: float = 0.2, classes: int | None = None,
        scale: Scale | None = None, seed: int = 0, name: str = "arrays", kind: Kind = "classification",
    ) -> Self:  # fmt: skip
        """A federation from one row per sample.

        x: [N, ...] numbers, or a dict of arrays [N, ...] that the net takes together; int32 and int64 are token ids or
        category codes and stay whole numbers (give quantities as floats). y: [N] labels 0..classes-1, or targets in
        the form of this `kind` of task. client: [N] id of each sample's client; group: [N] planted group of its client
        (one per client); split: [N] "train" or "test", or None to hold out `test_fraction` of each client's samples,
        drawn with a key of (seed, client id).
        """
        return cls(*clients_of(x, y, client, group, split, test_fraction, classes, scale, seed, kind), name)

    @classmethod
    def from_datasets(
        cls, datasets: Mapping[str, Any], *, group: Mapping[str, str] | None = None, target: str | None = None,
        test_fraction: float = 0.2, classes: int | None = None, scale: Scale | None = None,
        seed: int = 0, name: str = "datasets", kind: Kind = "classification",
    ) -> Self:  # fmt: skip
        """A federation from a torch Dataset or DataLoader of each client, or a pair (train, test) of them.

        datasets: by client. A sample is (input, target), or a dict with `target` (default: "labels", "label", "target"
        or "y"): tensors, arrays, numbers or Pillow images of one shape, read once, in order. Whole numbers stay token
        ids; bytes are scaled by `scale` (divided by 255, if unset). Without a pair, `test_fraction` is held out. Errors
        (DataError) name client and sample.

        >>> sites = {"a": [([0.1, 2.0], 0), ([0.3, 1.0], 1)], "b": [([0.5, 0.0], 1), ([0.2, 0.1], 0)]}
        >>> Federation.from_datasets(sites, test_fraction=0.5)
        Federation('datasets', 2 clients, 2 classes)
        """
        return cls(*clients_of_datasets(datasets, group, target, test_fraction, classes, scale, seed, kind), name)

    @classmethod
    def from_frame(
        cls, frame: Any, *, target: str, client: str, time: str | None = None, group: str | None = None,
        person: str | None = None, kind: TableKind | None = None, positive: str | None = None,
        split: str | None = None, test_fraction: float = 0.2, leave_out: Sequence[str] = (),
        categories: Sequence[str] = (), least: int = 10, seed: int = 0, name: str = "table",
    ) -> Self:  # fmt: skip
        """A federation from a table with one row per sample, which names its client in a column.

        frame: a DataFrame of pandas or polars, an Arrow table, or a dict of columns. All columns without another
        role are inputs, except those in `leave_out`. Numbers, dates and booleans are standardised with the mean
        and standard deviation of all clients' training rows. Texts, and the columns named in `categories`, get a column
        for each value that at least `least` training rows have, and one for all others. Missing values become the mean,
        or no category; if at least `least` training rows lack the value, a column marks them. Only sums and counts of
        each client are used for this (`Profile`). `federation.encoding` has the names of the resulting columns.

        target: the column to predict. kind: without it, two values are a risk, texts and up to 20 whole numbers are
        classes, other numbers a regression. positive: which of a risk's two values is the event (the later one in
        order, if unset: 1, True, "yes"). Targets of a regression are standardised with the mean and standard deviation
        of training rows. group: the planted group of each client. split: "random" holds out `test_fraction` of each
        client's rows, drawn with a key of (seed, client); "time" holds out the latest rows by the column `time`, and is
        the default if `time` is set; any other text names a column of "train" and "test". person: a column, such as the
        patient: a client's rows with the same value stay on one side of the split. Raises DataError naming column, row
        and client.

        >>> rows = {"age": [61, 70, 55, 80], "died": [0, 1, 0, 1], "hospital": ["a", "a", "b", "b"]}
        >>> fed = Federation.from_frame(rows, target="died", client="hospital", test_fraction=0.5)
        >>> fed.task.kind, fed.encoding.names, fed.target.classes
        ('risk', ('age',), ('0', '1'))
        """
        from pydantic import ValidationError  # this import is slow, and most commands do not need it

        from fedkin.federation.table_columns import Reading
        from fedkin.federation.table_encoding import encoded
        from fedkin.federation.table_values import as_table, refuse_decimal_texts

        try:
            reading = Reading(
                target=target, client=client, time=time, group=group, person=person, kind=kind, positive=positive,
                split=split, test_fraction=test_fraction, leave_out=tuple(leave_out), categories=tuple(categories),
                least=least, seed=seed,
            )  # fmt: skip
        except ValidationError as error:
            first = error.errors()[0]
            raise DataError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        arrays = encoded(as_table(frame), reading)
        columns, meaning = arrays.columns, arrays.target
        refuse_decimal_texts(columns.inputs, reading.categories)
        split_of_rows = np.where(columns.is_test, "test", "train")
        clients, task = clients_of(
            arrays.x, arrays.y, columns.client, columns.group, split_of_rows, test_fraction,
            len(meaning.classes) or None, None, seed, meaning.kind, columns.person, columns.time,
        )  # fmt: skip
        federation = cls(clients, task, name)
        federation.encoding, federation.target = arrays.encoding, meaning
        return federation


# -- checks of clients; errors name the client ---------------------------------------------------------------------


def _check_id(id: str) -> None:
    """Raise DataError unless the client id is printable text without spaces around it, and not "server"."""
    if not isinstance(id, str) or not id or id != id.strip() or not id.isprintable():
        raise DataError(f"a client id must be printable text without spaces around it, got {id!r}")
    if id == "server":
        raise DataError("no client may be called 'server': records use that name for the server")


def _check_presence(client: Client) -> None:
    """Raise DataError unless the rounds of joining and of absences ascend."""
    if client.joins < 1:
        raise DataError(f"client {client.id!r} joins in round {client.joins}; rounds are numbered from 1")
    ends = [client.joins, *(round for absence in client.away for round in absence if round is not None)]
    if ends != sorted(ends) or client.joins in ends[1:] or any(last is None for _, last in client.away[:-1]):
        given = f"joins in round {client.joins} and is away in {list(client.away)}"
        expected = "expected (first, last) rounds after it, ascending, the last one None for good"
        raise DataError(f"client {client.id!r} {given}; {expected}")


def _check_changes(client: Client) -> None:
    """Raise DataError unless the rounds of changes ascend, and each has training samples."""
    rounds = [change.round for change in client.changes]
    if rounds != sorted(set(rounds)) or (rounds and rounds[0] < 1):
        raise DataError(f"client {client.id!r} changes in rounds {rounds}; expected ascending rounds from 1")
    for now in client.phases if client.seen else ():
        if not len(now.train):
            when = f" from round {now.round} on" if isinstance(now, Change) else ": leave it out"
            raise DataError(f"client {client.id!r} has no training samples{when}")


def _check_samples(id: str, part: str, samples: Samples, task: Task, checked: set[tuple[int, int]]) -> None:
    """Raise DataError unless these samples fit the task; checked: arrays known to be finite."""
    where = f"client {id!r}: {part}"
    _check_inputs(f"{where} inputs", samples, task, checked)
    if samples.rows is not None and samples.rows.dtype != torch.int64:
        raise DataError(f"{where} rows must be int64, got {samples.rows.dtype}")
    if samples.rows is not None and len(samples.rows):
        low, high = (int(end) for end in samples.rows.aminmax())
        if low < 0 or high >= len(samples.y):
            raise DataError(f"{where} rows {low}..{high} are outside 0..{len(samples.y) - 1}")
    _check_targets(where, samples.labels(), task)


def _check_inputs(where: str, samples: Samples, task: Task, checked: set[tuple[int, int]]) -> None:
    held, alone = parts(samples.x), isinstance(samples.x, Tensor)
    if alone == isinstance(task.shape, Mapping):
        raise DataError(f"{where} have shape {shape_of(samples.x)}, the task's is {task.shape}")
    if held.keys() != task.shapes.keys():
        raise DataError(f"{where} are {', '.join(held)}, the task's are {', '.join(task.shapes)}")
    codes = codes_in(samples.x, samples.scale is not None)
    for name, array in held.items():
        place = where if alone else f"{where} {name!r}"
        own, wanted = tuple(array.shape[1:]), task.shapes[name]
        if own != wanted:
            raise DataError(f"{place} have shape {own}, the task's is {wanted}")
        if (name in codes) != (name in task.codes):
            expected = "int32 or int64 without a scale" if name in task.codes else "floats or uint8"
            raise DataError(f"{place} are {array.dtype}; expected {expected}, as the task's and other clients' are")
        if samples.scale is not None and (alone or array.dtype == torch.uint8):
            samples.scale.check(wanted[0] if wanted else 1, f"{where}: scale")
        # Clients usually share one array: looking for NaN in it once is enough.
        stored = (array.data_ptr(), array.numel())
        if array.is_floating_point() and stored not in checked:
            checked.add(stored)
            if not is_finite(array):
                raise DataError(f"{place} hold NaN or infinite values (with 32 bits)")


def _check_targets(where: str, targets: Tensor, task: Task) -> None:
    shape = tuple(targets.shape[1:])
    if shape != task.target_shape:
        raise DataError(f"{where} targets have shape {shape}, those of a {task.kind} task {task.target_shape}")
    if task.kind == "regression":
        if not targets.is_floating_point() or not is_finite(targets):
            raise DataError(f"{where} targets must be finite numbers of a floating type, got {targets.dtype}")
        return
    if targets.dtype != torch.int64:
        raise DataError(f"{where} labels must be int64, got {targets.dtype}")
    low, high = (int(end) for end in targets.aminmax()) if targets.numel() else (0, 0)
    if low < 0 or high >= task.classes:
        raise DataError(f"{where} labels run from {low} to {high}, expected 0 to {task.classes - 1}")
