"""The records of a run: a folder that grows with each round and stays readable if the run is killed at any time.

    experiment.toml   the complete experiment
    federation.json   the task and, per client, sizes, labels and planted group
    rounds.jsonl      a line per round: accuracy, groups, traffic (nothing that depends on the machine)
    rounds.csv        the same as a table, with columns such as accuracy.mean; lists are replaced by their lengths
    clients.parquet   round, client, n, loss, accuracy (or the task's other figures)
    outcomes.parquet  each test sample in the last evaluation, see `outcomes.py`; not over a network
    messages.parquet  round, from, to, phase, bytes, floats, missing (why it does not count, or empty), reason
    timing.jsonl      a line per round: seconds
    graphs/*.npz      the graph, for each round in which it changed
    models/*          the models after the last round, unless run.models is "none" (see `models`)
    features/*        class means of features, anchors and heads at rounds that `run.embeddings_every` chooses
    data-root.json    the folder of the data sets
    checkpoint/       the state after the last round; until the end the newest two states, see `checkpoints.py`
    seal.json         hashes of these files (see `files.py`): of the experiment from the start, of the rest at the end
    summary.json      written last: a run that has it is finished

Until the end, rows are in `parts/`, one set of files per checkpoint. A resumed run drops the parts that are
newer than its checkpoint.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedkin.analysis.embeddings import Features
from fedkin.analysis.paired import Outcomes
from fedkin.codec import Params
from fedkin.engines import Outcome, Score
from fedkin.errors import RunError
from fedkin.folders import fsync_folder
from fedkin.records import files, metrics, reading
from fedkin.records.checkpoints import NEWEST, Checkpoints
from fedkin.records.models import ModelContext, keep_models
from fedkin.records.outcomes import FILE, write_outcomes
from fedkin.tasks import METRICS, Task

if TYPE_CHECKING:
    from fedkin.graph import Graph


_CLIENTS = [("round", pa.int32()), ("client", pa.string()), ("n", pa.int32()), ("loss", pa.float64())]
MESSAGES = pa.schema(
    [("round", pa.int32()), ("from", pa.string()), ("to", pa.string()), ("phase", pa.string()), ("bytes", pa.int64()),
     ("floats", pa.int64()), ("missing", pa.string()), ("reason", pa.string())]
)  # fmt: skip
_TABLES = ("clients", "messages")
_LINES = ("rounds", "timing")
_FEDERATION = "federation.json"


def client_schema(*figures: str) -> pa.Schema:
    """Return the columns of clients.parquet, with these figures of the task."""
    return pa.schema([*_CLIENTS, *((name, pa.float64()) for name in figures)])


def rounds_so_far(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of rounds.jsonl of an unfinished run, up to its last checkpoint."""
    parts = sorted((folder / "parts").glob("rounds-*.jsonl"))
    return [json.loads(line) for path in parts for line in path.read_text(encoding="utf-8").splitlines()]


def check_samples(folder: Path, fingerprint: str) -> None:
    """Raise RunError if a run began in this folder with clients or samples of another fingerprint."""
    kept = folder / _FEDERATION
    if kept.exists() and reading.record_in(kept, reading.Facts).fingerprint != fingerprint:
        raise RunError(
            f"{kept}: the clients or their samples are not those that this run began with, or this file is not as "
            "it was written; use another folder"
        )


class Records:
    """The rows of a run; they stay in memory only if `folder` is None."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.metric = METRICS["accuracy"]
        self.figures: tuple[str, ...] = ("accuracy",)
        self.facts: Mapping[str, Any] = {}  # facts of the clients, if there is a folder
        self.rows: dict[str, list[Any]] = {name: [] for name in (*_TABLES, *_LINES)}
        self.flushed = dict.fromkeys(self.rows, 0)  # numbers of rows in parts
        self.graphs: dict[int, Graph] = {}
        self.last_graph: str | None = None
        self.safe = 0  # the round of the newest checkpoint
        # Files of this run with their stamps, by their paths in the folder.
        self.sealed: dict[str, files.Stamp] = {}

    # -- beginning, or going on from a checkpoint ----------------------------------------------------------------------

    def begin(self, task: Task, facts: Callable[[], Mapping[str, Any]]) -> tuple[int, dict[str, Any]] | None:
        """Write `federation.json`, read the rows up to the newest good checkpoint, and drop newer rows.

        facts: a function that returns the facts of the clients. It reads samples, so it is called only for a folder.
        Returns (round, state), or None if no checkpoint was ever written, so that the run begins at round 0. Raises
        RunError if the samples are not those that the run began with, or if there were checkpoints and none is good.
        """
        self.metric, self.figures = task.metric, tuple(metric.name for metric in task.figures)
        if self.folder is None:
            return None
        now = facts()
        check_samples(self.folder, now["fingerprint"])
        self.describe(now)
        checkpoint = Checkpoints(self.folder).choose()
        if checkpoint is None:
            self._drop_after(0)
            return None
        self.sealed |= {
            name: stamp for name, stamp in checkpoint.seal.files.items() if not name.startswith("checkpoint/")
        }
        self.last_graph, self.safe = checkpoint.state.pop("graph"), checkpoint.round
        self._read_parts(checkpoint.round)
        self._drop_after(checkpoint.round)
        return checkpoint.round, checkpoint.state

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write `federation.json` with these facts of the clients, including clients that joined after the start."""
        if self.folder is not None:
            self.facts, self.sealed[_FEDERATION] = facts, files.write_json(self.folder / _FEDERATION, facts)

    def _read_parts(self, round: int) -> None:
        """Read the rows up to this round, and remove parts that are not under the checkpoint's seal."""
        assert self.folder is not None
        for path in sorted((self.folder / "parts").glob("*")):
            file = f"parts/{path.name}"
            match = re.fullmatch(r"(\w+)-(\d+)\.(parquet|jsonl)", path.name)
            if file not in self.sealed or match is None:
                if file != NEWEST:
                    path.unlink()
                continue
            rows = self._rows_in(path, match[1])
            if len(rows) != self.sealed[file].rows:
                raise RunError(f"{path}: {len(rows)} rows, written were {self.sealed[file].rows}; {reading.MEND}")
            self.rows[match[1]] += rows
        if [row["round"] for row in self.rows["rounds"]] != list(range(1, round + 1)):
            raise RunError(f"{self.folder / 'parts'}: rows of some rounds up to {round} are not there; {reading.MEND}")
        self.flushed = {name: len(rows) for name, rows in self.rows.items()}

    def _drop_after(self, round: int) -> None:
        """Remove graphs and features of later rounds; after round 0, parts, checkpoints and models too."""
        assert self.folder is not None
        for name in ("parts", "checkpoint", "models") if not round else ():
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name, kind in (("graphs", "npz"), ("features", "safetensors")):
            for number, path in reading.files_in(self.folder / name, kind).items():
                if number > round:
                    path.unlink()

    # -- while running -------------------------------------------------------------------------------------------------

    def add(
        self, row: Mapping[str, Any], timing: Mapping[str, Any], outcome: Outcome, scores: Mapping[str, Score]
    ) -> None:
        """Add one round."""
        self.rows["rounds"].append(dict(row))
        self.rows["timing"].append(dict(timing))
        self.rows["messages"] += [(*row[:6], str(row.missing or ""), row.reason) for row in outcome.traffic]
        for id, score in scores.items():
            figures = score.figures or (metrics.value_of(score),) * len(self.figures)
            loss = score.loss if math.isfinite(score.loss) else None
            self.rows["clients"].append((outcome.round, id, score.n, loss, *figures))
        # In large federations, the groups stay the same for most of a run.
        if outcome.graph is not None and (digest := outcome.graph.digest()) != self.last_graph:
            self.last_graph = digest
            if self.folder is None:
                self.graphs[outcome.round] = outcome.graph
            else:
                name = f"graphs/round-{outcome.round:06d}.npz"
                self.sealed[name] = files.write_with(self.folder / name, outcome.graph.save, sync=False)

    def keep_features(self, features: Features | None) -> None:
        """Write the class means and heads of a round."""
        if self.folder is not None and features is not None:
            name = f"features/round-{features.round:06d}.safetensors"
            self.sealed[name] = files.write_bytes(self.folder / name, features.to_bytes(), sync=False)

    def checkpoint(self, round: int, state: Mapping[str, Any]) -> None:
        """Write the new rows, then the state; then the round is safe. A safe round is not written again."""
        if self.folder is None or round == self.safe:
            return
        for name in self.rows:
            new, file = self.rows[name][self.flushed[name] :], f"parts/{name}-{round:06d}.{_ending(name)}"
            self.sealed[file] = self._write_rows(file, name, new)
        self.flushed = {name: len(rows) for name, rows in self.rows.items()}
        for parent in sorted({(self.folder / name).parent for name in self.sealed}):
            fsync_folder(parent)
        # A resumed run writes federation.json again.
        stamps = {name: stamp for name, stamp in self.sealed.items() if name != _FEDERATION}
        Checkpoints(self.folder).write(round, {"round": round, "graph": self.last_graph, **state}, stamps)
        self.safe = round

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, outcomes: Mapping[str, Outcomes]) -> None:
        """Write the complete tables, and the outcomes of single samples in the last evaluation."""
        if self.folder is None:
            return
        if (stamp := write_outcomes(self.folder, outcomes)) is not None:
            self.sealed[FILE] = stamp
        for name, rows in self.rows.items():
            file = f"{name}.{_ending(name)}"
            self.sealed[file] = self._write_rows(file, name, rows)
        text = files.csv_text(self.rows["rounds"]).encode()
        self.sealed["rounds.csv"] = files.write_bytes(self.folder / "rounds.csv", text)

    def keep_models(self, models: Mapping[str, Params], context: ModelContext, limit_mb: float) -> bool:
        """Write the clients' models (if within the limit) and their index; returns whether models are stored."""
        written = {} if self.folder is None else keep_models(self.folder, models, context, limit_mb)
        self.sealed |= written
        return len(written) > 1  # the index is written even without models

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write the seal of all files, then the summary; after that the run is finished."""
        if self.folder is not None:
            files.conclude(self.folder, self.sealed, summary)

    def all_graphs(self) -> Mapping[int, Graph | Path]:
        """The graphs or their files, by the round in which they changed."""
        return self.graphs if self.folder is None else reading.files_in(self.folder / "graphs", "npz")

    # -- rows in tables and files --------------------------------------------------------------------------------------

    def table(self, name: str, rows: list[Any] | None = None) -> pa.Table:
        """Return these rows of "clients" or "messages" as a table; None: all of them."""
        rows, columns = self.rows[name] if rows is None else rows, self._schemas()[name]
        return pa.table([list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns], schema=columns)

    def _write_rows(self, file: str, name: str, rows: list[Any]) -> files.Stamp:
        """Write rows of a table or lines into a file of the folder."""
        assert self.folder is not None
        if name in _LINES:
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            return files.write_bytes(self.folder / file, text.encode(), sync=False)._replace(rows=len(rows))
        table = self.table(name, rows)
        stamp = files.write_with(self.folder / file, lambda partial: pq.write_table(table, partial), sync=False)
        return stamp._replace(rows=len(rows))

    def _rows_in(self, path: Path, name: str) -> list[Any]:
        """Read a file with rows of a table or lines."""
        if name in _TABLES:
            return reading.rows_in(reading.table_of(path, self._schemas()[name]))
        return reading.lines_in(path, reading.RoundLine if name == "rounds" else reading.TimingLine)

    def _schemas(self) -> dict[str, pa.Schema]:
        return {"clients": client_schema(*self.figures), "messages": MESSAGES}


def _ending(name: str) -> str:
    return "parquet" if name in _TABLES else "jsonl"
