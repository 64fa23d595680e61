"""What is shown while a run goes on."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedkin.cli.progress import LiveProgress, Progress, ProgressOfSeveral, StopFlag, sparkline
from fedkin.running.progress import figured
from tiny import TABLE


def row(round: int, mean: float | None = 0.5, found: int | None = None, **more: Any) -> dict[str, Any]:
    scored = None if mean is None else {"mean": mean, "worst10": mean / 2}
    groups = {} if found is None else {"found": found, "ari": 0.25 * found}
    return {"round": round, "accuracy": scored, "groups": groups, "bytes": {"up": 1500, "down": 2000}} | more


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., tuple[LiveProgress, Clock]]]:
    def make(rounds: int = 10, done: int = 0, width: int = 100) -> tuple[LiveProgress, Clock]:
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        clock = Clock()
        progress = LiveProgress("fedavg", StopFlag(), tmp_path, console=console, clock=clock)
        progress.started(rounds, done)
        request.append(progress)
        return progress, clock

    request: list[LiveProgress] = []
    yield make
    for progress in request:
        for bar in progress.stop.bars:
            bar.stop()


def lines(progress: LiveProgress, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(progress.view())
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_live_view_says_where_the_run_is(live: Any) -> None:
    progress, clock = live(rounds=10)
    for number, mean in enumerate([0.1, 0.2, 0.4, 0.8], 1):
        clock.now += 0.25
        progress.round_done(row(number, mean, found=3))
    head, pace, quality, groups, sent = lines(progress)
    assert head.startswith("fedavg")
    assert head.endswith("round 4 of 10")
    assert pace.split("pace")[1].strip() == "4 rounds/s, 0:00:02 left"
    assert quality.split() == ["accuracy", "0.800", "▁▂▄█", "worst", "10%", "0.400"]
    assert groups.split("groups")[1].strip() == "3, ARI 0.75"
    assert sent.split("sent")[1].strip() == "6.0 kB up, 8.0 kB down"


def test_what_is_not_known_has_no_line(live: Any) -> None:
    progress, clock = live(rounds=4)
    assert [line.split()[0] for line in lines(progress)] == ["fedavg", "pace", "sent"]
    assert "in the first round" in lines(progress)[1]
    clock.now += 20
    progress.round_done(row(1, None))
    shown = lines(progress)
    assert [line.split()[0] for line in shown] == ["fedavg", "pace", "sent"]
    assert "0.05 rounds/s (20.0 s each), 0:01:00 left" in shown[1]


def test_a_round_that_is_not_evaluated_keeps_the_last_accuracy(live: Any) -> None:
    progress, _ = live()
    progress.round_done(row(1, 0.75, found=2))
    progress.round_done(row(2, None))
    assert "0.750" in lines(progress)[2]
    assert lines(progress)[3].split() == ["groups", "2,", "ARI", "0.50"]


def test_groups_are_shown_by_verdict(live: Any) -> None:
    progress, _ = live()
    told = row(1, 0.75, found=3)
    told["groups"]["verdicts"] = {"alone": 1, "same": 2}
    progress.round_done(told)
    assert lines(progress)[3].split("groups")[1].strip() == "3 (1 alone, 2 same), ARI 0.75"
    assert figured(told).endswith("3 groups (1 alone, 2 same), ARI 0.75")


def test_time_left_goes_down_within_a_round(live: Any) -> None:
    progress, clock = live(rounds=3)
    clock.now += 10
    progress.round_done(row(1))
    assert progress.left() == pytest.approx(20)
    clock.now += 4
    assert progress.left() == pytest.approx(16)
    clock.now += 100
    assert progress.left() == 0


def test_the_rate_is_that_of_the_last_rounds(live: Any) -> None:
    progress, clock = live(rounds=100)
    clock.now += 60
    progress.round_done(row(1))
    for number in range(2, 50):
        clock.now += 0.5
        progress.round_done(row(number))
    assert progress.rate() == pytest.approx(2)


def test_another_metric(live: Any) -> None:
    progress, _ = live()
    other = row(1, None) | {"squared_error": {"mean": 123.456, "worst10": 200.0}, "unseen": {"mean": 150.0}}
    del other["accuracy"]
    progress.round_done(other)
    line = lines(progress)[2]
    assert line.startswith("squared error")
    assert "123.5" in line
    assert "worst 10% 200" in line
    assert "unseen 150" in line


@pytest.mark.parametrize("width", [40, 60, 80])
def test_every_line_fits_the_terminal(live: Any, width: int) -> None:
    progress, _ = live(rounds=1000, width=width)
    for number in range(1, 200):
        progress.round_done(row(number, number / 200, found=12))
    shown = lines(progress, width)
    assert len(shown) == 5
    assert max(map(len, shown)) <= width


def test_a_resumed_run_shows_its_earlier_rounds(tmp_path: Path, live: Any) -> None:
    (tmp_path / "parts").mkdir()
    for first in (1, 3):
        text = "".join(json.dumps(row(number, number / 10, found=2)) + "\n" for number in (first, first + 1))
        (tmp_path / "parts" / f"rounds-{first + 1:06d}.jsonl").write_text(text)
    progress, _ = live(done=4)
    head, pace, quality, _, sent = lines(progress)
    assert head.endswith("round 4 of 10")
    assert "going on" in pace
    assert quality.split()[1:3] == ["0.400", "▁▃▆█"]
    assert "6.0 kB up" in sent


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    for kind in (Progress, LiveProgress):
        text = io.StringIO()
        console = Console(file=text, width=200)
        if kind is LiveProgress:
            progress: Progress = LiveProgress("fedavg", StopFlag(), tmp_path, console=console)
        else:
            progress = Progress("fedavg", StopFlag(), console=console)
        progress.started(30, 3)
        for number in range(4, 31):
            progress.round_done(row(number, 0.5, found=2))
        said = text.getvalue().splitlines()
        assert said[0] == "fedavg: going on after round 3 of 30"
        assert said[1] == "fedavg: round 6 of 30  accuracy 0.500  2 groups, ARI 0.50"
        assert len(said) == 10
        assert "\x1b" not in text.getvalue()


def test_a_figure_that_nobody_has_is_not_in_a_line() -> None:
    unseen = row(1, None) | {"squared_error": {"clients": 0}, "unseen": {"mean": 0.5}}
    del unseen["accuracy"]
    assert figured(unseen).startswith("unseen 0.500")
    assert "squared" not in figured(unseen)


def test_quiet_says_nothing(tmp_path: Path) -> None:
    text = io.StringIO()
    progress = LiveProgress("x", StopFlag(), tmp_path, True, Console(file=text, force_terminal=True))
    progress.started(1, 0)
    progress.round_done(row(1))
    assert text.getvalue() == ""


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = io.StringIO()
    progress = LiveProgress("x", StopFlag(), tmp_path, console=Console(file=text, force_terminal=True))
    progress.started(1, 0)
    progress.round_done(row(1))
    assert text.getvalue() == "x: round 1 of 1  accuracy 0.500\n"


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 50))
def test_sparkline(values: list[float], width: int) -> None:
    text = sparkline(values, width)
    assert len(text) == min(len(values), width)
    if len(values) <= width and values:
        heights = ["▁▂▃▄▅▆▇█".index(mark) for mark in text]
        for a, x in zip(heights, values, strict=True):
            for b, y in zip(heights, values, strict=True):
                assert a <= b or x > y
        if max(values) - min(values) > 1e-3:
            assert {heights[values.index(min(values))], heights[values.index(max(values))]} == {0, 7}


def test_sparkline_in_few_columns() -> None:
    assert sparkline([0, 0, 1, 1, 2, 2], 3) == sparkline([0, 1, 2], 3)
    assert sparkline([0.5, 0.5], 10) == "▄▄"
    assert sparkline([], 10) == ""
    assert sparkline([0, 1], 10, ascii_only=True) == "_#"


@pytest.mark.slow
def test_run_on_a_real_terminal(tmp_path: Path) -> None:
    """Through a pseudo-terminal: the live view is there while it runs, and gone from the end of the output."""
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(TABLE))
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", "from fedkin.cli import main; main()", "run", str(path), "--set", "method.lam=0.4"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*words, "--rounds", "40"], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=env
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        seen += piece
    out, _ = process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    for word in ("sfmtl-graph", "of 40", "rounds/s", "left", "groups", "sent"):
        assert word in shown
    assert re.search(r"accuracy +0\.\d{3} +[▁▂▃▄▅▆▇█]{2,}", shown)
    assert "accuracy, mean over clients" in out.decode()
    assert "round 40 of 40  accuracy" not in shown


def test_the_time_left_for_all_is_that_of_runs_that_have_ended() -> None:
    now = 0.0
    several = ProgressOfSeveral(StopFlag(), quiet=True, clock=lambda: now)
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
