"""Runs whose folders are damaged or edited by hand: going on with them is refused in one line that names the file."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedkin import codec
from fedkin.cli import app
from fedkin.errors import DataError, RunError
from fedkin.graph import load_graph
from fedkin.records.listing import listed
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import run_experiment
from report.fake_runs import make_comparison
from tiny import TABLE, CutAt, reseal

EXPERIMENT = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 4}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut in its third round, after a checkpoint, and a finished one."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(EXPERIMENT, Path(), folder / "cut", watcher=CutAt(3))
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
def test_a_damaged_run_is_neither_resumed_nor_read_back(
    runs: Path, tmp_path: Path, run: str, file: str, content: bytes, said: str
) -> None:
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
    other = EXPERIMENT.with_changes(**{"training.lr": 0.2})
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(other, Path(), tmp_path / "other", watcher=CutAt(3))
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


@pytest.mark.parametrize("file", ["experiment.toml", "summary.json"])
def test_a_list_of_runs_shows_nothing_of_a_changed_file(runs: Path, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(runs / "whole", tmp_path / "run")
    (folder / file).write_text((folder / file).read_text().replace(*CHANGES[file]))
    with pytest.raises(RunError, match=f"{file}: not as it was written"):
        listed([tmp_path])


@pytest.mark.parametrize(("file", "content"), [("experiment.toml", b"\xff"), ("plan.json", b'{"methods": "local"}')])
def test_a_report_names_the_comparison_that_is_damaged(tmp_path: Path, file: str, content: bytes) -> None:
    folder = make_comparison(tmp_path / "made", clients=3, rounds=1)
    (folder / file).write_bytes(content)
    with pytest.raises(RunError) as caught:
        collect([folder])
    assert str(folder / file) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff,a\n1,2\n3,4\n", "not a readable table"), (b"client,a\nann,9007199254740993\nbob,2\n", None)],
    ids=["names that are no text", "whole numbers beyond 2^53"],
)
def test_a_table_of_signatures(tmp_path: Path, content: bytes, said: str | None) -> None:
    path = tmp_path / "signatures.csv"
    path.write_bytes(content)
    ended = CliRunner().invoke(app, ["graph", str(path), "--json"])
    if said is None:
        assert json.loads(ended.stdout)["clients"] == 2
    else:
        assert isinstance(ended.exception, DataError)
        assert str(ended.exception).startswith(f"{path}: {said}")
