"""Run folders as values: everything the report needs of a finished run, read once and checked."""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from fedkin.analysis.paired import Outcomes
from fedkin.errors import GraphError, RunError
from fedkin.graph import Graph, load_graph
from fedkin.records import reading
from fedkin.records.files import read_json
from fedkin.records.folder import is_state, told_state
from fedkin.records.metrics import metric_of
from fedkin.records.outcomes import read_outcomes
from fedkin.tasks import Metric

__all__ = ["Phase", "Run", "find_runs", "read_run", "unfinished"]

_SERVER = "server"
_NETWORKED = ("network", "peer")  # engines
_LARGEST = 1e100
_NOISE = 1e-9  # rounding error of shares that sum to 1


@dataclass(frozen=True)
class Phase:
    """The messages of one phase of a method in one direction ("up", "down", "peer"), over all rounds.

    rounds: the number of rounds with such messages; once: whether no client went through the phase twice, and it
    occurred in fewer than half of the rounds.
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

    values: {evaluated round: {client id: its metric's value}}; tested: {client id: test samples in the last of them};
    graphs, features: {round: file}.
    """

    folder: Path
    summary: Mapping[str, Any]
    experiment: str
    federation: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    timing: Sequence[Mapping[str, Any]]
    values: Mapping[int, Mapping[str, float]]
    tested: Mapping[str, int]
    phases: Sequence[Phase]
    graphs: Mapping[int, Path]
    features: Mapping[int, Path]

    @property
    def method(self) -> str:
        """The method's name, as in its experiment file."""
        return str(self.summary["method"])

    @cached_property
    def label(self) -> str:
        """What a comparison called the method, if not by its name; of a control with "@" and its name."""
        return str(self.settings.get("run", {}).get("label") or "")

    @property
    def seed(self) -> int:
        """The seed of all randomness in the run."""
        return int(self.summary["seed"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment as a table; empty if its file is missing."""
        return tomllib.loads(self.experiment)

    @cached_property
    def clients(self) -> dict[str, Mapping[str, Any]]:
        """The known facts of each client's data, by id; ids alone if the run recorded no federation."""
        known: Mapping[str, Mapping[str, Any]] = self.federation.get("clients", {})
        seen = {id for scores in self.values.values() for id in scores}
        return {id: known.get(id, {}) for id in sorted(seen | set(known))}

    @cached_property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client, or None if any client's group is unknown."""
        groups = {id: facts.get("group") for id, facts in self.clients.items()}
        known = {id: str(group) for id, group in groups.items() if group is not None}
        return known if known and len(known) == len(groups) else None

    @property
    def sent(self) -> int:
        """Bytes of all messages; a message between peers is counted once."""
        return sum(phase.bytes for phase in self.phases)

    def graph(self, round: int) -> Graph:
        """The graph of a round; raises RunError if it cannot be read, or is of no run of these clients."""
        try:
            graph = load_graph(self.graphs[round])
        except GraphError as error:
            raise RunError(str(error)) from None
        strange = [id for id in graph.ids if id not in self.clients]
        if strange:
            raise RunError(f"{self.graphs[round]}: client {strange[0]!r} is in no other record of the run")
        # Sums and distances of such weights are infinite.
        if graph.ids and max(graph.weights.max(), -graph.weights.min()) > _LARGEST:
            raise RunError(f"{self.graphs[round]}: a weight beyond {_LARGEST:g}, which no method records")
        return graph

    @property
    def metric(self) -> Metric:
        """The metric by which its clients are compared."""
        return metric_of(self.summary)

    @property
    def figures(self) -> Mapping[str, Any]:
        """The summary's statistics over the participating clients."""
        found: Mapping[str, Any] = self.summary[self.metric.name]
        return found

    @cached_property
    def unseen(self) -> set[str]:
        """Ids of clients that never take part."""
        return {id for id, facts in self.clients.items() if not facts.get("seen", True)}

    @property
    def last_values(self) -> Mapping[str, float]:
        """The metric by client at the last evaluated round, for the participating clients."""
        last = self.values[max(self.values)] if self.values else {}
        return {id: value for id, value in last.items() if id not in self.unseen}

    @property
    def counts_alone(self) -> str:
        """Why the outcomes of single test samples are not known; empty if they are."""
        if self.outcomes:
            return ""
        networked = self.summary.get("engine") in _NETWORKED
        return (
            "no per-sample outcomes leave a client over a network" if networked else "no per-sample outcomes were kept"
        )

    @cached_property
    def outcomes(self) -> dict[str, Outcomes]:
        """The last outcomes of the participating clients' test samples, by client; empty if the run kept none."""
        return {id: one for id, one in read_outcomes(self.folder, self.metric).items() if id not in self.unseen}


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The run folders that these paths name: each path itself, or all finished runs directly inside it.

    A folder without such runs stands for those inside its folders, as a sweep has them. Raises RunError for a path that
    is neither.
    """
    found: list[Path] = []
    for place in places:
        if (place / "summary.json").is_file():
            inside = [place]
        elif place.is_dir():
            found_in = place.glob("*/summary.json"), place.glob("*/*/summary.json")
            inside = next(filter(None, (sorted(path.parent for path in paths) for paths in found_in)), [])
        else:
            raise RunError(f"{place}: no such run folder")
        if not inside and is_state(place):
            raise RunError(told_state(place))
        if not inside:
            raise RunError(f"{place}: no finished run in it (no summary.json); fedkin run --resume goes on with one")
        found += [folder for folder in inside if folder not in found]
    return found


def unfinished(places: Sequence[Path]) -> list[str]:
    """Names of the run folders inside these paths that have started but not finished."""
    begun = [path.parent for place in places for path in sorted(place.glob("*/experiment.toml"))]
    return [folder.name for folder in begun if not (folder / "summary.json").is_file()]


def read_run(folder: Path) -> Run:
    """Read a finished run; raises RunError naming the file that is missing, unreadable or not from a run."""
    if not (folder / "summary.json").is_file():
        raise RunError(f"{folder}: no summary.json, so this is no finished run; --resume {folder} goes on with it")
    summary = reading.summary_in(folder / "summary.json")
    metric = metric_of(summary)
    federation, timing = folder / "federation.json", folder / "timing.jsonl"
    rounds = reading.lines_in(folder / "rounds.jsonl", reading.Line)
    for number, row in enumerate(rounds, 1):
        reading.judged(row, metric, f"{folder / 'rounds.jsonl'}: line {number}")
    values, tested = _values(folder / "clients.parquet", metric)
    return Run(
        folder=folder,
        summary=summary,
        experiment=_experiment(folder / "experiment.toml"),
        federation=reading.checked(reading.Facts, read_json(federation), federation) if federation.is_file() else {},
        rounds=rounds,
        timing=reading.lines_in(timing, reading.Spent) if timing.is_file() else [],
        values=values,
        tested=tested,
        phases=_phases(folder / "messages.parquet", summary["rounds"]),
        graphs=reading.files_in(folder / "graphs", "npz"),
        features=reading.files_in(folder / "features", "safetensors"),
    )


def _experiment(path: Path) -> str:
    """The experiment's text, with checked settings; empty for older runs."""
    if not path.is_file():
        return ""
    reading.settings_in(path)
    return path.read_text(encoding="utf-8")


def _values(path: Path, metric: Metric) -> tuple[dict[int, dict[str, float]], dict[str, int]]:
    """Values by round and client, and the number of test samples of each client that has one in the last round."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    columns = {"round": "whole numbers", "client": "texts", "n": "whole numbers", metric.name: "numbers"}
    table = reading.table_in(path, columns, [metric.name])
    for round, id, n, value in zip(*table.to_pydict().values(), strict=True):
        if value is None or not math.isfinite(value):
            continue
        if metric.share and not -_NOISE <= value <= 1 + _NOISE:
            where = f"{path}: column {metric.name!r}: client {id!r} in round {round}"
            raise RunError(f"{where}: expected a share from 0 to 1, got {value}; {reading.MEND}")
        if n < 1:
            where = f"{path}: column 'n': client {id!r} in round {round}"
            raise RunError(f"{where}: expected 1 or more test samples, got {n}; {reading.MEND}")
        found[round][id], counts[round][id] = value, n
    return dict(found), counts[max(found)] if found else {}


def _phases(path: Path, rounds: int) -> list[Phase]:
    """Phases and ways in the order in which they first occur."""
    texts, numbers = dict.fromkeys(("from", "to", "phase"), "texts"), ("round", "bytes", "floats")
    table = reading.table_in(path, {**texts, **dict.fromkeys(numbers, "whole numbers")})
    # What was never sent has no bytes.
    table = table.filter(pc.greater(table.column("bytes"), 0))
    for column in ("from", "to"):
        table = table.append_column(f"{column}_server", pc.equal(table.column(column), _SERVER))
    keys = ["phase", "from_server", "to_server"]
    # A single thread keeps the order of first occurrence.
    figures = [("bytes", "count"), ("bytes", "sum"), ("floats", "sum"), ("round", "count_distinct")]
    total = table.group_by(keys, use_threads=False).aggregate(figures).to_pylist()
    # Number of rounds for each sender and receiver; more than one makes a phase a repeated one.
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
