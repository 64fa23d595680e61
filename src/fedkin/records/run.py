"""A finished run: summary, tables, graphs and models, from memory or read back from its folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fedkin.analysis.intervals import LEVEL, Interval
from fedkin.analysis.paired import Difference, Outcomes, Verdict, counted_interval, figure_interval, verdicts
from fedkin.codec import Params
from fedkin.engines import Outcome, Score
from fedkin.engines.results import SERVER
from fedkin.errors import IN_PYTHON, ConfigError, GraphError, RunError, nearest
from fedkin.graph import Graph, load_graph
from fedkin.records import reading
from fedkin.records.files import RESULT, describe_state_folder, has_records, is_state, read_json
from fedkin.records.metrics import metric_of, value_of
from fedkin.records.models import INDEX, StoredModels
from fedkin.records.outcomes import read_outcomes
from fedkin.records.recorder import MESSAGES, client_schema
from fedkin.settings import flat
from fedkin.tasks import Metric

_LARGEST_WEIGHT = 1e100  # sums and distances of larger weights are infinite
_ROUNDING = 1e-9  # tolerance for shares in 0..1
_TABLES = ("last", "clients", "rounds", "messages")


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run.

    summary: the content of summary.json. rounds: a dict per round. client_table: an Arrow table with round, client, n,
    loss and the task's figures of each client in each evaluated round. message_table: round, from, to, phase, bytes,
    floats, and why a message is missing. scores: of the last evaluation, by client id. models: the final parameters of
    each client, without frozen ones; for a run with a folder they are read on use (empty if none were stored). unseen:
    ids of clients that never took part. graphs: graphs or their files, by the round in which they changed. federation:
    the facts of the clients (federation.json), empty for a run without a folder. outcomes: the outcome of each client's
    model on each of its test samples in the last evaluation, by client id; empty over a network, where outcomes stay
    with the participants.
    """

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    client_table: pa.Table
    message_table: pa.Table
    scores: Mapping[str, Score]
    outcome: Outcome | None = None
    models: Mapping[str, Params] = field(default_factory=dict)
    folder: Path | None = None
    unseen: tuple[str, ...] = ()
    graphs: Mapping[int, Graph | Path] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)

    # -- what ran ----------------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary["method"])

    @property
    def seed(self) -> int:
        """The seed of all randomness in the run."""
        return int(self.summary["seed"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment as a table; empty for a run without a folder."""
        path = None if self.folder is None else self.unchanged(self.folder / "experiment.toml")
        return reading.settings_in(path) if path is not None and path.is_file() else {}

    @property
    def label(self) -> str:
        """The method's name in its comparison, such as "mu=1" or "mu=1@self"; empty if it is the method's own name."""
        return str(self.settings.get("run", {}).get("label") or "")

    @cached_property
    def client_facts(self) -> dict[str, Mapping[str, Any]]:
        """The known facts of each client's data, by id: sizes, labels, planted group."""
        facts: Mapping[str, Mapping[str, Any]] = self.federation.get("clients", {})
        return {id: facts.get(id, {}) for id in sorted({*facts, *pc.unique(self.client_table["client"]).to_pylist()})}

    @cached_property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client; None if any client's group is unknown."""
        groups = {id: facts.get("group") for id, facts in self.client_facts.items()}
        if not groups or None in groups.values():
            return None
        return {id: str(group) for id, group in groups.items()}

    # -- figures -----------------------------------------------------------------------------------------------------

    @cached_property
    def metric(self) -> Metric:
        """The metric by which the clients are compared."""
        return metric_of(self.summary)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Statistics of the metric over the clients that take part, after the last round."""
        statistics: Mapping[str, Any] = self.summary[self.metric.name] or {}
        return statistics

    @property
    def value(self) -> float:
        """Mean over clients of the metric in the last round; nan if no client's value is known."""
        return float(self.figures.get("mean", math.nan))

    @property
    def accuracy(self) -> float:
        """Mean over clients of the test accuracy in the last round; nan without test samples, or for other metrics."""
        return float(self.summary.get("accuracy", {}).get("mean", math.nan))

    @cached_property
    def values(self) -> dict[str, float]:
        """The metric of each client that takes part, after the last evaluation, without unknown values."""
        values = {id: value_of(one) for id, one in sorted(self.scores.items()) if id not in self.unseen}
        return {id: value for id, value in values.items() if value is not None}

    @cached_property
    def values_by_round(self) -> dict[int, dict[str, float]]:
        """{evaluated round: {client id: the metric}}, also of unseen clients."""
        values: dict[int, dict[str, float]] = {}
        columns = self.client_table.select(["round", "client", self.metric.name]).to_pydict()
        for round, id, value in zip(*columns.values(), strict=True):
            if value is not None and math.isfinite(value):
                values.setdefault(round, {})[id] = value
        return values

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        """The further metrics (`run.metrics`) after the last round: {metric: {client id: value}}; empty without any."""
        return {name: dict(row["values"]) for name, row in (self.summary.get("metrics") or {}).items()}

    # -- tables ------------------------------------------------------------------------------------------------------

    @cached_property
    def clients(self) -> list[tuple[Any, ...]]:
        """The rows of `client_table` as tuples."""
        return reading.rows_in(self.client_table)

    @cached_property
    def messages(self) -> list[tuple[Any, ...]]:
        """The rows of `message_table` as tuples."""
        return reading.rows_in(self.message_table)

    @property
    def sent(self) -> int:
        """Bytes of all messages; a message between peers is counted once."""
        return int(pc.sum(self.message_table["bytes"]).as_py() or 0)

    @property
    def timing(self) -> list[dict[str, Any]]:
        """The seconds of each round; empty for a run without a folder."""
        path = None if self.folder is None else self.unchanged(self.folder / "timing.jsonl")
        return reading.lines_in(path, reading.TimingLine) if path is not None and path.is_file() else []

    @cached_property
    def features(self) -> dict[int, Path]:
        """The files of class means of features, by round; empty for a run without a folder."""
        return {} if self.folder is None else reading.files_in(self.folder / "features", "safetensors")

    def unchanged(self, path: Path) -> Path:
        """A file of this run; raises RunError if it is there, but not as it was written."""
        if self.folder is not None and path.exists():
            reading.check_unchanged(self.folder, path.relative_to(self.folder).as_posix())
        return path

    # -- graphs ------------------------------------------------------------------------------------------------------

    def graph_at(self, round: int) -> Graph:
        """The graph that changed in this round; raises RunError if its file is unreadable or does not fit this run."""
        graph = self.graphs[round]
        if isinstance(graph, Graph):
            return graph
        try:
            loaded = load_graph(self.unchanged(graph))
        except GraphError as error:
            raise RunError(str(error)) from None
        if strange := [id for id in loaded.ids if id not in self.client_facts]:
            raise RunError(f"{graph}: client {strange[0]!r} is in no other record of the run")
        if loaded.ids and max(loaded.weights.max(), -loaded.weights.min()) > _LARGEST_WEIGHT:
            raise RunError(f"{graph}: a weight beyond {_LARGEST_WEIGHT:g}, which no method records")
        return loaded

    @cached_property
    def graph(self) -> Graph | None:
        """The last graph between clients; None for a method without graphs."""
        return self.graph_at(max(self.graphs)) if self.graphs else None

    @property
    def groups(self) -> dict[str, int]:
        """The group of each client in the last graph, by client id; empty for a method without groups."""
        return dict(self.graph.groups or {}) if self.graph is not None else {}

    # -- one client, and two runs --------------------------------------------------------------------------------------

    def intervals(self, level: float = LEVEL) -> dict[str, Interval]:
        """Return the confidence interval of each client's metric, for clients where it can be computed.

        Over a network, the interval of an accuracy comes from its counts.
        """
        name = self.metric.name
        each = {id: figure_interval(name, one, level) for id, one in self.outcomes.items()}
        if not self.outcomes:
            for id, score in sorted(self.scores.items()):
                if (value := value_of(score)) is not None:
                    each[id] = counted_interval(name, value, score.n, level)
        return {id: interval for id, interval in each.items() if interval is not None}

    def gains(self, other: Result) -> dict[str, float]:
        """Return how much better the metric of each client that takes part is in this run; below 0: worse.

        other: a run on the same clients, mostly Local. Clients without a value in one of the runs are left out.
        """
        return {
            id: self.metric.better(value, other.values[id]) for id, value in self.values.items() if id in other.values
        }

    def difference(
        self, other: Result, level: float = LEVEL, correction: str = "none"
    ) -> dict[str, tuple[Difference, Verdict]]:
        """Return how much better each client is than in `other`, on the same test samples, with its verdict.

        Clients with outcomes in only one of the runs are left out. See `fedkin.analysis.paired.verdicts`. Raises
        ValueError if the runs' test samples differ.
        """
        pairs = {id: (one, other.outcomes[id]) for id, one in self.outcomes.items() if id in other.outcomes}
        return verdicts(self.metric.name, pairs, level, correction)

    # -- for people --------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"Result({self.method!r}, {facts})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts().items()
        )
        return f"<table><caption>{escape(self.method)}</caption>{rows}</table>"

    def _facts(self) -> dict[str, str]:
        """The most important facts for a reader."""
        group_count = (self.summary.get("groups") or {}).get("found")
        facts = {
            "clients": f"{self.summary['clients']:,}", "rounds": f"{self.summary['rounds']:,}", "seed": str(self.seed),
            self.metric.title: _short(self.figures.get("mean")), "worst 10 %": _short(self.figures.get("worst10")),
            "groups": "" if group_count is None else str(group_count), "MB sent": f"{self.sent / 1e6:,.1f}",
            "folder": "" if self.folder is None else str(self.folder),
        }  # fmt: skip
        return {name: value for name, value in facts.items() if value}

    def to_frame(self, what: Literal["last", "clients", "rounds", "messages"] = "last") -> Any:
        """A table of the run: a pandas DataFrame, or an Arrow table where pandas is not installed.

        last: a row per client, with its test samples, loss, figures and further metrics after the last round. clients:
        a row per client and evaluated round. rounds: a row per round, with columns such as "accuracy.mean".
        messages: a row per message. Raises ConfigError for another name.
        """
        if what not in _TABLES:
            raise ConfigError(f"to_frame: no table {what!r}; {nearest(what, _TABLES)}")
        if what == "rounds":
            return framed_rows(self.rounds)
        if what != "last":
            return framed((self.message_table if what == "messages" else self.client_table).to_pydict())
        columns = _last_rows(self.client_table).to_pydict()
        for name, values in self.metrics.items():
            columns[name] = [values.get(id) for id in columns["client"]]
        return framed(columns)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> Result:
    """Read a finished run; raises RunError naming the file that is missing, damaged or not from a run."""
    if not (folder / "summary.json").is_file():
        raise RunError(
            f"{folder}: no summary.json, so this run is not finished; --resume {folder}{IN_PYTHON} continues it"
        )
    # Check all files before reading: a single changed bit may crash the reader of a table.
    reading.check_unchanged(folder, *RESULT)
    summary = reading.summary_in(folder / "summary.json")
    metric = metric_of(summary)
    rounds = reading.lines_in(folder / "rounds.jsonl", reading.RoundLine)
    for number, row in enumerate(rounds, 1):
        reading.check_metric(row, metric, f"{folder / 'rounds.jsonl'}: line {number}")
    clients = reading.table_of(folder / "clients.parquet", client_schema(metric.name))
    _check_values(folder / "clients.parquet", clients, metric)
    facts = folder / "federation.json"
    federation = read_json(facts) if facts.is_file() else {}
    reading.checked(reading.Facts, federation, facts)
    unseen = sorted(
        id for id, facts_of_client in federation.get("clients", {}).items() if not facts_of_client.get("seen", True)
    )
    return Result(
        summary, rounds, clients, reading.table_of(folder / "messages.parquet", MESSAGES),
        _scores(summary, clients, metric), models=StoredModels(folder) if (folder / INDEX).exists() else {},
        folder=folder, unseen=tuple(unseen), graphs=reading.files_in(folder / "graphs", "npz"), federation=federation,
        outcomes=read_outcomes(folder, metric),
    )  # fmt: skip


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The run folders that these paths name: each path itself, or all finished runs directly inside it.

    For a folder without such runs, take the finished runs one level deeper, as in a sweep. Raises RunError if there are
    none either.
    """
    folders: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise RunError(f"{place}: no such run folder")
        for pattern in ("summary.json", "*/summary.json", "*/*/summary.json"):
            if inside := sorted(path.parent for path in place.glob(pattern)):
                break
        else:
            if is_state(place):
                raise RunError(describe_state_folder(place))
            raise RunError(
                f"{place}: no finished run in it (no summary.json); fedkin runs check {place} says how to continue"
            )
        folders += [folder for folder in inside if folder not in folders]
    return folders


def unfinished(places: Sequence[Path]) -> list[str]:
    """Names of the folders inside these paths whose runs have started but not finished."""
    folders = [path.parent for place in places for path in sorted(place.glob("*/experiment.toml"))]
    return [folder.name for folder in folders if has_records(folder) and not (folder / "summary.json").is_file()]


def _check_values(path: Path, table: pa.Table, metric: Metric) -> None:
    """Raise RunError for values that are impossible for this metric, and for a value without test samples."""
    columns = table.select(["round", "client", "n", metric.name]).to_pydict()
    for round, id, n, value in zip(*columns.values(), strict=True):
        if value is None or not math.isfinite(value):
            continue
        if metric.share and not -_ROUNDING <= value <= 1 + _ROUNDING:
            where = f"{path}: column {metric.name!r}: client {id!r} in round {round}"
            raise RunError(f"{where}: expected a share from 0 to 1, got {value}; {reading.MEND}")
        if n < 1:
            where = f"{path}: column 'n': client {id!r} in round {round}"
            raise RunError(f"{where}: expected 1 or more test samples, got {n}; {reading.MEND}")


def _last_rows(table: pa.Table) -> pa.Table:
    """The rows of the last evaluated round."""
    return table.filter(pc.equal(table["round"], pc.max(table["round"])))


def _scores(summary: Mapping[str, Any], table: pa.Table, metric: Metric) -> dict[str, Score]:
    """The scores of the last evaluation."""
    further = [scores["values"] for scores in (summary.get("metrics") or {}).values()]
    scores = {}
    for _, id, n, loss, *figures in reading.rows_in(_last_rows(table)):
        # An accuracy is stored as the number of samples that are right.
        right, kept = (round((figures[0] or 0.0) * n), ()) if metric.name == "accuracy" else (0, figures if n else ())
        own = tuple(values.get(id) for values in further)
        scores[id] = Score(n, math.nan if loss is None else loss, right, tuple(kept), further=own)
    return scores


def bytes_by_client(messages: Iterable[tuple[Any, ...]], ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return {client id: {"up": bytes sent, "down": bytes received}} of these messages."""
    total = {id: {"up": 0, "down": 0} for id in sorted(ids)}
    for _, sender, receiver, _, size, *_ in messages:
        for id, way in ((sender, "up"), (receiver, "down")):
            if id != SERVER:
                total[id][way] += size
    return total


# -- text --------------------------------------------------------------------------------------------------------------


def framed_rows(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a table, like `framed`, with each nested value in a column `a.b`."""
    lines = [flat(row) for row in rows]
    names = dict.fromkeys(name for line in lines for name in line)
    return framed({name: [line.get(name) for line in lines] for name in names})


def framed(columns: Mapping[str, list[Any]]) -> Any:
    """Return columns as a pandas DataFrame, or as an Arrow table where pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError:
        return pa.table(dict(columns))
    return pandas.DataFrame(columns)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
