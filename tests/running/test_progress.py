"""`fedkin.run(..., progress=True)` says how far a run is, and changes nothing else."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.running.loop import Stop
from support import small_federation
from tiny import CutAt

PLAN = {"local_steps": 2, "lr": 0.1}


class Asked(CutAt):
    """Notes after which rounds it was asked to stop."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rounds: list[int] = []

    def stopping(self) -> bool:
        self.rounds.append(self.now)
        return True


def test_a_watcher_is_asked_after_the_last_round_too_which_it_cannot_stop() -> None:
    asked = Asked()
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, watcher=asked)
    assert asked.rounds == [1]


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
def test_a_run_that_is_cut_goes_on_from_where_it_was(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
