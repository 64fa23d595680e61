"""Processes that do not start: the script that started them is told what to do, in one line, and does not hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# More rows than a pipe holds: a parent that writes them to a process that has ended already waits for ever.
SCRIPT = """
import multiprocessing, sys
import numpy as np
import fedkin
{first}
x = np.random.default_rng(0).normal(size=(40_000, 2)).astype(np.float32)
fed = fedkin.Federation.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(40_000) % 4)
try:
    result = fedkin.run("fedavg", fed, rounds=1, settings={settings}, training={{"local_steps": 1}})
except fedkin.FedkinError as error:
    print(error)
"""
PROCESSES = '{"engine": "processes"}'


def said(folder: Path, first: str = "", settings: str = PROCESSES, piped: bool = False) -> tuple[str, str]:
    """Standard output and error of the script."""
    path = folder / "script.py"
    path.write_text(SCRIPT.format(first=first, settings=settings))
    words = [sys.executable] if piped else [sys.executable, str(path)]
    with path.open() as text:
        ended = subprocess.run(words, stdin=text, capture_output=True, text=True, timeout=600, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


@pytest.mark.slow
def test_a_script_that_does_not_guard_its_main_part_is_told_to(tmp_path: Path) -> None:
    out, err = said(tmp_path)
    assert out.count("\n") == 1
    assert 'if __name__ == "__main__":' in out
    assert err == ""


@pytest.mark.slow
@pytest.mark.parametrize("piped", [False, True])
def test_workers_need_no_guard_and_no_file(tmp_path: Path, piped: bool) -> None:
    assert said(tmp_path, settings='{"mode": "workers", "workers": 1}', piped=piped) == ("", "")


@pytest.mark.slow
def test_a_process_that_ends_while_it_starts_is_named(tmp_path: Path) -> None:
    # Not sys.exit: where processes are forked from a clean one, Python makes a 1 of its status.
    ends = 'if multiprocessing.current_process().name != "MainProcess": import os; os._exit(3)'
    out, _ = said(tmp_path, ends)
    assert out.count("\n") == 1
    assert "ended with status 3 while it started" in out


@pytest.mark.slow
def test_a_script_from_standard_input_is_told_that_processes_cannot_read_it(tmp_path: Path) -> None:
    out, err = said(tmp_path, piped=True)
    assert out.count("\n") == 1
    assert "write the script into a file" in out
    assert err == ""
