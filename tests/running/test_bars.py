"""What is shown while a run goes on."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

import fedkin
from fedkin.running.loop import Stop
from fedkin.running.progress import Progress, ProgressOfSeveral, StopFlag, make_console, round_figures
from support import printed, small_federation
from tiny import CutAt, written


def row(round: int, mean: float | None = 0.5, found: int | None = None) -> dict[str, Any]:
    scored = None if mean is None else {"mean": mean, "worst10": mean / 2}
    groups = {} if found is None else {"found": found, "ari": 0.25 * found}
    return {"round": round, "accuracy": scored, "groups": groups, "bytes": {"up": 1500, "down": 2000}}


def shown(rounds: int, done: int = 0, quiet: bool = False, **options: Any) -> str:
    text = io.StringIO()
    progress = Progress("fedavg", StopFlag(), quiet, Console(file=text, **options))
    progress.started(rounds, done)
    for number in range(done + 1, rounds + 1):
        progress.round_done(row(number, 0.5, found=2))
    return text.getvalue()


def test_ten_plain_lines_where_there_is_no_terminal() -> None:
    lines = shown(60, width=200).splitlines()
    assert len(lines) == 10
    assert lines[0] == "fedavg: round 6 of 60  accuracy 0.500  2 groups, ARI 0.50"
    resumed = shown(30, done=3, width=200).splitlines()
    assert resumed[0] == "fedavg: going on after round 3 of 30"
    assert "\x1b" not in "".join(resumed)


def test_who_left_is_said_in_its_round() -> None:
    text = io.StringIO()
    progress = Progress("fedavg", StopFlag(), console=Console(file=text, width=200))
    progress.started(30, 0)
    progress.round_done({**row(1), "events": {"left": ["north"]}})
    progress.round_done(row(2))
    assert text.getvalue() == "fedavg: round 1: north left: data no longer count from this round on\n"


def test_a_title_has_no_effect_on_the_terminal() -> None:
    text = io.StringIO()
    progress = Progress("[/x]\x1b[31m", StopFlag(), console=make_console(file=text, force_terminal=True, width=80))
    progress.started(3, 0)
    progress.stop.bars[0].stop()
    assert "[/x]" in text.getvalue()
    assert "\x1b[31m" not in text.getvalue()


def test_a_dumb_terminal_gets_plain_lines_and_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown(1, force_terminal=True, width=80) == "fedavg: round 1 of 1  accuracy 0.500  2 groups, ARI 0.50\n"
    monkeypatch.setenv("TERM", "xterm")
    assert shown(1, quiet=True, force_terminal=True) == ""


@pytest.mark.parametrize("width", [40, 80])
def test_a_bar_fits_the_terminal(width: int) -> None:
    stop, console = StopFlag(), Console(file=io.StringIO(), force_terminal=True, width=width)
    progress = Progress("sfmtl-graph", stop, console=console)
    progress.started(1000, 0)
    progress.round_done(row(1, 0.5, found=12))
    progress.round_done(row(2, None))
    (bar,) = stop.bars
    bar.stop()
    (line,) = printed(bar.get_renderable(), width).splitlines()
    assert len(line) <= width
    assert width == 40 or "2/1000" in line
    assert width == 40 or "accuracy 0.500" in line


def test_groups_are_shown_by_verdict_and_a_figure_that_nobody_has_is_not() -> None:
    judged = row(1, 0.75, found=3)
    judged["groups"]["verdicts"] = {"alone": 1, "same": 2}
    assert round_figures(judged).endswith("3 groups (1 alone, 2 same), ARI 0.75")
    unseen = row(1, None) | {"squared_error": {"clients": 0}, "unseen": {"mean": 0.5}}
    del unseen["accuracy"]
    assert round_figures(unseen).startswith("unseen 0.500")
    assert "squared" not in round_figures(unseen)


@pytest.mark.parametrize("runs", [1, 4, 36])
def test_several_runs_have_ten_lines_in_all(runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    several = ProgressOfSeveral(StopFlag(), quiet=False)
    for number in range(runs):
        progress = several.next(f"run {number}", number, runs)
        progress.started(50, 0)
        for round in range(1, 51):
            progress.round_done(row(round))
    lines = capsys.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 10
    assert f"({runs} of {runs}" in lines[-1]


def test_the_time_left_for_all_is_that_of_runs_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    several = ProgressOfSeveral(StopFlag(), quiet=True)
    titles = []
    for number, seconds in enumerate((0.0, 30.0, 10.0)):  # the first was finished before: it is only read
        progress = several.next(f"run {number}", number, 4)
        titles.append(progress.title)
        progress.started(10, 0 if seconds else 10)
        for round in range(1, 11 if seconds else 1):
            progress.round_done({"round": round})
        now += seconds
    titles.append(several.next("run 3", 3, 4).title)
    assert titles == [
        "run 0 (1 of 4)", "run 1 (2 of 4)", "run 2 (3 of 4, about 0:01:00 left for all)",
        "run 3 (4 of 4, about 0:00:20 left for all)",
    ]  # fmt: skip


@pytest.mark.slow
def test_run_on_a_real_terminal(tmp_path: Path) -> None:
    """Through a pseudo-terminal: the bar is there while it runs, and gone from the end of the output."""
    written(tmp_path / "small.toml")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "fedkin", "run", "small.toml", "--rounds", "40"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=env)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while piece := os.read(ours, 65536):
            seen += piece
    out, _ = process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    for word in ("sfmtl-graph", "/40", "groups", "accuracy 0."):
        assert word in screen
    assert "accuracy, mean over clients" in out.decode()
    assert "round 40 of 40  accuracy" not in screen


# -- from Python: `fedkin.run(..., progress=True)` says how far a run is, and changes nothing else -----------------


PLAN = {"local_steps": 2, "lr": 0.1}


def test_a_watcher_is_asked_after_the_last_round_too_which_it_cannot_stop() -> None:
    asked = Mock(**{"stopping.return_value": True})
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, watcher=asked)
    assert [name for name, *_ in asked.method_calls] == ["started", "round_done", "stopping"]


def test_rounds_and_metric_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    silent = fedkin.run("local", small_federation(), rounds=3, training=PLAN)
    assert capsys.readouterr() == ("", "")
    result = fedkin.run("local", small_federation(), rounds=3, training=PLAN, progress=True)
    assert result.scores == silent.scores
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"local: round {number} of 3" for number in (1, 2, 3)]
    assert lines[-1] == f"local: round 3 of 3  accuracy {result.summary['accuracy']['mean']:.3f}"


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_a_run_that_is_cut_goes_on_where_it_was(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(**more: Any) -> fedkin.Result:
        more |= {"settings": {"checkpoint_every": 1}, "out": tmp_path, "progress": True}
        return fedkin.run("local", small_federation(), rounds=4, training=PLAN, **more)

    with pytest.raises(Stop if how == "stop" else KeyboardInterrupt):
        run(watcher=CutAt(3, how))
    err = capsys.readouterr().err
    assert err.endswith("\n")
    assert "round 3 of 4" in err
    assert len(run().rounds) == 4
    err, done = capsys.readouterr().err, 3 if how == "stop" else 2
    assert err.startswith(f"local: going on after round {done} of 4\nlocal: round {done + 1} of 4")
    run()
    assert capsys.readouterr().err == "", "a finished run is read, and has no progress"


def test_a_stream_that_takes_nothing_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    result = fedkin.run("local", small_federation(), rounds=2, training=PLAN, progress=True)
    assert len(result.rounds) == 2
