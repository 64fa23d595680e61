"""Trackers: what they hear, settings, trackers that fail, and the table of rounds."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import fedkin
from fedkin.errors import ConfigError
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.running.trackers import TRACKERS, figures_of, totals_of
from support import small_federation
from tiny import TABLE, CutAt, cut

PLAN = {"lr": 0.1, "local_steps": 2, "batch_size": 8}


class Heard:
    """A tracker that keeps what it hears."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, dict[str, Any]]] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ended: list[Any] = []

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        self.begun.append((name, done, dict(settings)))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self.rounds.append((round, dict(figures)))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self.ended.append(summary)


def tracked(*names: str, **changes: Any) -> Experiment:
    return Experiment.of(TABLE).with_changes(**{"run.trackers": list(names)} | changes)


def cut_and_resumed(experiment: Experiment, folder: Path, round: int = 5) -> Result:
    """A run that broke off in `round`, past the checkpoint before it, and was resumed."""
    cut(experiment, folder, round)
    return run_experiment(experiment, Path(), folder)


def expected(result: Result) -> dict[str, list[tuple[int, float]]]:
    """{figure: [(round, value)]} straight from the rows."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in result.rounds:
        for name, value in figures_of(row).items():
            found.setdefault(name, []).append((row["round"], value))
    for name, value in totals_of(result.summary).items():
        found[name] = [(result.summary["rounds"], value)]
    return found


# -- what they hear ---------------------------------------------------------------------------------------------


def test_a_tracker_of_ones_own_hears_the_whole_run() -> None:
    heard = Heard()
    result = fedkin.run("sfmtl-graph", small_federation(), rounds=3, seed=2, training=PLAN, trackers=[heard])
    ((name, done, settings),) = heard.begun
    assert (name, done) == ("small-sfmtl-graph-seed2", 0)
    assert settings["method.name"] == "sfmtl-graph"
    assert settings["method.graph.sparsify"]
    assert (settings["training.lr"], settings["run.seed"], settings["clients"]) == (0.1, 2, 6)
    assert heard.rounds == [(row["round"], figures_of(row)) for row in result.rounds]
    assert heard.ended == [result.summary]
    assert fedkin.run("sfmtl-graph", small_federation(), rounds=3, seed=2, training=PLAN).rounds == result.rounds


def test_figures_that_are_known_are_told_and_others_are_left_out() -> None:
    accuracy = {"mean": 0.5, "worst10": 0.25, "loss": 2.5, "clients": 3}
    row: dict[str, Any] = {
        "round": 1, "accuracy": accuracy, "groups": {"found": 2, "ari": 0.75}, "bytes": {"up": 1, "down": 2},
    }  # fmt: skip
    assert figures_of(row) == {
        "accuracy/mean": 0.5, "accuracy/worst10": 0.25, "loss": 2.5, "groups/found": 2.0, "groups/ari": 0.75,
        "bytes/up": 1.0, "bytes/down": 2.0,
    }  # fmt: skip
    row = {
        "round": 2, "squared_error": {"mean": 0.5, "worst10": float("nan"), "loss": None, "clients": 3}, "groups": {},
        "bytes": {"up": 8, "down": 0}, "unseen": {"mean": 0.75}, "gap": -0.25,
        "figures": {"entropy": 1.5, "note": "text", "weights": {"a": 0.5}},
    }  # fmt: skip
    assert figures_of(row) == {
        "squared_error/mean": 0.5, "unseen/mean": 0.75, "gap": -0.25, "bytes/up": 8.0, "bytes/down": 0.0,
        "method/entropy": 1.5, "method/weights.a": 0.5,
    }  # fmt: skip
    not_evaluated = {"round": 1, "accuracy": None, "groups": {}, "bytes": {"up": 1, "down": 2}}
    assert figures_of(not_evaluated) == {"bytes/up": 1.0, "bytes/down": 2.0}


def test_a_run_that_breaks_off_tells_its_trackers_and_a_resumed_one_how_far_it_was(tmp_path: Path) -> None:
    heard = Heard()
    said: dict[str, Any] = {"rounds": 5, "training": PLAN, "settings": {"checkpoint_every": 2}, "out": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), trackers=[heard], watcher=CutAt(3), **said)
    result = fedkin.run("local", small_federation(), trackers=[heard], **said)
    assert heard.ended == [None, result.summary]
    assert [done for _, done, _ in heard.begun] == [0, 2]
    assert [round for round, _ in heard.rounds] == [1, 2, 3, 3, 4, 5]
    assert heard.rounds[2] == heard.rounds[3]


# -- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs {name} .*: pip install 'fedkin\[{name}\]'"):
        run_experiment(tracked(name), Path(), tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"fedkin\[{name}\]"):
        fedkin.run("local", small_federation(), rounds=1, out=tmp_path / "run", trackers=[name])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["tensorbord"], r"run\.trackers: no 'tensorbord'; did you mean 'tensorboard'\?"),
        ("wandb,wandb", r"run\.trackers: 'wandb' is there twice"),
        (3, r"run\.trackers: "),
    ],
)
def test_names_are_checked(given: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Experiment.of(TABLE).with_changes(**{"run.trackers": given})


def test_objects_are_checked() -> None:
    for wrong in (3, Heard, "tensorbord"):
        with pytest.raises(ConfigError, match="trackers: "):
            fedkin.run("local", small_federation(), rounds=1, trackers=[wrong])  # type: ignore[list-item]


def test_any_object_tracks_even_one_without_a_hash() -> None:
    @dataclass
    class Kept(Heard):
        place: str = "here"

        def __post_init__(self) -> None:
            super().__init__()

    one, other = Kept(), Kept()
    assert one == other
    with pytest.raises(TypeError):
        hash(one)
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, trackers=[one, other, one])
    assert [[round for round, _ in heard.rounds] for heard in (one, other)] == [[1], [1]]


@pytest.mark.parametrize("when", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_warned_of_once_and_ends_no_run(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound, failing = Heard(), Heard(), Mock(side_effect=OSError("no space left"))
    monkeypatch.setattr(broken, when, failing)
    with pytest.warns(RuntimeWarning) as caught:
        result = fedkin.run("local", small_federation(), rounds=3, training=PLAN, trackers=[broken, sound])
    (warning,) = caught
    assert str(warning.message) == "tracker Heard: OSError: no space left; the run continues without it"
    assert failing.call_count == 1
    assert len(result.rounds) == len(sound.rounds) == 3
    assert sound.ended == [result.summary]


# -- rounds.csv -----------------------------------------------------------------------------------------------------


def test_rounds_as_a_table(tmp_path: Path) -> None:
    experiment = tracked(**{"run.evaluate_every": 2, "training.rounds": 5})
    result = run_experiment(experiment, Path(), tmp_path / "run")
    with (tmp_path / "run" / "rounds.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    kept = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == len(kept) == len(result.rounds) == 5
    for line, row in zip(lines, kept, strict=True):
        assert (int(line["round"]), int(line["sampled"])) == (row["round"], len(row["sampled"]))
        assert (int(line["bytes.up"]), float(line["groups.ari"])) == (row["bytes"]["up"], row["groups"]["ari"])
        assert line["accuracy.mean"] == ("" if row["accuracy"] is None else str(row["accuracy"]["mean"]))
    assert {line["accuracy.mean"] == "" for line in lines} == {True, False}


# -- what TensorBoard's own reader finds, also of runs that were cut -------------------------------------------------


def read_back(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], str]:
    """Scalars by tag, and the settings, as TensorBoard's reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    scalars = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    (text,) = reader.Tensors("settings/text_summary")
    return scalars, text.tensor_proto.string_val[0].decode()


def assert_same(found: Mapping[str, list[tuple[int, float]]], result: Result) -> None:
    wanted = expected(result)
    assert found.keys() == wanted.keys()
    for tag, points in wanted.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in points], rel=1e-6), tag


@pytest.mark.slow
@pytest.mark.parametrize("round", [1, 5])
def test_event_files_hold_every_figure_of_a_cut_run_once(tmp_path: Path, round: int) -> None:
    result = cut_and_resumed(tracked("tensorboard"), tmp_path / "run", round)
    scalars, settings = read_back(tmp_path / "run")
    assert_same(scalars, result)
    assert len(scalars["accuracy/mean"]) == 7
    assert "| method.lam | 0.5 |" in settings
    assert "| data.source | digits |" in settings


@pytest.mark.slow
def test_a_killed_run_has_lost_no_round(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom running.test_trackers import CutAt, run_experiment, tracked\n"
        "run_experiment(tracked('tensorboard'), Path(), Path(sys.argv[2]), watcher=CutAt(5, 'kill'))\n"
    )
    words = [sys.executable, "-c", code, str(Path(__file__).parents[1]), str(tmp_path / "run")]
    ended = subprocess.run(words, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    result = run_experiment(tracked("tensorboard"), Path(), tmp_path / "run")
    assert_same(read_back(tmp_path / "run")[0], result)


def test_tensorboard_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"'tensorboard' writes into the run's folder: .*out="):
        fedkin.run("local", small_federation(), rounds=1, trackers=["tensorboard"])


# -- mLflow and Weights & Biases, against stand-ins that refuse, buffer and lose what the packages do ----------------


class Store:
    """What a tracking server would hold: parameters and metrics of runs."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.uris: list[str | None] = []
        self.away = False

    def asked(self) -> None:
        if self.away:
            raise OSError("connection refused")

    def run(self, id: str) -> dict[str, Any]:
        self.asked()
        return self.runs[id]


class FakeMlflowClient:
    """A client that keeps what it is given in its store."""

    store: Store

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.store.uris.append(tracking_uri)
        self.uri = str(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        self.store.asked()
        id = self.store.experiments.get(name)
        return None if id is None else SimpleNamespace(experiment_id=id)

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        assert name not in self.store.experiments
        self.store.experiments[name] = str(len(self.store.experiments))
        return self.store.experiments[name]

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        id = f"run{len(self.store.runs)}"
        self.store.runs[id] = {"name": run_name, "params": {}, "metrics": {}, "status": "?"}
        return SimpleNamespace(info=SimpleNamespace(run_id=id))

    def get_metric_history(self, run_id: str, key: str) -> Any:
        metrics = self.store.run(run_id)["metrics"]
        return [SimpleNamespace(step=step, value=value) for step, value in metrics.get(key, ())]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        run = self.store.run(run_id)
        assert len(params) <= 100
        assert len(metrics) <= 1000
        for each in (*params, *metrics):
            assert re.fullmatch(r"[/\w.\- :]{1,250}", each.key), each.key
        for param in params:
            assert len(param.value) <= 6000
            assert run["params"].setdefault(param.key, param.value) == param.value
        for metric in metrics:
            run["metrics"].setdefault(metric.key, []).append((metric.step, metric.value))

    def update_run(self, run_id: str, status: str) -> None:
        self.store.run(run_id)["status"] = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self.store.run(run_id)["status"] = status
        if self.uri.startswith("http"):
            print("View run at:", self.uri)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)

    made: dict[str, dict[str, Any]] = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": type("MlflowClient", (FakeMlflowClient,), {"store": store})},
        "mlflow.entities": {
            "Metric": lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
            "Param": lambda key, value: SimpleNamespace(key=key, value=value),
        },
        "sqlalchemy": {},
        "alembic": {},
    }
    stand_in(monkeypatch, made)
    return store


def stand_in(monkeypatch: pytest.MonkeyPatch, made: Mapping[str, Mapping[str, Any]]) -> None:
    for name, content in made.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.slow
@pytest.mark.parametrize("round", [1, 5])
def test_mlflow_holds_settings_and_figures_of_a_cut_run_once(tmp_path: Path, mlflow: Store, round: int) -> None:
    folder = tmp_path / "run"
    result = cut_and_resumed(tracked("mlflow"), folder, round)
    assert mlflow.uris == [f"sqlite:///{folder.resolve()}/mlflow/mlflow.db"] * 2
    assert mlflow.experiments == {"small": "0"}
    (run,) = mlflow.runs.values()
    assert (run["name"], run["status"]) == ("small-sfmtl-graph-seed0", "FINISHED")
    assert run["params"]["method.lam"] == "0.5"
    assert run["metrics"] == expected(result)


def test_mlflow_on_a_server(mlflow: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), rounds=2, training=PLAN, trackers=["mlflow"], watcher=CutAt(1))
    assert mlflow.uris == ["http://localhost:5000"]
    assert list(mlflow.experiments) == ["mine"]
    assert next(iter(mlflow.runs.values()))["status"] == "KILLED"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "View run at: http://localhost:5000\n")


@pytest.mark.parametrize("since", [0, 3])
def test_mlflow_is_told_what_it_missed(
    tmp_path: Path, mlflow: Store, monkeypatch: pytest.MonkeyPatch, since: int
) -> None:
    """A store that is away from some round on, and there again for the rest of the run."""

    class Leaving(CutAt):
        def started(self, rounds: int, done: int) -> None:
            mlflow.away = not since

        def round_done(self, row: Mapping[str, Any]) -> None:
            mlflow.away = row["round"] >= since
            super().round_done(row)

    with pytest.warns(RuntimeWarning, match="mlflow: OSError"), pytest.raises(RuntimeError, match="cut"):
        run_experiment(tracked("mlflow"), Path(), tmp_path / "run", watcher=Leaving(5))
    mlflow.away = False
    result = run_experiment(tracked("mlflow"), Path(), tmp_path / "run")
    (run,) = mlflow.runs.values()
    assert run["metrics"] == expected(result)


def test_mlflow_takes_long_settings_and_many_figures(tmp_path: Path, mlflow: Store) -> None:
    tracker = TRACKERS["mlflow"](tmp_path)
    settings = {"federation": "small", "mask": "x" * 5000, "more": "y" * 7000} | {f"n{k}": k for k in range(250)}
    tracker.start(settings, "run", 0)
    figures = {f"method/weights.{k}": float(k) for k in range(2500)} | {f"method/{'long' * 70}": 1.0}
    tracker.log(1, figures)
    (run,) = mlflow.runs.values()
    assert run["params"] == {name: str(value)[:6000] for name, value in settings.items()}
    assert run["metrics"] == {name[:250]: [(1, value)] for name, value in figures.items()}


class Server:
    """W&B's: runs, and what each holds; `loses` is how many of a process's last rounds a kill takes with it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.runs: list[WandbRun] = []
        self.histories: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.logged_in = False
        self.loses = 0

    def files(self, folder: Path) -> list[tuple[int, dict[str, float]]]:
        """What the offline files in a folder hold, one after another."""
        found = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        return [(step, figures) for path in found for step, figures in ast.literal_eval(path.read_text())]


class WandbRun:
    """A run in one process. Files and server get what it buffers when it finishes."""

    def __init__(self, server: Server, said: Mapping[str, Any]) -> None:
        mode = os.environ.get("WANDB_MODE") or said["mode"] or "online"
        self.disabled, self.offline = mode == "disabled", mode == "offline"
        self.server, self.id = server, said["id"]
        self.summary: dict[str, float] = {}
        self.buffer: list[tuple[int, dict[str, float]]] = []
        self.exits: list[int] = []
        held = server.histories.get(self.id, []) if mode == "online" else []
        self.starting_step = max((step + 1 for step, _ in held), default=0)
        self.now = self.starting_step
        self.place = Path(said["dir"] or "none") / "wandb" / f"{mode}-run-{len(server.calls):08d}-{self.id}"
        self.dir = str(self.place / "files")
        if self.offline and said["dir"]:
            self.place.mkdir(parents=True)
            (self.place / f"run-{self.id}.wandb").write_text("[]")

    def log(self, data: dict[str, float], step: int) -> None:
        if step >= self.now:  # else it is ignored, with a warning
            self.now = step
            self.buffer.append((step, data))

    def finish(self, exit_code: int) -> None:
        self.exits.append(exit_code)
        kept = self.buffer[: len(self.buffer) - self.server.loses]
        if self.offline and self.place.exists():
            (self.place / f"run-{self.id}.wandb").write_text(repr(kept))
        elif not self.offline and not self.disabled:
            self.server.histories.setdefault(self.id, []).extend(kept)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()

    def init(**said: Any) -> WandbRun:
        server.calls.append(said)
        server.runs.append(WandbRun(server, said))
        return server.runs[-1]

    def login(prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return server.logged_in

    stand_in(monkeypatch, {"wandb": {"init": init, "login": login, "Settings": lambda **said: said}})
    return server


def test_wandb_is_offline_unless_logged_in(tmp_path: Path, wandb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def mode() -> str | None:
        fedkin.run("local", small_federation(), rounds=1, training=PLAN, trackers=["wandb"])
        return wandb.calls[-1]["mode"]  # type: ignore[no-any-return]

    assert mode() == "offline"
    wandb.logged_in = True
    assert mode() is None
    wandb.logged_in = False
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode() is None


def test_wandb_hears_each_round_of_a_cut_run_once(tmp_path: Path, wandb: Server) -> None:
    result = cut_and_resumed(tracked("wandb"), tmp_path / "run")
    assert wandb.files(tmp_path / "run") == [(row["round"], figures_of(row)) for row in result.rounds]
    before, after = wandb.runs
    assert before.id == after.id
    assert after.summary == totals_of(result.summary)
    assert (before.exits, after.exits) == ([1], [0])
    first = wandb.calls[0]
    assert (first["project"], first["group"], first["dir"]) == ("fedkin", "small", str(tmp_path / "run"))
    assert first["config"]["method.lam"] == 0.5


def row_of(round: int) -> dict[str, Any]:
    """A line of rounds.jsonl."""
    return {"round": round, "accuracy": {"mean": round / 8}, "groups": {}, "bytes": {"up": round, "down": 0}}


@pytest.mark.parametrize("before", ["offline", "online"])
@pytest.mark.parametrize("after", ["offline", "online"])
@pytest.mark.parametrize("checkpoint", [0, 2, 4])
@pytest.mark.parametrize("loses", [0, 1, 2, 5])
def test_wandb_misses_no_round_of_a_killed_run(
    tmp_path: Path, wandb: Server, before: str, after: str, checkpoint: int, loses: int
) -> None:
    """Killed after round 5, whatever the kill took with it, and though one logs in or out in between."""
    whole = [(round, figures_of(row_of(round))) for round in range(1, 8)]
    wandb.logged_in, wandb.loses = before == "online", loses
    first = TRACKERS["wandb"](tmp_path)
    first.start({"federation": "small"}, "run", 0)
    for round, figures in whole[:5]:
        first.log(round, figures)
    first.finish(None)
    for part in range(1, checkpoint, 2):
        path = tmp_path / "parts" / f"rounds-{part + 1:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row_of(round)) + "\n" for round in (part, part + 1)))
    wandb.logged_in, wandb.loses = after == "online", 0
    second = TRACKERS["wandb"](tmp_path)
    second.start({"federation": "small"}, "run", checkpoint)
    for round, figures in whole[checkpoint:]:
        second.log(round, figures)
    second.finish(None)
    (id,) = {run.id for run in wandb.runs}
    assert (wandb.histories[id] if after == "online" else wandb.files(tmp_path)) == whole
    assert after == "offline" or wandb.files(tmp_path) == []


@pytest.mark.slow
def test_wandb_that_is_disabled_leaves_older_files_alone(
    tmp_path: Path, wandb: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    cut(tracked("wandb"), folder, 3)
    before = wandb.files(folder)
    assert [step for step, _ in before] == [1, 2, 3]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run_experiment(tracked("wandb"), Path(), folder)
    assert wandb.files(folder) == before
