"""Run folders as values: what the report needs of a finished run, read once and checked."""

from __future__ import annotations

import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedkin.errors import GraphError, RunError
from fedkin.graph import Graph, load_graph
from fedkin.running.files import read_json
from fedkin.running.metrics import metric_of
from fedkin.tasks import Metric

__all__ = ["Phase", "Run", "find_runs", "read_run", "unfinished"]

_SERVER = "server"


@dataclass(frozen=True)
class Phase:
    """What one phase of a method sent in one direction ("up", "down", "peer"), over all rounds.

    rounds: in how many of them; once: whether no client went through it twice, and it took place in fewer than half
    of the rounds.
    """

    name: str
    way: str
    messages: int
    bytes: int
    floats: int
    rounds: int
    once: bool


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    values: {evaluated round: {client id: its metric's value}}; graphs, features: {round: file}.
    """

    folder: Path
    summary: Mapping[str, Any]
    experiment: str
    federation: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    timing: Sequence[Mapping[str, Any]]
    values: Mapping[int, Mapping[str, float]]
    phases: Sequence[Phase]
    graphs: Mapping[int, Path]
    features: Mapping[int, Path]

    @property
    def method(self) -> str:
        """The method's name, as in its experiment."""
        return str(self.summary["method"])

    @property
    def seed(self) -> int:
        """The seed of everything random in the run."""
        return int(self.summary["seed"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment as a table; empty when its file is not there."""
        return tomllib.loads(self.experiment)

    @cached_property
    def clients(self) -> dict[str, Mapping[str, Any]]:
        """What is known of each client's data, by id; ids alone when the run recorded no federation."""
        known: Mapping[str, Mapping[str, Any]] = self.federation.get("clients", {})
        seen = {id for scores in self.values.values() for id in scores}
        return {id: known.get(id, {}) for id in sorted(seen | set(known))}

    @cached_property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client, or None when any client's is unknown."""
        groups = {id: facts.get("group") for id, facts in self.clients.items()}
        known = {id: str(group) for id, group in groups.items() if group is not None}
        return known if known and len(known) == len(groups) else None

    @property
    def sent(self) -> int:
        """Bytes of all messages; one between peers travels once."""
        return sum(phase.bytes for phase in self.phases)

    def graph(self, round: int) -> Graph:
        """The graph of a round; raises RunError when it cannot be read or names a client the run lacks."""
        try:
            graph = load_graph(self.graphs[round])
        except GraphError as error:
            raise RunError(str(error)) from None
        strange = [id for id in graph.ids if id not in self.clients]
        if strange:
            raise RunError(f"{self.graphs[round]}: client {strange[0]!r} is in no other record of the run")
        return graph

    @property
    def metric(self) -> Metric:
        """By what its clients are compared."""
        return metric_of(self.summary)

    @property
    def figures(self) -> Mapping[str, Any]:
        """The summary's statistics over the clients that take part."""
        found: Mapping[str, Any] = self.summary[self.metric.name]
        return found

    @cached_property
    def unseen(self) -> set[str]:
        """Ids of clients that never take part."""
        return {id for id, facts in self.clients.items() if not facts.get("seen", True)}

    @property
    def last_values(self) -> Mapping[str, float]:
        """The metric by client at the last evaluated round, of the clients that take part."""
        last = self.values[max(self.values)] if self.values else {}
        return {id: value for id, value in last.items() if id not in self.unseen}


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The run folders that these paths name: each itself, or all finished runs directly inside it.

    Raises RunError for a path that is neither.
    """
    found: list[Path] = []
    for place in places:
        if (place / "summary.json").is_file():
            inside = [place]
        elif place.is_dir():
            inside = sorted(path.parent for path in place.glob("*/summary.json"))
        else:
            raise RunError(f"{place}: no such run folder")
        if not inside:
            raise RunError(f"{place}: no finished run in it (no summary.json); fedkin run --resume goes on with one")
        found += [folder for folder in inside if folder not in found]
    return found


def unfinished(places: Sequence[Path]) -> list[str]:
    """Names of the run folders inside these paths that have begun but not finished."""
    begun = [path.parent for place in places for path in sorted(place.glob("*/experiment.toml"))]
    return [folder.name for folder in begun if not (folder / "summary.json").is_file()]


def read_run(folder: Path) -> Run:
    """Read a finished run; raises RunError naming what is missing or unreadable."""
    if not (folder / "summary.json").is_file():
        raise RunError(f"{folder}: no summary.json, so this is no finished run; --resume {folder} goes on with it")
    summary = read_json(folder / "summary.json")
    missing = [name for name in ("method", "seed", "rounds", metric_of(summary).name, "bytes") if name not in summary]
    if missing:
        raise RunError(f"{folder / 'summary.json'}: no {', '.join(missing)} in it, so this is no run of fedkin")
    federation = folder / "federation.json"
    experiment = folder / "experiment.toml"
    run = Run(
        folder=folder,
        summary=summary,
        experiment=experiment.read_text(encoding="utf-8") if experiment.is_file() else "",
        federation=read_json(federation) if federation.is_file() else {},
        rounds=_lines(folder / "rounds.jsonl"),
        timing=_lines(folder / "timing.jsonl") if (folder / "timing.jsonl").is_file() else [],
        values=_values(folder / "clients.parquet", metric_of(summary).name),
        phases=_phases(folder / "messages.parquet", int(summary["rounds"])),
        graphs=_by_round(folder / "graphs", "npz"),
        features=_by_round(folder / "features", "safetensors"),
    )
    try:
        tomllib.loads(run.experiment)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{experiment}: not TOML: {error}") from None
    return run


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as a line of JSON per round ({error})") from None


def _table(path: Path, names: Sequence[str]) -> Any:
    try:
        return pq.read_table(path.absolute(), columns=list(names)).select(list(names))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{path}: not readable as the table of a run ({first})") from None


def _values(path: Path, metric: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = defaultdict(dict)
    columns = _table(path, ("round", "client", metric)).to_pydict().values()
    for round, id, value in zip(*columns, strict=True):
        if value is not None and math.isfinite(value):
            found[round][id] = value
    return dict(found)


def _by_round(folder: Path, kind: str) -> dict[int, Path]:
    return {int(path.stem.removeprefix("round-")): path for path in sorted(folder.glob(f"round-*.{kind}"))}


def _phases(path: Path, rounds: int) -> list[Phase]:
    """Phases and ways in the order in which they first occur."""
    table = _table(path, ("round", "from", "to", "phase", "bytes", "floats"))
    for column in ("from", "to"):
        table = table.append_column(f"{column}_server", pc.equal(table.column(column), _SERVER))
    keys = ["phase", "from_server", "to_server"]
    # One thread keeps the order of first occurrence.
    figures = [("bytes", "count"), ("bytes", "sum"), ("floats", "sum"), ("round", "count_distinct")]
    total = table.group_by(keys, use_threads=False).aggregate(figures).to_pylist()
    # Who sent to whom in how many rounds; more than one is what makes a phase a repeated one.
    pairs = table.group_by([*keys, "from", "to"]).aggregate([("round", "count_distinct")])
    most = pairs.group_by(keys).aggregate([("round_count_distinct", "max")]).to_pylist()
    often = {tuple(row[key] for key in keys): row["round_count_distinct_max"] for row in most}
    return [
        Phase(
            row["phase"], "down" if row["from_server"] else "up" if row["to_server"] else "peer",
            row["bytes_count"], row["bytes_sum"], row["floats_sum"], row["round_count_distinct"],
            once=often[tuple(row[key] for key in keys)] == 1 and 2 * row["round_count_distinct"] < rounds,
        )
        for row in total
    ]  # fmt: skip
