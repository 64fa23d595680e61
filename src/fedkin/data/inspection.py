"""Inspect a table before training: facts about its clients, and findings: probable errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy

from fedkin.data.csv_cells import is_number_like
from fedkin.data.sources.tables import all_rare_columns, unnamed_codes
from fedkin.data.table_files import column_notes
from fedkin.errors import first_few
from fedkin.federation.arrays import Flags, Floats, Ints
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_encoding import Encoded, encoded, lone_classes
from fedkin.federation.table_values import codes, numbers

Kind = Literal[
    "id", "constant", "text", "missing", "leak", "duplicates", "few", "drift", "skew", "scale", "codes", "rare",
    "written", "spelling", "person", "sentinel", "units", "codings", "order", "class",
]  # fmt: skip
CHECKS = (
    "columns that are row numbers, constant, mostly empty, text although they hold numbers, or texts that are all rare",
    "codes", "leaks",
    "equal rows", "few test rows", "skewed targets", "drift over time", "persons in training and test",
    "spelling of classes, categories and clients", "classes that one client alone has", "values such as -999",
    "other units or codings at one client", "columns that the rows are sorted by",
)  # fmt: skip
_NONE = np.zeros(0, np.int64)
# `without` leaves out the columns with these kinds of findings.
_USELESS = ("id", "constant")

# If more than this share of a text column's values are numbers, the others are probably typing errors, or like "> 89".
_NUMBERS = 0.5
_MISSING = 0.5
# In a column of codes, at least this share of rows must have codes that are frequent enough for inputs of their own.
_COMMON = 0.5
# A decimal or a sign in a text that is a number in some notation; record numbers have neither.
_MEASURED = re.compile(r"[.,][0-9]|[+-][0-9]")
_DATE = re.compile(r"[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{4}|[0-9]{2})\b")
# A column is a leak if it leaves less than this share of the errors, or of the variance, unexplained.
_UNEXPLAINED = 0.02
_BINS, _PER_BIN = 50, 20
# Least numbers of a client: events and test rows for meaningful metrics, rows for a test of drift.
_EVENTS, _TESTS, _DRIFT = 10, 30, 60
# At most this many rows of a client, evenly spaced over time, are compared for drift.
_MOST = 2000
_ALPHA = 0.001
# A column may name persons if it has at least this many values, this many rows per value, and nearly all at one client.
_PERSONS, _FEW_ROWS, _AT_ONE = 20, (1.5, 50), 0.95
# Least rows of a client to compare; factor that suggests another unit; most categories of a column to compare codings.
_COMPARED, _UNIT, _CODINGS = 20, 5.0, 10
# Rows are sorted by a column if their rank correlation exceeds this value at more than half of the clients.
_SORTED = 0.9


@dataclass(frozen=True)
class Finding:
    """A probable error: its kind, a sentence about it, and the columns or clients concerned."""

    kind: Kind
    text: str
    about: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding in words, with the columns or clients concerned if there are several."""
        return f"{self.kind}: {self.text}" + (f": {first_few(self.about)}" if len(self.about) > 1 else "")


@dataclass(frozen=True)
class ClientFacts:
    """A client: training and test rows, its targets (rows by class, or their mean), share of missing values."""

    id: str
    train: int
    test: int
    classes: Mapping[str, int]
    mean: float | None
    missing: float


@dataclass(frozen=True)
class Inspection:
    """Facts about the clients, sorted by id; probable errors; and the arrays that training would use."""

    clients: tuple[ClientFacts, ...]
    findings: tuple[Finding, ...]
    encoded: Encoded


class _Column(NamedTuple):
    """An input column.

    A category has its texts, the index of each row's text (-1: unknown), and the number of rows with each text. A
    number has its values, NaN where they are unknown.
    """

    name: str
    stored: pa.DataType
    texts: list[str]
    place: Ints
    often: Ints
    values: Floats | None = None

    @classmethod
    def of(cls, table: pa.Table, name: str, kind: str) -> _Column:
        stored = table.schema.field(name).type
        if kind == "number":
            return cls(name, stored, [], _NONE, _NONE, numbers(table, name))
        distinct, place = codes(table, name)
        return cls(name, stored, distinct, place, np.bincount(place[place >= 0], minlength=len(distinct)))

    @property
    def known(self) -> Floats:
        """The known values of a number."""
        return np.zeros(0) if self.values is None else self.values[~np.isnan(self.values)]

    @property
    def is_measured(self) -> bool:
        """Whether it is a number with decimals, or a time."""
        kind = self.stored
        decimals = pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.scale > 0)
        return self.values is not None and (decimals or pa.types.is_temporal(kind))

    @property
    def counts(self) -> tuple[int, int]:
        """How many rows have a value, and how many values differ."""
        if self.values is None:
            return int(self.often.sum()), len(self.texts)
        return len(self.known), len(np.unique(self.known))


def inspect(table: pa.Table, reading: Reading, where: str = "frame") -> Inspection:
    """Facts and findings of a table. Raises DataError as `fedkin.federation.table_encoding.encoded` does."""
    arrays = encoded(table, reading, where)
    inputs = [_Column.of(table, name, kind) for name, kind in arrays.encoding.kinds.items()]
    findings = [finding for column in inputs for finding in _column_findings(table, column)]
    named = _columns_in(findings, *_USELESS, "text")
    rare = all_rare_columns(table, arrays.encoding, reading.least).items()
    findings += [Finding("text", text, (name,)) for name, text in rare if name not in named]
    useless = set(_columns_in(findings, *_USELESS))
    useful = [column for column in inputs if column.name not in useless]
    findings += [
        *_code_findings(table, reading, useless),
        *_leaks(useful, reading.target, arrays.y),
        *_duplicates(arrays),
        *_few(arrays),
        *_skew(arrays),
        *_drift(table, reading, arrays),
        *_spelling(inputs, reading, arrays),
        *_persons(table, reading, arrays, useless),
        *_unlike_clients(useful, arrays),
    ]
    facts = tuple(_facts(table, arrays))
    if lone := lone_classes({one.id: {name: count for name, count in one.classes.items() if count} for one in facts}):
        findings.append(Finding("class", lone))
    return Inspection(facts, tuple(findings), arrays)


def without(reading: Reading, inspection: Inspection) -> Reading:
    """The reading without columns that are ids or constant."""
    useless = _columns_in(inspection.findings, *_USELESS)
    return reading.model_copy(update={"leave_out": (*reading.leave_out, *useless)})


def _columns_in(findings: Iterable[Finding], *kinds: str) -> list[str]:
    """The columns that findings of these kinds are about."""
    return [name for finding in findings if finding.kind in kinds for name in finding.about]


def _facts(table: pa.Table, arrays: Encoded) -> Iterator[ClientFacts]:
    empty = np.mean([table.column(name).is_null(nan_is_null=True).to_numpy() for name in arrays.encoding.kinds], axis=0)
    target = arrays.target
    for id, rows in sorted(arrays.columns.rows.items()):
        count = np.bincount(arrays.y[rows], minlength=len(target.classes)).tolist() if target.classes else ()
        mean = None if target.classes else float(arrays.y[rows].mean() * target.deviation + target.mean)
        test = int(arrays.columns.is_test[rows].sum())
        classes = dict(zip(target.classes, count, strict=True))
        yield ClientFacts(id, len(rows) - test, test, classes, mean, float(np.mean(empty[rows])))


# -- single columns --------------------------------------------------------------------------------------------------


def _column_findings(table: pa.Table, column: _Column) -> Iterator[Finding]:
    """Ids, constants, numbers written as texts, mostly missing values."""
    name, rows, (filled, different) = column.name, table.num_rows, column.counts
    note = column_notes(table).get(name)
    as_text = list(_numbers_as_text(column)) if column.values is None and filled and not note else []
    if filled < (1 - _MISSING) * rows:
        yield Finding("missing", f"column {name!r} is empty in {1 - filled / rows:.0%} of the rows", (name,))
    if different < 2:
        what = f"{next(iter(codes(table, name)[0]), '')!r} in every row" if filled else "empty"
        yield Finding("constant", f"column {name!r} is {what}: it says nothing; leave it out", (name,))
    elif different == filled >= 20 and not (column.is_measured or ((as_text or note) and _has_measurements(column))):
        # A measurement that is read as text also differs in every row, and must not be left out for that.
        what = "it looks like a number of the row or person; leave it out"
        yield Finding("id", f"column {name!r} differs in every row: {what}", (name,))
    yield from as_text
    if note:
        yield Finding("text" if column.values is None else "written", f"column {name!r}: {note}", (name,))


def _numbers_as_text(column: _Column) -> Iterator[Finding]:
    name, whole = column.name, int(column.often.sum())
    wrong = next((value for value in column.texts if not _is_iso_date(value)), None)
    how = "make dates of them" if wrong is None else f"{wrong!r} is none: correct it, or leave it empty"
    for is_date, advice in ((_DATE.match, "write them as 2026-01-31"), (_is_iso_date, how)):
        dated = [number for number, value in enumerate(column.texts) if is_date(value)]
        if int(column.often[dated].sum()) > _NUMBERS * whole:
            what = f"are dates, such as {column.texts[dated[0]]!r}, and are read as text: {advice}"
            yield Finding("text", f"values of column {name!r} {what}", (name,))
            return
    odd = [number for number, value in enumerate(column.texts) if not is_number_like(value)]
    share = 1 - int(column.often[odd].sum()) / whole
    if share > _NUMBERS and odd:
        what = f"is read as text, although {share:.0%} of its values are numbers; not a number is"
        how = f"{column.texts[odd[0]]!r}: write a number there, or leave it empty"
        yield Finding("text", f"column {name!r} {what} {how}", (name,))


def _has_measurements(column: _Column) -> bool:
    """Whether a text column has a date, or a number with decimals or a sign."""
    return any(
        _DATE.match(text) or _is_iso_date(text) or (_MEASURED.search(text) and is_number_like(text))
        for text in column.texts
    )


def _is_iso_date(text: str) -> bool:
    """Whether a text is a date, or a date with a time, as 2026-01-31."""
    try:
        datetime.fromisoformat(text.strip())
    except ValueError:
        return False
    return text.count("-") >= 2


def _code_findings(table: pa.Table, reading: Reading, useless: set[str]) -> Iterator[Finding]:
    """Find codes that are read as numbers, except in useless columns; "rare": most are too rare for categories."""
    for name, value in unnamed_codes(table, reading).items():
        if name in useless:
            continue
        what = f"column {name!r} is read as numbers, although values have leading zeros, such as {value!r}"
        often = _Column.of(table, name, "category").often
        if int(often[often >= reading.least].sum()) >= _COMMON * int(often.sum()):
            yield Finding("codes", f"{what}: if they are codes, name it in categories", (name,))
        else:
            rare = f"most of its {len(often)} values are in fewer than {reading.least} rows, too few for categories"
            yield Finding("rare", f"{what}; {rare}: if they are codes, shorten them, or leave the column out", (name,))


def _leaks(inputs: list[_Column], target: str, y: npt.NDArray[Any]) -> Iterator[Finding]:
    for column in inputs:
        place = _places(column, len(y))
        left = None if place is None else _unexplained_share(place, y)
        if left is not None and left < _UNEXPLAINED:
            share = f"{1 - left:.1%} of what there is to predict"
            what = f"column {column.name!r} alone predicts {target!r} ({share})"
            ask = "is it known before the target is? If not, leave it out"
            yield Finding("leak", f"{what}: {ask}", (column.name,))


def _places(column: _Column, rows: int) -> Ints | None:
    """[n] the number of each row's value, or of its bin; None if there are too many values for the rows."""
    bins = min(_BINS, rows // _PER_BIN)
    if column.values is None:
        return column.place + 1 if len(column.texts) < max(bins, 2) else None
    values = np.where(np.isnan(column.values), -np.inf, column.values)
    ascending = np.unique(values)
    if len(ascending) <= bins:
        return np.searchsorted(ascending, values).astype(np.int64)
    if bins < 2:
        return None
    cuts = np.unique(np.quantile(values[np.isfinite(values)], np.linspace(0, 1, bins + 1)[1:-1]))
    return np.searchsorted(cuts, values, side="right").astype(np.int64)


def _unexplained_share(place: Ints, y: npt.NDArray[Any]) -> float | None:
    """The share of errors, or of variance, that is left once the row's bin is known; None with too few errors."""
    if y.dtype.kind == "i":
        shape = place.max() + 1, y.max() + 1
        count = np.bincount(place * shape[1] + y, minlength=shape[0] * shape[1]).reshape(shape)
        errors = len(y) - count.sum(0).max()
        return float((len(y) - count.max(1).sum()) / errors) if errors >= _EVENTS else None
    values = y[:, 0].astype(np.float64)
    size = np.maximum(np.bincount(place), 1)
    means = np.bincount(place, values) / size
    return float(((values - means[place]) ** 2).sum() / ((values - values.mean()) ** 2).sum())


def _duplicates(encoded: Encoded) -> Iterator[Finding]:
    """Find rows that are equal in all inputs and the target, unless most rows of the table are."""
    # Adding 0 turns -0.0 into 0.0, so that equal rows have equal bytes.
    values = np.column_stack([encoded.x, encoded.y.reshape(len(encoded.y), -1).astype(np.float32)]) + np.float32(0)
    # 64-bit hashes: among a million different rows, two have the same hash with a probability of 1e-7.
    hashes = [hash(row.tobytes()) for row in values]
    _, number, count = np.unique(hashes, return_inverse=True, return_counts=True)
    number = number.reshape(-1)
    if len(count) < 0.5 * len(number):
        return
    is_test, owner = encoded.columns.is_test, np.unique(encoded.columns.client, return_inverse=True)[1].reshape(-1)
    first_owner = np.zeros(len(count), np.int64)
    first_owner[number] = owner
    several_owners = np.unique(number[owner != first_owner[number]])
    if at_others := int(count[several_owners].sum()):
        yield Finding("duplicates", f"{at_others} rows have an equal row at another client: is somebody in two tables?")
    if again := int(np.isin(number[is_test], number[~is_test]).sum()):
        yield Finding("duplicates", f"{again} test rows have an equal row in training: their figures are too good")


def _few(arrays: Encoded) -> Iterator[Finding]:
    """Find clients with too few test rows for meaningful metrics."""
    columns = arrays.columns
    ids = {id: arrays.y[rows[columns.is_test[rows]]] for id, rows in columns.rows.items()}
    if arrays.target.kind == "risk":
        few = sorted(id for id, y in ids.items() if min((y == 0).sum(), (y == 1).sum()) < _EVENTS)
        what = f"fewer than {_EVENTS} test rows with, or without, {arrays.target.classes[1]!r}"
    else:
        few = sorted(id for id, y in ids.items() if len(y) < _TESTS)
        what = f"fewer than {_TESTS} test rows"
    if few:
        text = f"{len(few)} of {len(ids)} clients have {what}: their own figures say little"
        yield Finding("few", text, tuple(few))


def _skew(arrays: Encoded) -> Iterator[Finding]:
    """Targets that differ between clients by more than chance."""
    classes = len(arrays.target.classes)
    skew = skew_of({id: arrays.y[rows] for id, rows in arrays.columns.rows.items()}, classes)
    if skew is not None and skew.matters:
        what = "how often each class occurs" if classes else "the size of the target"
        text = f"{what} differs between clients beyond chance (effect {skew.effect:.2f} of 1); furthest from all"
        yield Finding("skew", text, skew.apart)


# -- whether targets differ between clients by more than chance, and by how much -----------------------------------

# Differences with a smaller effect are ignored, even if they are significant.
_EFFECT = 0.1


class Skew(NamedTuple):
    """How much clients' targets differ.

    effect: 0 (alike) to 1; p: p-value of "all clients have the same distribution"; apart: the clients that differ most
    from the total, the furthest first.
    """

    effect: float
    p: float
    apart: tuple[str, ...]

    @property
    def matters(self) -> bool:
        """Whether the skew is significant (p < .001), with an effect of at least .1."""
        return self.p < _ALPHA and self.effect >= _EFFECT


def skew_of(targets: Mapping[str, npt.NDArray[Any]], classes: int) -> Skew | None:
    """Skew of each client's targets: labels below `classes`, or, if `classes` is 0, numbers [n, 1 or more]."""
    if classes:
        return of_classes({id: np.bincount(y, minlength=classes) for id, y in targets.items()})
    return of_numbers({id: y[:, 0] for id, y in targets.items()})


def of_classes(counts: Mapping[str, Any]) -> Skew | None:
    """Skew of classes from {client: rows of each class}: Cramer's V, and Pearson's chi-squared test.

    None with one client or one class. If classes are rare, p comes from 2,000 shuffles of the rows.

    >>> found = of_classes({"a": [90, 10], "b": [10, 90]})
    >>> round(found.effect, 2), found.matters
    (0.8, True)
    """
    ids = sorted(counts)
    table = np.array([counts[id] for id in ids], dtype=np.float64)
    table = table[:, table.sum(0) > 0]
    kept = table.sum(1) > 0
    ids, table = [id for id, keep in zip(ids, kept, strict=True) if keep], table[kept]
    if min(table.shape) < 2:
        return None
    tested = scipy.stats.chi2_contingency(table, correction=False)
    value, expected, freedom = float(tested.statistic), tested.expected_freq, tested.dof
    if expected.min() < 1:
        drawn = scipy.stats.MonteCarloMethod(n_resamples=2000, rng=np.random.default_rng(0))
        tested = scipy.stats.chi2_contingency(table.astype(np.int64), correction=False, method=drawn)
    away = ((table - expected) ** 2 / expected).sum(1) / table.sum(1)
    # Bias-corrected Cramer's V (Bergsma, 2013).
    total = table.sum()
    rows, columns = (side - (side - 1) ** 2 / (total - 1) for side in table.shape)
    effect = np.sqrt(max(0.0, value / total - freedom / (total - 1)) / max(min(rows, columns) - 1, 1e-9))
    return Skew(min(float(effect), 1.0), float(tested.pvalue), _furthest(ids, away))


def of_numbers(values: Mapping[str, Any]) -> Skew | None:
    """Skew of numbers from {client: its rows' targets}: correlation ratio of the ranks, and the Kruskal-Wallis test.

    None with one client, or if all numbers are equal.
    """
    samples = {id: np.asarray(some, dtype=np.float64) for id, some in sorted(values.items()) if len(some)}
    every = np.concatenate(list(samples.values())) if samples else np.zeros(0)
    if len(samples) < 2 or np.ptp(every) == 0 or len(every) <= len(samples):
        return None
    value, p = scipy.stats.kruskal(*samples.values())
    groups, total = len(samples), len(every)
    effect = np.sqrt(max(0.0, (float(value) - groups + 1) / (total - groups)))
    middle = float(np.median(every))
    return Skew(min(float(effect), 1.0), float(p), _furthest(
        list(samples), np.array([abs(float(np.median(some)) - middle) for some in samples.values()])
    ))  # fmt: skip


def _furthest(ids: list[str], distance: Any) -> tuple[str, ...]:
    return tuple(ids[place] for place in np.argsort(-distance, kind="stable")[:3])


# -- more checks -----------------------------------------------------------------------------------------------------


def _spelling(inputs: list[_Column], reading: Reading, arrays: Encoded) -> Iterator[Finding]:
    """Classes, clients and categories that differ in case or spaces only."""
    clients = sorted(arrays.columns.rows)
    lists = {"classes of the target": arrays.target.classes, f"clients in {reading.client!r}": clients}
    lists |= {f"values of column {column.name!r}": column.texts for column in inputs}
    for what, values in lists.items():
        alike: dict[str, list[str]] = {}
        for value in values:
            alike.setdefault("".join(value.casefold().split()), []).append(value)
        if twins := [group for group in alike.values() if len(group) > 1]:
            pairs = "; ".join(" and ".join(map(repr, group)) for group in twins[:4])
            yield Finding("spelling", f"{what} differ only in case or spaces: {pairs}: write each in one way")


def _persons(table: pa.Table, reading: Reading, arrays: Encoded, useless: set[str]) -> Iterator[Finding]:
    """Find columns of whole numbers or texts whose values each have a few rows at one client, in training and test."""
    is_test, rows = arrays.columns.is_test, arrays.columns.rows
    if reading.person is not None or reading.split not in (None, "random", "time") or len(rows) == 1:
        return
    client = np.unique(arrays.columns.client, return_inverse=True)[1].reshape(-1)
    no_persons = {reading.target, reading.client, reading.time, reading.group} | useless
    for name in [name for name in table.column_names if name not in no_persons]:
        kind = table.schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_temporal(kind) or pa.types.is_nested(kind)):
            yield from _person(_Column.of(table, name, "category"), is_test, client)


def _person(column: _Column, is_test: Flags, client: Ints) -> Iterator[Finding]:
    """Find out whether the column may name persons; is_test, client: of each row."""
    name, place, count = column.name, column.place, len(column.texts)
    if count < _PERSONS or not _FEW_ROWS[0] <= len(place) / count <= _FEW_ROWS[1]:
        return
    filled, repeated = place >= 0, column.often > 1
    both = np.intersect1d(place[filled & is_test], place[filled & ~is_test])
    if len(both) and repeated.sum() >= _PERSONS and _at_one_client(column, client)[repeated].mean() > _AT_ONE:
        what = f"{len(both)} of the {count} values of column {name!r} are in training and in test"
        advice = f"if it names persons, keep their rows together (person = {name!r})"
        yield Finding("person", f"{what}: {advice}", (name,))


def _at_one_client(column: _Column, client: Ints) -> Flags:
    """Whether each value of a category is in rows of one client only; client: the number of each row's client."""
    filled, count = column.place >= 0, len(column.texts)
    low, high = np.full(count, client.max()), np.zeros(count, np.int64)
    np.minimum.at(low, column.place[filled], client[filled])
    np.maximum.at(high, column.place[filled], client[filled])
    return np.asarray(low == high)


def _unlike_clients(inputs: list[_Column], arrays: Encoded) -> Iterator[Finding]:
    """Find codes for missing values, columns with other units or categories at one client, and sorted rows."""
    large = {id: rows for id, rows in sorted(arrays.columns.rows.items()) if len(rows) >= _COMPARED}
    for column in inputs:
        if column.values is None:
            yield from _codings(column, large) if len(column.texts) <= _CODINGS else ()
            continue
        yield from _sentinels(column.name, column.known)
        values = {id: own[~np.isnan(own)] for id, rows in large.items() for own in [column.values[rows]]}
        yield from _units(column.name, values)
        yield from _order(column.name, values)


def _codings(column: _Column, clients: Mapping[str, Ints]) -> Iterator[Finding]:
    """Find a client that has no category of the column in common with other clients."""
    held = {id: set(column.place[rows].tolist()) - {-1} for id, rows in clients.items()}
    for id, here in held.items():
        elsewhere = set[int]().union(*(held[other] for other in held if other != id))
        if here and elsewhere and here.isdisjoint(elsewhere):
            one, other = (", ".join(column.texts[at] for at in sorted(some)) for some in (here, elsewhere))
            text = f"has other values at {id} ({one}) than elsewhere ({other}): is it one coding?"
            yield Finding("codings", f"column {column.name!r} {text}", (column.name,))
            return


def _units(name: str, values: Mapping[str, Floats]) -> Iterator[Finding]:
    """Find clients whose numbers look like those of other clients times a factor."""
    samples = {id: some for id, some in values.items() if len(some)}
    middle, spread = np.array([(np.median(some), np.std(some)) for some in samples.values()]).reshape(-1, 2).T
    for row, id in enumerate(samples if len(samples) > 1 else ()):
        usual, deviation = (float(np.median(np.delete(of, row))) for of in (middle, spread))
        if min(middle[row] * usual, spread[row] * deviation) <= 0:
            continue
        times, wider = middle[row] / usual, spread[row] / deviation
        if max(times, 1 / times) >= _UNIT and max(times / wider, wider / times) <= 2:
            text = f"column {name!r} is {times:.3g} times as large at {id} as elsewhere: in another unit?"
            yield Finding("units", text, (name,))


def _order(name: str, values: Mapping[str, Floats]) -> Iterator[Finding]:
    """Find a column, such as a date, by which the rows are sorted, so that rows are not independent of each other."""
    spread = [some for some in values.values() if len(some) >= _COMPARED and np.ptp(some) > 0]
    rising = [some for some in spread if abs(scipy.stats.spearmanr(some, np.arange(len(some))).statistic) > _SORTED]
    if 2 * len(rising) > len(spread):
        what = f"the rows of {len(rising)} of {len(values)} clients are sorted by column {name!r}"
        how = "leave it out, name it as the column of times, or store the rows in a random order"
        yield Finding("order", f"{what}, so tests of groups see less: {how}", (name,))


def _sentinels(name: str, values: Floats) -> Iterator[Finding]:
    """Find values such as -999 that are frequent and far from all others."""
    for code in (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0):
        often, rest = int((values == code).sum()), values[values != code]
        if often < 3 or len(rest) < _COMPARED:
            continue
        if abs(code - np.median(rest)) > 5 * np.ptp(np.quantile(rest, [0.01, 0.99])):
            what = f"column {name!r} is {code:g} in {often} rows, far from all others: if nothing is known there"
            how = f'leave the cell empty, or in a CSV file data.missing = ["{code:g}"]'
            yield Finding("sentinel", f"{what}, {how}", (name,))


def _drift(table: pa.Table, reading: Reading, arrays: Encoded) -> Iterator[Finding]:
    """Find clients whose earlier and later rows differ, at level .001 over all clients (`fedkin.graph.find`)."""
    if reading.time is None:
        return
    from fedkin.graph import Plan, Spread, find, sign

    when = numbers(table, reading.time)
    large = {id: rows for id, rows in sorted(arrays.columns.rows.items()) if len(rows) >= _DRIFT}
    y = arrays.y if arrays.y.dtype.kind == "i" else arrays.y[:, 0]
    changed = []
    for id, rows in large.items():
        order = rows[np.argsort(when[rows], kind="stable")]
        # With more rows the test takes long, and finds differences that do not matter.
        order = order[:: -(-len(order) // _MOST)]
        halves = {"early": order[: len(order) // 2], "late": order[len(order) // 2 :]}
        plan = Plan.of(Spread.of(arrays.x[half], y[half]) for half in halves.values())
        signed = {name: sign(plan, arrays.x[half], y[half], ordered=False) for name, half in halves.items()}
        if find(signed, alpha=_ALPHA / len(large)).verdicts != ("same",):
            changed.append(id)
    if changed:
        text = (
            f"{len(changed)} of {len(large)} clients changed over time: their earlier and later rows can be told apart "
            "(1 in 1,000 by chance)"
        )
        yield Finding("drift", text, tuple(changed))
