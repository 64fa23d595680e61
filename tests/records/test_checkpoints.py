"""A run goes on only from files that are as they were written, and begins again at round 0 only if it is asked to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedkin.engines.facts import facts_of
from fedkin.errors import RunError
from fedkin.records.checkpoints import Checkpoints
from fedkin.records.files import read_seal
from fedkin.records.reading import MEND
from fedkin.records.recorder import Records
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from tiny import TABLE, assert_equal_runs, cut

EXPERIMENT = Experiment.of(TABLE).with_changes(**{"training.rounds": 6, "run.embeddings_every": 2})
STATES = [f"checkpoint/round-00000{round}.safetensors" for round in (2, 4)]
# What can go wrong with a file.
GONE: Callable[[Path], None] = Path.unlink


def flipped(path: Path) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << 3
    path.write_bytes(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`cut`: a run with checkpoints of rounds 2 and 4; `first`: one with that of round 2; `whole`: a finished run."""
    folder = tmp_path_factory.mktemp("runs")
    for name, round in (("cut", 5), ("first", 3)):
        cut(EXPERIMENT, folder / name, round)
    run_experiment(EXPERIMENT, Path(), folder / "whole")
    return folder


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    """A copy of `cut`."""
    return Path(shutil.copytree(runs / "cut", tmp_path / "run"))


@pytest.fixture
def finished(runs: Path, tmp_path: Path) -> Path:
    """A copy of `whole`."""
    return Path(shutil.copytree(runs / "whole", tmp_path / "run"))


def resumed(folder: Path) -> Result:
    return run_experiment(EXPERIMENT, Path(), folder)


def needed(folder: Path) -> list[str]:
    """Names of the files from which the run in this folder goes on."""
    every = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    results = ("graphs", "features", "federation.json", "data-root.json", "parts/newest.json")
    return [name for name in every if not name.startswith(results)]


@pytest.mark.slow
def test_two_checkpoints_are_kept_and_the_last_of_a_finished_run(runs: Path) -> None:
    names = sorted(path.name for path in (runs / "cut" / "checkpoint").iterdir())
    assert names == [f"round-00000{round}.{kind}" for round in (2, 4) for kind in ("json", "safetensors")]
    assert [path.name for path in (runs / "whole" / "checkpoint").iterdir()] == ["round-000006.safetensors"]


def test_all_that_a_checkpoint_needs_is_on_the_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a checkpoint gets its name, the contents of the files in its seal are on the disk, and their names too."""
    loose: set[Path] = set()  # files whose content or whose name may not survive a power cut
    checked: list[Path] = []
    rename, sync = os.replace, os.fsync

    def replace(source: Path, target: Path) -> None:
        assert source not in loose, f"{source} was renamed before its content was on the disk"
        if target.suffix == ".safetensors" and target.parent.name == "checkpoint":
            needed = [target.parents[1] / name for name in read_seal(target.with_suffix(".json")).files]
            assert not loose & {target.with_suffix(".json"), *(path for path in needed if path != target)}
            checked.append(target)
        rename(source, target)
        loose.add(target)

    def fsync(number: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        loose.difference_update([path], [each for each in loose if each.parent == path])
        sync(number)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    run_experiment(EXPERIMENT, Path(), tmp_path / "run")
    assert [path.stem for path in checked] == ["round-000002", "round-000004", "round-000006"]
    assert loose == set()


@pytest.mark.slow
@pytest.mark.parametrize("harm", [flipped, GONE], ids=["flipped", "gone"])
def test_harm_to_any_file_is_found(runs: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The older checkpoint is taken, or the run is refused; where both were needed, it never begins at round 0."""
    names = needed(runs / "cut")
    assert len(names) > 12
    taken = {}
    for name in names:
        folder = shutil.copytree(runs / "cut", tmp_path / "run")
        harm(folder / name)
        said = ""
        try:
            found = Checkpoints(folder).choose()
            taken[name] = None if found is None else found.round
        except RunError as error:
            taken[name], said = -1, str(error)
        assert not said or (str(folder) in said and MEND in said and "\n" not in said)
        shutil.rmtree(folder)
    newest = [name for name in names if "000004" in name]
    # The file of experiments and the seal of the folder are looked at before the checkpoints.
    apart = ["experiment.toml", "seal.json"]
    assert {name: taken[name] for name in newest} == dict.fromkeys(newest, 2)
    own = [STATES[0], STATES[0].replace("safetensors", "json")]
    older = [name for name in names if name not in (*newest, *apart, *own)]
    assert {name: taken[name] for name in older} == dict.fromkeys(older, -1)
    assert [taken[name] for name in ("seal.json", *own)] == [4, 4, 4]


def test_a_round_that_is_safe_is_not_written_again(folder: Path) -> None:
    records, federation = Records(folder), EXPERIMENT.federation(Path())
    assert records.begin(federation.task, lambda: facts_of(federation)) is not None
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    records.checkpoint(4, {"engine": {}, "seconds": {}})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("harm", [flipped, GONE], ids=["flipped", "gone"])
def test_the_older_checkpoint_is_taken_and_one_line_says_so(
    runs: Path, folder: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    harm(folder / STATES[1])
    resumed(folder)
    (line,) = caplog.messages
    assert line.startswith(str(folder / STATES[1]))
    assert line.endswith("; going on from the checkpoint of round 2")
    assert_equal_runs(runs / "whole", folder)


@pytest.mark.parametrize("lost", ["checkpoint", "parts"])
def test_a_run_whose_checkpoints_are_gone_is_refused(folder: Path, caplog: pytest.LogCaptureFixture, lost: str) -> None:
    shutil.rmtree(folder / lost)
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunError, match=r"it is gone; no checkpoint is left to go on from: put the file back"):
        resumed(folder)
    assert sorted(folder.rglob("*")) == before  # nothing of it is lost by the refusal
    assert caplog.messages == []


def test_a_graph_that_was_harmed_is_named_and_the_run_goes_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph, means = folder / "graphs" / "round-000001.npz", folder / "features" / "round-000002.safetensors"
    flipped(graph)
    means.unlink()
    resumed(folder)
    assert [line.partition(": ")[0] for line in caplog.messages] == [str(means), str(graph)]
    assert all(line.endswith("; going on without it") for line in caplog.messages)


def test_a_seal_without_its_checkpoint_was_a_kill_and_is_no_checkpoint(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The seal is written first: killed before the first checkpoint has its name, a run begins again without a word."""
    folder = shutil.copytree(runs / "first", tmp_path / "run")
    (folder / STATES[0]).unlink()
    (folder / "parts" / "newest.json").unlink()
    resumed(folder)
    assert caplog.messages == []
    assert_equal_runs(runs / "whole", folder)


def test_a_harmed_seal_is_named_and_says_what_to_do(finished: Path) -> None:
    flipped(finished / "seal.json")
    with pytest.raises(RunError, match=r"seal\.json: not .*; put it back as it was, or remove it"):
        resumed(finished)
    (finished / "seal.json").unlink()
    assert resumed(finished).summary["rounds"] == 6


def test_what_a_kill_after_the_end_leaves_is_removed_when_the_run_is_read(runs: Path, finished: Path) -> None:
    shutil.copytree(runs / "cut" / "parts", finished / "parts")
    (finished / "report.html.99-0123abcd.part").write_text("half")
    resumed(finished)
    assert_equal_runs(runs / "whole", finished)
