"""Temporary folders with clients' samples: a killed process leaves one, and the next process removes it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.engines.executors.scratch import Scratch

LEAVE = (
    "import os, signal; from fedkin.engines.executors.scratch import Scratch\n"
    "mine = Scratch(); (mine.path / 'array-0').write_text('a sample'); os.kill(os.getpid(), signal.SIGKILL)\n"
)


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    mine = Scratch()
    ended = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert len(list(tmp_path.glob("fedkin-*/array-0"))) == 1
    assert mine.path.is_dir()  # that of a living process stays
    assert mine.path.stat().st_mode & 0o777 == 0o700
    other = Scratch()
    assert sorted(path for path in tmp_path.iterdir() if path.is_dir()) == sorted([mine.path, other.path])
    for each in (mine, other, mine):
        each.close()
    assert list(tmp_path.iterdir()) == []
