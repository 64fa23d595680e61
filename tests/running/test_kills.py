"""Commands that are killed at file operations and at random moments go on to the bytes of uninterrupted ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
def test_a_few_kills(tmp_path: Path) -> None:
    found = killed(tmp_path, "--only", "run fedavg one-by-one", "--every", "60", "--random", "0")
    assert found["total"]["kills"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "every"), [("run sfmtl-graph one-by-one", 8), ("run mapl fast", 12), ("compare", 16), ("tune", 16)]
)
def test_more_kills(tmp_path: Path, case: str, every: int) -> None:
    found = killed(tmp_path, "--only", case, "--every", str(every), "--random", "4")
    assert found["total"]["kills"] > 15
    assert found["total"]["not_begun"] > 0 or case.startswith("run mapl")
