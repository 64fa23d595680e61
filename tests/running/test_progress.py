"""`fedkin.run(..., progress=True)` says how far a run is, and changes nothing else."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.running.loop import Stop
from fedkin.running.progress import RoundsDone
from support import small_federation

PLAN = {"local_steps": 2, "lr": 0.1}


@pytest.fixture(params=["tqdm", "lines"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With tqdm, and as on a machine without it."""
    way: str = request.param
    if way == "tqdm":
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    return way


class Cut:
    """A watcher that ends the run in a round: it asks for a stop, or Ctrl-C comes."""

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.seen = at, how, 0

    def started(self, rounds: int, done: int) -> None:
        assert rounds == 4
        self.seen = done

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.seen = row["round"]
        if self.how == "ctrl-c" and self.seen == self.at:
            raise KeyboardInterrupt

    def stopping(self) -> bool:
        return self.seen == self.at


def test_nothing_is_printed_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    fedkin.run("local", small_federation(), rounds=2, training=PLAN)
    assert capsys.readouterr() == ("", "")


def test_rounds_metric_and_time_left_are_shown(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    silent = fedkin.run("local", small_federation(), rounds=3, training=PLAN)
    result = fedkin.run("local", small_federation(), rounds=3, training=PLAN, progress=True)
    assert result.scores == silent.scores
    out, err = capsys.readouterr()
    assert out == ""
    mean = f"accuracy {result.summary['accuracy']['mean']:.3f}"
    if way == "lines":
        lines = err.splitlines()
        assert [line.split("  ")[0] for line in lines] == [f"local: round {number} of 3" for number in (1, 2, 3)]
        assert lines[-1] == f"local: round 3 of 3  {mean}  0:00:00 left"
    else:
        last = err.split("\r")[-1]
        assert re.search(r"^local: 100%.* 3/3 \[00:\d\d<00:00", last)
        assert mean in last
        assert err.endswith("\n")


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_a_run_that_is_cut_goes_on_from_where_it_was(
    way: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(**more: Any) -> fedkin.Result:
        settings = {"checkpoint_every": 1}
        return fedkin.run(
            "local", small_federation(), rounds=4, training=PLAN, settings=settings, out=tmp_path, progress=True, **more
        )

    with pytest.raises(Stop if how == "stop" else KeyboardInterrupt):
        run(watcher=Cut(3, how))
    err = capsys.readouterr().err
    assert err.endswith("\n")
    assert " 3/4 " in err or "round 3 of 4" in err
    assert len(run().rounds) == 4
    err, done = capsys.readouterr().err, 3 if how == "stop" else 2
    if way == "lines":
        assert err.startswith(f"local: going on after round {done} of 4\nlocal: round {done + 1} of 4")
    else:
        assert f" {done}/4 " in err.split("\r")[1]
        assert " 4/4 " in err
    run()
    assert capsys.readouterr().err == "", "a finished run is read, and has no progress"


def test_a_stream_that_takes_nothing_does_not_end_the_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    result = fedkin.run("local", small_federation(), rounds=2, training=PLAN, progress=True)
    assert len(result.rounds) == 2


def row(number: int, mean: float | None) -> dict[str, Any]:
    return {"round": number, "accuracy": None if mean is None else {"mean": mean}, "groups": {}}


def test_time_left_is_that_of_the_rounds_of_this_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    now = [100.0]
    shown = RoundsDone("fedavg", clock=lambda: now[0])
    shown.started(10, 4)
    for number, mean in ((5, 0.5), (6, None)):
        now[0] += 30
        shown.round_done(row(number, mean))
    assert capsys.readouterr().err.splitlines() == [
        "fedavg: going on after round 4 of 10",
        "fedavg: round 5 of 10  accuracy 0.500  0:02:30 left",
        # This round was not evaluated.
        "fedavg: round 6 of 10  accuracy 0.500  0:02:00 left",
    ]
