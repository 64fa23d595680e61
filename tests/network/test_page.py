"""The commands of docs/network.md, copied and pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from town import free_port

PAGE = Path(__file__).parents[2] / "docs" / "network.md"


@pytest.mark.slow
def test_three_hospitals_from_nothing(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) == 4
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in (("python", '"$@"'), ("fedkin", '-c "from fedkin.cli import main; main()" "$@"')):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}\n')
        (commands / name).chmod(0o755)
    script = "set -e\n" + "".join(blocks).replace("7447", str(free_port()))
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    folder = tmp_path / "federation" / "run"
    assert (folder / "report.html").exists(), done.stdout + done.stderr
    assert "accuracy, mean over clients" in done.stdout
    assert done.stderr.count("the run has ended") == 3
