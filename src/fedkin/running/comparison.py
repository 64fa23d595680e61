"""What comparisons and sweeps from Python return: results, tables and intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import Added
from fedkin.errors import ConfigError, nearest
from fedkin.records.files import flat
from fedkin.records.run import Result, framed
from fedkin.running.compared import differences, line, table
from fedkin.running.sweep import Swept, rows

__all__ = ["Comparison", "Sweep"]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Mapping[int, Result]]):
    """The results of a comparison by method and seed. folder, report: of its records, None without `out`."""

    results: Mapping[str, Mapping[int, Result]]
    folder: Path | None = None
    report: Path | None = None

    def __getitem__(self, method: str) -> Mapping[int, Result]:
        if method not in self.results:
            raise KeyError(f"{method!r}; {nearest(method, self.results)}")
        return self.results[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per method, as `fedkin.running.compared.table` says."""
        return table(self.results)

    @property
    def table(self) -> Any:
        """A line per method with mean and standard deviation (sd) of each figure over seeds, as compare.csv has it.

        A pandas DataFrame, or an Arrow table where pandas is not installed.
        """
        return _frame([line(row) for row in self.rows])

    def difference(self, method: str, other: str) -> Added:
        """Return how much better a method's clients are than another's with the same seeds: mean and interval.

        low and high are None for one seed. Raises ConfigError if they have no seed or client in common.
        """
        found = differences(self[method], self[other])
        if found is None:
            raise ConfigError(f"{method} and {other}: no client that was scored in both with the same seed")
        return found

    def intervals(self, against: str | None = None) -> dict[str, Added]:
        """Return `difference` of each method from one, by default from "local", or else from the first."""
        other = against if against is not None else "local" if "local" in self.results else next(iter(self.results))
        return {method: self.difference(method, other) for method in self.results if method != other}

    def __repr__(self) -> str:
        seeds = next(iter(self.results.values()))
        told = ", ".join(f"{row['method']} {_figure(row['mean'])}" for row in self.rows)
        return f"Comparison({self._metric}, {_counted(len(seeds), 'seed')}: {told})"

    def _repr_html_(self) -> str:
        return _html(self._metric, self.rows, self.folder, self.report)

    @property
    def _metric(self) -> str:
        return next(iter(next(iter(self.results.values())).values())).metric.title


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Sequence[Swept]):
    """The results of a sweep, one for each method and combination of settings. report: its page, None without `out`."""

    found: Sequence[Swept]
    folder: Path | None = None
    report: Path | None = None

    def __getitem__(self, at: Any) -> Any:
        return self.found[at]

    def __len__(self) -> int:
        return len(self.found)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per method and combination, as `fedkin.running.sweep.rows` says."""
        return rows(self.found)

    @property
    def table(self) -> Any:
        """A line per method and combination, as sweep.csv has it, in the form of `Comparison.table`."""
        return _frame([line(row) for row in self.rows])

    def __repr__(self) -> str:
        told = [f"{row['method']} {row['settings']} {_figure(row['mean'])}" for row in rows(self.found[:4])]
        results = self.found[0].results
        many = f"{_counted(len(results), 'seed')}, {_counted(len(self.found), 'combination')}"
        more = ", ..." if len(self.found) > 4 else ""
        return f"Sweep({next(iter(results.values())).metric.title}, {many}: {', '.join(told)}{more})"

    def _repr_html_(self) -> str:
        named = [{**row, "method": f"{row['method']}, {row['settings']}"} for row in self.rows]
        return _html(named[0]["metric"], named, self.folder, self.report)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _frame(lines: Sequence[Mapping[str, Any]]) -> Any:
    flattened = [flat(one) for one in lines]
    names = dict.fromkeys(name for one in flattened for name in one)
    return framed({name: [one.get(name) for one in flattened] for name in names})


def _figure(value: tuple[float, float] | None) -> str:
    return "-" if value is None else f"{value[0]:.3f}" + (f" ± {value[1]:.3f}" if value[1] else "")


def _html(metric: str, rows: Sequence[Mapping[str, Any]], folder: Path | None, report: Path | None) -> str:
    heads = {"mean": metric, "worst10": "worst 10 %", "gain": "gain over local"}
    shown_heads = [name for name in heads if any(row.get(name) for row in rows)]
    head = "".join(f"<th>{escape(heads[name])}</th>" for name in shown_heads)
    body = "".join(
        f"<tr><th>{escape(row['method'])}</th>"
        + "".join(f"<td>{_figure(row[name])}</td>" for name in shown_heads)
        + "</tr>"
        for row in rows
    )
    where = "".join(
        f"<p>{name}: {escape(str(path))}</p>" for name, path in (("records", folder), ("page", report)) if path
    )
    return f"<table><tr><th>method</th>{head}</tr>{body}</table>{where}"
