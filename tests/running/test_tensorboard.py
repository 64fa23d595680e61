"""What TensorBoard's own reader finds, also of runs that were cut."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import fedkin
from fedkin.errors import ConfigError
from fedkin.running.loop import Result, run_experiment
from running.tracking_support import cut_and_resumed, expected, tracked
from support import small_federation
from tiny import CutAt


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


@pytest.mark.slow
def test_a_killed_run_has_lost_no_round(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from running.tracking_support import tracked\nfrom tiny import CutAt\n"
        "from fedkin.running.loop import run_experiment\n"
        "run_experiment(tracked('tensorboard'), Path(), Path(sys.argv[2]), watcher=CutAt(5, 'kill'))\n"
    )
    words = [sys.executable, "-c", code, str(Path(__file__).parents[1]), str(tmp_path / "run")]
    ended = subprocess.run(words, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    result = run_experiment(tracked("tensorboard"), Path(), tmp_path / "run", resume=True)
    assert_same(read_back(tmp_path / "run")[0], result)


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
