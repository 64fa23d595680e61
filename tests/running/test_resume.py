"""A run that was cut, at any moment, ends as if it had not been; one whose files are damaged is refused."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedkin import codec
from fedkin.errors import RunError
from fedkin.graph import load_graph
from fedkin.records.run import Result, read_run
from fedkin.report.collect import collect
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import Stop, run_experiment
from report.fake_runs import make_comparison
from support import present
from tiny import TABLE, CutAt, assert_equal_runs, cut, reseal

# Files that a whole run of TABLE puts in place, one after another.
WRITES = 55


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_experiment(Experiment.of(TABLE), Path(), tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(
    "call",
    [1, 3, 6, 20, WRITES - 3, WRITES - 1, WRITES, WRITES + 1]
    + [pytest.param(call, marks=pytest.mark.slow) for call in (2, 4, 5, *range(7, WRITES - 3, 4), WRITES - 2)],
)
def test_a_write_that_fails_at_any_point_loses_nothing(
    tmp_path: Path, whole: Result, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut in the n-th renaming of a file: inside a checkpoint, between its parts, or at the end."""
    experiment, folder = Experiment.of(TABLE), tmp_path / "run"
    real, calls = os.replace, 0

    def failing(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        if call <= WRITES:
            with pytest.raises(KeyboardInterrupt):
                run_experiment(experiment, Path(), folder)
        else:
            run_experiment(experiment, Path(), folder)
            assert calls == WRITES
    run_experiment(experiment, Path(), folder)
    assert_equal_runs(present(whole.folder), folder)


def test_a_finished_run_is_read_back(whole: Result) -> None:
    again = run_experiment(Experiment.of(TABLE), Path(), present(whole.folder))
    assert again.summary == whole.summary
    assert again.scores == whole.scores
    assert again.clients == whole.clients
    assert again.messages == whole.messages


def test_another_experiment_is_not_resumed(whole: Result) -> None:
    other = Experiment.of(TABLE).with_changes(**{"training.lr": 0.2})
    with pytest.raises(RunError, match=r"differs from the experiment to resume.* training\.lr: 0\.1 there, 0\.2 here$"):
        run_experiment(other, Path(), present(whole.folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"run.evaluate_every": 3},
        {"run.mode": "fast"},
        pytest.param({"run.mode": "workers", "run.workers": 1}, marks=pytest.mark.slow, id="workers"),
        {"faults.dropout": 0.2, "faults.garbage": 0.2, "faults.late": 0.3, "faults.stale": 0.1, "faults.crash": 0.1},
        pytest.param({"run.engine": "loopback"}, marks=pytest.mark.slow, id="loopback"),
        pytest.param({"method.anchors": "mean"}, marks=pytest.mark.slow, id="anchors"),
    ],
    ids=str,
)
def test_resume_under_other_settings(tmp_path: Path, changes: dict[str, Any], workers_here: None) -> None:
    experiment = Experiment.of(TABLE).with_changes(**changes)
    folder = tmp_path / "cut"
    cut(experiment, folder, 5)
    run_experiment(experiment, Path(), folder)
    # An uncut twin.
    twin = tmp_path / "whole"
    twin.mkdir()
    (twin / "experiment.toml").write_text((folder / "experiment.toml").read_text())
    run_experiment(experiment, Path(), twin)
    assert_equal_runs(twin, folder)


def test_other_data_are_not_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cut(Experiment.of(TABLE), folder, 3)
    dataset = Experiment.of(TABLE).data.load(Path())
    other = replace(dataset, train=replace(dataset.train, x=dataset.train.x.flip(-1)))
    with pytest.raises(RunError, match="are not those that this run began with"):
        run_experiment(Experiment.of(TABLE), Path(), folder,
                       federation=lambda: Experiment.of(TABLE).scenario.federation(other, 0))  # fmt: skip


def test_a_run_of_no_rounds_is_read_back(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE).with_changes(**{"training.rounds": 0})
    first = run_experiment(experiment, Path(), tmp_path / "run")
    again = run_experiment(experiment, Path(), tmp_path / "run")
    assert again.scores == first.scores
    assert len(again.scores) == 6


@pytest.mark.slow
def test_a_graph_that_stands_still_is_written_once_cut_or_not(tmp_path: Path) -> None:
    method = {"name": "fedsem", "clusters": 2}
    experiment = Experiment.of({**TABLE, "method": method, "training": {**TABLE["training"], "rounds": 12}})
    whole = present(run_experiment(experiment, Path(), tmp_path / "whole").folder)
    kept = [load_graph(path) for path in sorted((whole / "graphs").glob("*.npz"))]
    assert 1 <= len(kept) < 12
    assert all(one.digest() != two.digest() for one, two in itertools.pairwise(kept))
    for round in (3, 6, 9):
        folder = tmp_path / f"cut-{round}"
        with pytest.raises(Stop):
            run_experiment(experiment, Path(), folder, watcher=CutAt(round, "stop"))
        run_experiment(experiment, Path(), folder)
        assert_equal_runs(whole, folder)


# -- commands that are killed at file operations and at random moments go on to the bytes of uninterrupte ------------


ROOT = Path(__file__).resolve().parents[2]


def killed(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run benchmarks/kills.py in a process of its own: a process that computes must not fork."""
    counts = tmp_path / "kills.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "kills.py"), *words, "--out", str(counts)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(counts.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "every"), [("run sfmtl-graph one-by-one", 30), ("run mapl fast", 40), ("compare", 80), ("tune", 80)]
)
def test_more_kills(tmp_path: Path, case: str, every: int) -> None:
    found = killed(tmp_path, "--only", case, "--every", str(every), "--random", "2", "--seed", "837")
    assert found["total"]["kills"] > 7
    assert found["total"]["not_begun"] > 0 or case.startswith("run mapl")


# -- folders that are damaged or edited by hand: one line that names the file --------------------------------------


EXPERIMENT = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 4}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut in its third round, after a checkpoint, and a finished one."""
    folder = tmp_path_factory.mktemp("damaged")
    cut(EXPERIMENT, folder / "cut", 3)
    run_experiment(EXPERIMENT, Path(), folder / "whole")
    return folder


def refused(folder: Path, file: Path) -> str:
    with pytest.raises(RunError) as caught:
        run_experiment(EXPERIMENT, Path(), folder)
    text = str(caught.value)
    assert str(file) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("run", "file", "content", "said"),
    [
        ("cut", "experiment.toml", b"name = '\xff'", "not readable as the experiment of a run"),
        ("cut", "experiment.toml", b"name = ", "not readable as the experiment of a run"),
        ("cut", "experiment.toml", b'name = "small"', "differs from the experiment to resume"),
        ("cut", "federation.json", b"[]", "instance of Facts, got []"),
        ("cut", "parts/rounds-000002.jsonl", b"{", "not as it was written: 1 bytes"),
        ("cut", "parts/timing-000002.jsonl", b"\xff", "not as it was written"),
        ("cut", "parts/clients-000002.parquet", b"PAR1", "not as it was written"),
        ("cut", "checkpoint/round-000002.safetensors", b"", "not as it was written"),
        ("cut", "graphs/round-x.npz", b"", "rename this file or take it away"),
        ("cut", "features/round-.safetensors", b"", "rename this file or take it away"),
        ("whole", "summary.json", b"[]", "instance of Summary, got []"),
        ("whole", "rounds.jsonl", b"{", "line 1: not readable as JSON"),
        ("whole", "clients.parquet", b"", "not readable as the table of a run"),
        ("whole", "messages.parquet", b"", "not readable as the table of a run"),
        ("whole", "federation.json", b"[]", "instance of Facts, got []"),
    ],
)
def test_a_damaged_run_is_refused(runs: Path, tmp_path: Path, run: str, file: str, content: bytes, said: str) -> None:
    folder = shutil.copytree(runs / run, tmp_path / "run")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(content)
    if run == "whole":
        with pytest.raises(RunError, match=file):
            read_run(folder)
        assert "not as it was written" in refused(folder, folder / file)
        reseal(folder)
    assert said in refused(folder, folder / file)


@pytest.mark.parametrize(
    "state", [{"round": 2}, {"round": "two", "engine": {}, "seconds": {}}, {"round": 2, "engine": 3}]
)
def test_another_file_in_the_checkpoints_place_is_refused(runs: Path, tmp_path: Path, state: dict[str, object]) -> None:
    folder = shutil.copytree(runs / "cut", tmp_path / "run")
    kept = folder / "checkpoint" / "round-000002.safetensors"
    kept.write_bytes(codec.encode(state))
    reseal(folder)
    assert "not a checkpoint" in refused(folder, kept)


def test_rows_are_counted_though_hashes_agree(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "cut", tmp_path / "run")
    messages, rounds = (folder / "parts" / name for name in ("messages-000002.parquet", "rounds-000002.jsonl"))
    _, second = rounds.read_text().splitlines()
    rounds.write_text(f"{second}\n{second}\n")
    reseal(folder)
    assert "rows of some rounds up to 2 are not there" in refused(folder, folder / "parts")
    pq.write_table(pq.read_table(messages).slice(0, 1), messages)
    reseal(folder)
    assert "1 rows, written were" in refused(folder, messages)


def test_a_checkpoint_of_another_run_is_refused(runs: Path, tmp_path: Path) -> None:
    cut(EXPERIMENT.with_changes(**{"training.lr": 0.2}), tmp_path / "other", 3)
    folder = shutil.copytree(runs / "cut", tmp_path / "run")
    kept = folder / "checkpoint" / "round-000002.safetensors"
    for place in ("checkpoint", "parts"):
        shutil.copytree(tmp_path / "other" / place, folder / place, dirs_exist_ok=True)
    assert "the checkpoint of another run" in refused(folder, kept)


def test_a_comparison_names_the_run_that_is_damaged(runs: Path, tmp_path: Path) -> None:
    inside = shutil.copytree(runs / "whole", tmp_path / "all" / "sfmtl-graph-seed0")
    (tmp_path / "all" / "experiment.toml").write_text(EXPERIMENT.to_toml())
    (inside / "experiment.toml").write_bytes(b"\xff")
    with pytest.raises(RunError, match="not readable as the experiment of a run") as caught:
        compare(Runs(EXPERIMENT), ["sfmtl-graph"], [0], tmp_path / "all")
    assert str(inside / "experiment.toml") in str(caught.value)


# Changed in such a way that the file can still be read.
CHANGES = {
    "experiment.toml": ("rounds = 4", "rounds = 9"),
    "summary.json": ('"mean": 0.', '"mean": 0.9'),
    "timing.jsonl": ('"total": ', '"total": 7'),
}


@pytest.mark.parametrize("file", [*CHANGES, "graphs", "features"])
def test_a_report_shows_nothing_of_a_changed_file(runs: Path, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(runs / "whole", tmp_path / "run")
    path = folder / file
    if file in CHANGES:
        path.write_text(path.read_text().replace(*CHANGES[file]))
    elif file == "graphs":
        path = max(path.iterdir())
        graph = load_graph(path)
        replace(graph, groups={id: number for number, id in enumerate(graph.ids)}).save(path)
    else:
        path = max(path.iterdir())
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1, content[-1]]))
    with pytest.raises(RunError, match="not as it was written") as caught:
        collect([folder])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("file", "content"), [("experiment.toml", b"\xff"), ("plan.json", b'{"methods": "local"}')])
def test_a_report_names_the_comparison_that_is_damaged(tmp_path: Path, file: str, content: bytes) -> None:
    folder = make_comparison(tmp_path / "made", clients=3, rounds=1)
    (folder / file).write_bytes(content)
    with pytest.raises(RunError) as caught:
        collect([folder])
    assert str(folder / file) in str(caught.value)
