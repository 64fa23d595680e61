"""The records of a run: a folder that grows with each round and stays readable if the run is killed at any time.

    experiment.toml   the complete experiment
    federation.json   the task and, per client, sizes, labels and planted group
    rounds.jsonl      a line per round: accuracy, groups, traffic (nothing that depends on the machine)
    rounds.csv        the same as a table, with columns such as accuracy.mean; lists are replaced by their lengths
    clients.parquet   round, client, n, loss, accuracy (or the task's other figures)
    messages.parquet  round, from, to, phase, bytes, floats
    timing.jsonl      a line per round: seconds
    graphs/*.npz      the graph of each round in which it changed
    features/*        class means of features, anchors and heads at rounds that `run.embeddings_every` chooses
    mode.json         the mode of local training; data-root.json: the folder of the data sets
    checkpoint/       round-N.safetensors: the state after round N
    summary.json      written last: a run that has it is finished

Until the end, rows are in `parts/`, one set of files per checkpoint. A resumed run drops the parts that are
newer than its checkpoint.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedkin import codec
from fedkin.analysis.embeddings import Features
from fedkin.engines import Outcome, Score
from fedkin.errors import MethodError, RunError
from fedkin.records import metrics, reading, schema
from fedkin.records.files import read_json, write_bytes, write_json, write_with
from fedkin.records.tables import csv_text
from fedkin.tasks import Task

if TYPE_CHECKING:
    from fedkin.graph import Graph

__all__ = ["MESSAGES", "Records", "client_schema", "rounds_so_far", "rows_of"]

_CLIENTS = [("round", pa.int32()), ("client", pa.string()), ("n", pa.int32()), ("loss", pa.float64())]
MESSAGES = pa.schema(
    [("round", pa.int32()), ("from", pa.string()), ("to", pa.string()), ("phase", pa.string()), ("bytes", pa.int64()),
     ("floats", pa.int64())]
)  # fmt: skip
_TABLES = ("clients", "messages")
_LINES = ("rounds", "timing")


def client_schema(*figures: str) -> pa.Schema:
    """Return the columns of clients.parquet, with these figures of the task."""
    return pa.schema([*_CLIENTS, *((name, pa.float64()) for name in figures)])


def rounds_so_far(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of rounds.jsonl of an unfinished run, up to its last checkpoint."""
    parts = sorted((folder / "parts").glob("rounds-*.jsonl"))
    return [json.loads(line) for path in parts for line in path.read_text(encoding="utf-8").splitlines()]


class Records:
    """The rows of a run; they stay in memory only if `folder` is None."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.figures: tuple[str, ...] = ("accuracy",)
        self.rows: dict[str, list[Any]] = {name: [] for name in (*_TABLES, *_LINES)}
        self.flushed = dict.fromkeys(self.rows, 0)
        self.graphs: dict[int, Graph] = {}
        self.last_graph: str | None = None

    # -- while running ----------------------------------------------------------------------------------------

    def add(
        self, row: Mapping[str, Any], timing: Mapping[str, Any], outcome: Outcome, scores: Mapping[str, Score]
    ) -> None:
        """Add one round."""
        self.rows["rounds"].append(dict(row))
        self.rows["timing"].append(dict(timing))
        self.rows["messages"] += [tuple(message) for message in outcome.traffic]
        for id, score in scores.items():
            figures = score.figures or (metrics.value_of(score),) * len(self.figures)
            loss = score.loss if math.isfinite(score.loss) else None
            self.rows["clients"].append((outcome.round, id, score.n, loss, *figures))
        if outcome.graph is not None:
            digest = outcome.graph.digest()
            # In large federations, the groups stay the same for most of a run.
            if digest == self.last_graph:
                return
            self.last_graph = digest
            if self.folder is None:
                self.graphs[outcome.round] = outcome.graph
            else:
                write_with(self.folder / "graphs" / f"round-{outcome.round:06d}.npz", outcome.graph.save)

    def keep_features(self, features: Features | None) -> None:
        """Write the class means and heads of a round."""
        if self.folder is not None and features is not None:
            write_bytes(self.folder / "features" / f"round-{features.round:06d}.safetensors", features.to_bytes())

    def checkpoint(self, round: int, state: Mapping[str, Any]) -> None:
        """Write the new rows, then the state; after that the round is safe."""
        if self.folder is None:
            return
        parts = self.folder / "parts"
        for name, columns in self._schemas().items():
            new = self.rows[name][self.flushed[name] :]
            table = pa.table(
                [list(column) for column in zip(*new, strict=True)] or [[] for _ in columns], schema=columns
            )
            write_with(parts / f"{name}-{round:06d}.parquet", lambda file, table=table: pq.write_table(table, file))  # type: ignore[misc]
        for name in _LINES:
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows[name][self.flushed[name] :])
            write_bytes(parts / f"{name}-{round:06d}.jsonl", text.encode())
        self.flushed = {name: len(rows) for name, rows in self.rows.items()}
        kept = self.folder / "checkpoint" / f"round-{round:06d}.safetensors"
        write_with(kept, lambda file: codec.write({"round": round, "of": self._whose(), **state}, file))
        for old in kept.parent.glob("round-*.safetensors"):
            if old != kept:
                old.unlink()

    def finish(self) -> None:
        """Write the complete tables."""
        if self.folder is None:
            return
        for name, columns in self._schemas().items():
            _write_table(self.folder / f"{name}.parquet", self.rows[name], columns)
        for name in _LINES:
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows[name])
            write_bytes(self.folder / f"{name}.jsonl", text.encode())
        write_bytes(self.folder / "rounds.csv", csv_text(self.rows["rounds"]).encode())

    def tidy(self) -> None:
        """Drop the parts, after the complete tables are written."""
        if self.folder is not None:
            shutil.rmtree(self.folder / "parts", ignore_errors=True)
            for left in self.folder.rglob("*.part"):
                left.unlink()

    def describe(self, task: Task, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Write `federation.json`, or check that a run that is resumed began with the same samples.

        facts: a function that returns the facts of the clients. It reads samples, so it is called only for a folder.
        """
        self.figures = tuple(metric.name for metric in task.figures)
        if self.folder is None:
            return
        kept, now = self.folder / "federation.json", facts()
        if (
            kept.exists()
            and reading.checked(schema.Facts, read_json(kept), kept).get("fingerprint") != now["fingerprint"]
        ):
            raise RunError(
                f"{kept}: the clients or their samples are not those that this run began with; use another folder"
            )
        write_json(kept, now)

    def _schemas(self) -> dict[str, pa.Schema]:
        return {"clients": client_schema(*self.figures), "messages": MESSAGES}

    def keep_mode(self, mode: str) -> None:
        """Write the mode of local training, so that a resumed run uses the same mode."""
        if self.folder is not None:
            write_json(self.folder / "mode.json", mode)

    def kept_mode(self) -> str | None:
        """Return the mode that `keep_mode` wrote."""
        if self.folder is None or not (self.folder / "mode.json").exists():
            return None
        return str(read_json(self.folder / "mode.json"))

    # -- resuming ------------------------------------------------------------------------------------------------

    def resume(self) -> tuple[int, dict[str, Any]] | None:
        """Read the rows up to the newest checkpoint, and drop newer ones; returns (round, state), or None."""
        if self.folder is None:
            return None
        found = sorted((self.folder / "checkpoint").glob("round-*.safetensors"))
        if not found:
            shutil.rmtree(self.folder / "parts", ignore_errors=True)
            return None
        try:
            state = codec.read(found[-1])
            round, whose = int(state.pop("round")), state.pop("of", None)
            dict(state["engine"], **state["seconds"])
        except (MethodError, KeyError, TypeError, ValueError, OSError) as error:
            raise RunError(f"{found[-1]}: not a checkpoint ({error}); run it anew in another folder") from None
        if whose not in (None, self._whose()):  # None: an older version wrote checkpoints without this hash
            raise RunError(
                f"{found[-1]}: the checkpoint of another run: its settings are not those of "
                f"{self.folder / 'experiment.toml'}; put the run's own back, or run it anew in another folder"
            )
        self._read_parts(round)
        return round, state

    def _whose(self) -> str:
        """Return a hash of the settings, which identifies the checkpoints of this run."""
        assert self.folder is not None
        path = self.folder / "experiment.toml"
        settings = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()

    def _read_parts(self, round: int) -> None:
        assert self.folder is not None
        for path in sorted((self.folder / "parts").glob("*")):
            match = re.fullmatch(r"(\w+)-(\d+)\.(parquet|jsonl)", path.name)
            if match is None or match[1] not in self.rows or int(match[2]) > round:
                path.unlink()
            elif match[1] in _TABLES:
                self.rows[match[1]] += rows_of(path, self._schemas()[match[1]])
            else:
                self.rows[match[1]] += reading.lines_in(path, schema.Line if match[1] == "rounds" else schema.Spent)
        self.flushed = {name: len(rows) for name, rows in self.rows.items()}
        graphs = reading.files_in(self.folder / "graphs", "npz")
        for kept in (graphs, reading.files_in(self.folder / "features", "safetensors")):
            for number in [number for number in kept if number > round]:
                kept.pop(number).unlink()
        if graphs:
            from fedkin.graph import load_graph

            self.last_graph = load_graph(graphs[max(graphs)]).digest()


def _write_table(path: Path, rows: list[Any], columns: pa.Schema) -> None:
    table = pa.table([list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns], schema=columns)
    write_with(path, lambda file: pq.write_table(table, file))


def rows_of(path: Path, columns: pa.Schema) -> list[tuple[Any, ...]]:
    """Return the rows of a table that has at least these columns; raises RunError naming the file."""
    kinds = {
        field.name: "texts" if pa.types.is_string(field.type) else "numbers" if pa.types.is_floating(field.type)
        else "whole numbers" for field in columns
    }  # fmt: skip
    table = reading.table_in(path, kinds, [name for name, kind in kinds.items() if kind == "numbers"], more=True)
    return list(zip(*table.to_pydict().values(), strict=True))
