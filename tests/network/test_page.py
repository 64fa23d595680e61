"""The commands of docs/network.md, and those of its tutorial, copied and pasted."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from certificates import free_port
from fedkin.cli.commands import app

PAGE = Path(__file__).parents[2] / "docs" / "network.md"


@pytest.mark.slow
def test_the_tutorial_of_three_hospitals(tmp_path: Path) -> None:
    page = PAGE.parent / "tutorials" / "network.md"
    found = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    assert len(found) == 6
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in (("python", '"$@"'), ("fedkin", '-c "from fedkin.cli import main; main()" "$@"')):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}\n')
        (commands / name).chmod(0o755)
    script = "set -e\n" + "".join(found).replace("7447", str(free_port()))
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert (tmp_path / "federation" / "run" / "report.html").exists(), done.stdout + done.stderr
    assert "ROC-AUC, mean over clients" in done.stdout
    assert done.stderr.count("the run has ended") == 3
    assert "north" in done.stdout.rpartition("records:")[2]  # what `fedkin net status` says
    rows, predictions = (
        (tmp_path / "federation" / name).read_text().splitlines() for name in ("north.csv", "predictions.txt")
    )
    assert len(predictions) == len(rows)  # a line of names above each


def test_the_service_and_the_container_run_commands_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (unit,), (container,) = (re.findall(rf"```{kind}\n(.*?)```", text, flags=re.S) for kind in ("ini", "dockerfile"))
    read = configparser.ConfigParser()
    read.read_string(unit)
    service = read["Service"]
    program, net, command, *words = service["ExecStart"].split()
    assert (Path(program).name, net, command, service["Restart"]) == ("fedkin", "net", "join", "on-failure")
    entry, more = (
        json.loads(re.findall(rf"^{name} (\[.*\])$", container, flags=re.M)[0]) for name in ("ENTRYPOINT", "CMD")
    )
    assert (entry, more[:2]) == (["fedkin"], ["net", "join"])
    group: Any = typer.main.get_command(app)
    join = group.commands["net"].commands["join"]
    for given, state in ((words, f"/var/lib/{service['StateDirectory']}/"), (more[2:], "/state/")):
        found = join.make_context("join", list(given)).params
        assert found["yes"]
        assert str(found["state"]).startswith(state)
