"""Trackers: what they hear, what TensorBoard's own reader finds, cut runs, and trackers that fail."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedkin
from fedkin.errors import ConfigError
from fedkin.running.compare import run_experiment
from fedkin.running.experiment import Experiment, load
from fedkin.running.loop import Result
from fedkin.running.trackers import TensorBoard, Tracking, figures_of, totals_of
from support import small_federation
from tiny import TABLE, CutAt

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
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(experiment, Path(), folder, watcher=CutAt(round))
    return run_experiment(experiment, Path(), folder, resume=True)


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
    assert [round for round, _ in heard.rounds] == [1, 2, 3]
    assert heard.ended == [result.summary]
    for row, (_, figures) in zip(result.rounds, heard.rounds, strict=True):
        assert figures["accuracy/mean"] == row["accuracy"]["mean"]
        assert figures["accuracy/worst10"] == row["accuracy"]["worst10"]
        assert figures["loss"] == row["accuracy"]["loss"]
        assert figures["groups/found"] == row["groups"]["found"]
        assert figures["groups/ari"] == pytest.approx(row["groups"]["ari"])
        assert (figures["bytes/up"], figures["bytes/down"]) == (row["bytes"]["up"], row["bytes"]["down"])


def test_settings_are_those_of_the_experiment_file(tmp_path: Path) -> None:
    heard = Heard()
    run_dir = tmp_path / "run"
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=run_dir, trackers=[heard])
    assert heard.begun[0][2]["federation"] == "small"
    assert heard.begun[0][2]["training.rounds"] == 1


def test_figures_that_are_not_known_are_left_out() -> None:
    row: dict[str, Any] = {
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


def test_further_figures_of_a_task() -> None:
    row = {"round": 1, "auc": {"mean": 0.75, "worst10": 0.5, "average_precision": {"mean": 0.25, "pooled": 0.3},
                               "loss": 0.7}, "groups": {}, "bytes": {"up": 0, "down": 0}}  # fmt: skip
    found = figures_of(row)
    assert (found["auc/mean"], found["auc/worst10"], found["average_precision/mean"]) == (0.75, 0.5, 0.25)


def test_a_run_that_breaks_off_tells_its_trackers() -> None:
    heard = Heard()
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), rounds=3, training=PLAN, trackers=[heard], watcher=CutAt(2))
    assert [round for round, _ in heard.rounds] == [1, 2]
    assert heard.ended == [None]


def test_a_resumed_run_says_how_far_it_was(tmp_path: Path) -> None:
    heard = Heard()
    said: dict[str, Any] = {"rounds": 5, "training": PLAN, "settings": {"checkpoint_every": 2}, "out": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), trackers=[heard], watcher=CutAt(3), **said)
    fedkin.run("local", small_federation(), trackers=[heard], **said)
    assert [done for _, done, _ in heard.begun] == [0, 2]
    rounds = [round for round, _ in heard.rounds]
    assert rounds == [1, 2, 3, 3, 4, 5]
    assert heard.rounds[2] == heard.rounds[3]


def test_trackers_change_no_figure() -> None:
    plain, other = (
        fedkin.run("sfmtl-graph", small_federation(), rounds=2, training=PLAN, trackers=trackers)
        for trackers in ([], [Heard()])
    )
    assert plain.rounds == other.rounds


# -- TensorBoard ------------------------------------------------------------------------------------------------


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


def test_event_files_hold_every_figure(tmp_path: Path) -> None:
    result = run_experiment(tracked("tensorboard"), Path(), tmp_path / "run")
    scalars, settings = read_back(tmp_path / "run")
    assert_same(scalars, result)
    assert len(scalars["accuracy/mean"]) == 7
    assert "| method.lam | 0.5 |" in settings
    assert "| data.source | digits |" in settings


@pytest.mark.parametrize("round", [1, 5])
def test_event_files_of_a_cut_run_hold_each_round_once(tmp_path: Path, round: int) -> None:
    result = cut_and_resumed(tracked("tensorboard"), tmp_path / "run", round)
    scalars, _ = read_back(tmp_path / "run")
    assert_same(scalars, result)


def test_a_killed_run_has_lost_no_round(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/..']\n"
        "from pathlib import Path\n"
        "from test_trackers import tracked\nfrom tiny import CutAt\n"
        "from fedkin.running.compare import run_experiment\n"
        "run_experiment(tracked('tensorboard'), Path(), Path(sys.argv[2]), watcher=CutAt(5, 'kill'))\n"
    )
    words = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "run")]
    ended = subprocess.run(words, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    result = run_experiment(tracked("tensorboard"), Path(), tmp_path / "run", resume=True)
    assert_same(read_back(tmp_path / "run")[0], result)


def test_older_event_files_sort_before_the_next(tmp_path: Path) -> None:
    """Also those of a process with a later pid in the same second, or of a clock that ran ahead."""
    import time

    place = tmp_path / "tensorboard"
    place.mkdir()
    ahead = int(time.time()) + 100
    for number, name in enumerate((f"{ahead - 500:010d}.z.9.0", f"{ahead:010d}.z.5.0", f"{ahead:010d}.z.9.0")):
        (place / f"events.out.tfevents.{name}").write_text(str(number))
    tracker = TensorBoard(tmp_path)
    tracker.start({}, "run", 1)
    tracker.finish(None)
    files = sorted(place.iterdir())
    assert [file.read_text() for file in files[:3]] == ["0", "1", "2"]
    assert len(files) == 4


def test_a_stopped_run_goes_on_in_the_same_curves(tmp_path: Path) -> None:
    from fedkin.running.loop import Stop

    with pytest.raises(Stop):
        run_experiment(tracked("tensorboard"), Path(), tmp_path / "run", watcher=CutAt(3, "stop"))
    before, _ = read_back(tmp_path / "run")
    assert [step for step, _ in before["bytes/up"]] == [1, 2, 3]
    result = run_experiment(tracked("tensorboard"), Path(), tmp_path / "run", resume=True)
    assert_same(read_back(tmp_path / "run")[0], result)


def test_tensorboard_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"'tensorboard' writes into the run's folder: .*out="):
        fedkin.run("local", small_federation(), rounds=1, trackers=["tensorboard"])


# -- MLflow and Weights & Biases, against stand-ins of their interfaces -------------------------------------------


class Store:
    """What a tracking server would hold: parameters and metrics of runs."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.uris: list[str | None] = []


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
            store.uris.append(tracking_uri)

        def get_experiment_by_name(self, name: str) -> Any:
            id = store.experiments.get(name)
            return None if id is None else SimpleNamespace(experiment_id=id)

        def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
            assert name not in store.experiments
            store.experiments[name] = str(len(store.experiments))
            return store.experiments[name]

        def create_run(self, experiment_id: str, run_name: str) -> Any:
            id = f"run{len(store.runs)}"
            store.runs[id] = {"experiment": experiment_id, "name": run_name, "params": {}, "metrics": {}, "status": "?"}
            return SimpleNamespace(info=SimpleNamespace(run_id=id))

        def get_run(self, run_id: str) -> Any:
            return SimpleNamespace(data=SimpleNamespace(metrics=dict.fromkeys(store.runs[run_id]["metrics"], 0.0)))

        def get_metric_history(self, run_id: str, key: str) -> Any:
            return [SimpleNamespace(step=step, value=value) for step, value in store.runs[run_id]["metrics"][key]]

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
            assert len(params) <= 100
            for param in params:
                assert store.runs[run_id]["params"].setdefault(param.key, param.value) == param.value
            for metric in metrics:
                store.runs[run_id]["metrics"].setdefault(metric.key, []).append((metric.step, metric.value))

        def update_run(self, run_id: str, status: str) -> None:
            store.runs[run_id]["status"] = status

        def set_terminated(self, run_id: str, status: str) -> None:
            store.runs[run_id]["status"] = status

    made = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": MlflowClient},
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


def test_mlflow_holds_settings_and_figures(tmp_path: Path, mlflow: Store) -> None:
    folder = tmp_path / "run"
    result = run_experiment(tracked("mlflow"), Path(), folder)
    assert mlflow.uris == [f"sqlite:///{folder.resolve()}/mlflow/mlflow.db"]
    assert mlflow.experiments == {"small": "0"}
    (run,) = mlflow.runs.values()
    assert (run["name"], run["status"]) == ("small-sfmtl-graph-seed0", "FINISHED")
    assert run["params"]["method.lam"] == "0.5"
    assert run["metrics"] == expected(result)


@pytest.mark.parametrize("round", [1, 5])
def test_mlflow_goes_on_with_the_same_run(tmp_path: Path, mlflow: Store, round: int) -> None:
    result = cut_and_resumed(tracked("mlflow"), tmp_path / "run", round)
    (run,) = mlflow.runs.values()
    assert run["metrics"] == expected(result)
    assert run["status"] == "FINISHED"


def test_mlflow_on_a_server(mlflow: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    with pytest.raises(RuntimeError, match="cut"):
        fedkin.run("local", small_federation(), rounds=2, training=PLAN, trackers=["mlflow"], watcher=CutAt(1))
    assert mlflow.uris == ["http://localhost:5000"]
    assert list(mlflow.experiments) == ["mine"]
    assert next(iter(mlflow.runs.values()))["status"] == "KILLED"


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in whose runs live on under their ids."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    world = SimpleNamespace(runs={}, calls=[], logged_in=False)

    class Run:
        def __init__(self, id: str) -> None:
            self.id, self.logged, self.summary, self.exits = id, [], {}, []  # type: ignore[var-annotated]

        def log(self, data: dict[str, float], step: int) -> None:
            self.logged.append((step, data))

        def finish(self, exit_code: int) -> None:
            self.exits.append(exit_code)

    def init(**said: Any) -> Run:
        world.calls.append(said)
        return world.runs.setdefault(said["id"], Run(said["id"]))  # type: ignore[no-any-return]

    def login(prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return bool(world.logged_in)

    stand_in(monkeypatch, {"wandb": {"init": init, "login": login, "Settings": lambda **said: said}})
    return world


def test_wandb_is_offline_unless_logged_in(
    tmp_path: Path, wandb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mode() -> str | None:
        fedkin.run("local", small_federation(), rounds=1, training=PLAN, trackers=["wandb"])
        return wandb.calls[-1]["mode"]  # type: ignore[no-any-return]

    assert mode() == "offline"
    wandb.logged_in = True
    assert mode() is None
    wandb.logged_in = False
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode() is None


def test_wandb_hears_each_round_of_a_cut_run_once(tmp_path: Path, wandb: SimpleNamespace) -> None:
    result = cut_and_resumed(tracked("wandb"), tmp_path / "run")
    (run,) = wandb.runs.values()
    assert run.logged == [(row["round"], figures_of(row)) for row in result.rounds]
    assert run.summary == totals_of(result.summary)
    assert run.exits == [1, 0]
    first = wandb.calls[0]
    assert (first["project"], first["group"], first["dir"]) == ("fedkin", "small", str(tmp_path / "run"))
    assert first["config"]["method.lam"] == 0.5


# -- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs the package {name}: pip install 'fedkin\[{name}\]'"):
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


def test_names_with_commas(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(Experiment.of(TABLE).to_toml())
    assert load(path, ["run.trackers=tensorboard, mlflow"]).run.trackers == ("tensorboard", "mlflow")


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


def test_a_tracker_named_twice_hears_once(tmp_path: Path) -> None:
    tracking = Tracking(["tensorboard", "tensorboard"], tmp_path)
    assert [name for name, _ in tracking.live] == ["tensorboard"]


@pytest.mark.parametrize("when", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_warned_of_once_and_ends_no_run(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = Heard(), Heard()

    def fail(*told: Any) -> None:
        calls.append(when)
        raise OSError("no space left")

    calls: list[str] = []
    monkeypatch.setattr(broken, when, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fedkin.run("local", small_federation(), rounds=3, training=PLAN, trackers=[broken, sound])
    (warning,) = caught
    assert str(warning.message) == "tracker Heard: OSError: no space left; the run goes on without it"
    assert calls == [when]
    assert len(result.rounds) == len(sound.rounds) == 3
    assert sound.ended == [result.summary]


def test_the_documented_tracker_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "trackers.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(page), "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert "-local-seed0 " in said[0]
    assert [line.split()[0] for line in said[1:]] == ["1", "2", "done"]


# -- rounds.csv -----------------------------------------------------------------------------------------------------


def test_rounds_as_a_table(tmp_path: Path) -> None:
    experiment = tracked(**{"run.evaluate_every": 2, "training.rounds": 5})
    result = run_experiment(experiment, Path(), tmp_path / "run")
    with (tmp_path / "run" / "rounds.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    kept = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == len(kept) == len(result.rounds) == 5
    for line, row in zip(lines, kept, strict=True):
        assert int(line["round"]) == row["round"]
        assert int(line["sampled"]) == len(row["sampled"])
        assert int(line["bytes.up"]) == row["bytes"]["up"]
        assert float(line["groups.ari"]) == row["groups"]["ari"]
        if row["accuracy"] is None:
            assert line["accuracy.mean"] == ""
        else:
            assert float(line["accuracy.mean"]) == row["accuracy"]["mean"]
    assert {line["accuracy.mean"] == "" for line in lines} == {True, False}
