"""The commands of docs/flower.md, copied and pasted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from certificates import free_port

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, heading: str) -> list[str]:
    """The shell commands below a heading."""
    (section,) = re.findall(
        rf"^## {heading}\n(.*?)^## ", (DOCS / page).read_text(encoding="utf-8"), flags=re.S | re.M
    )  # fmt: skip
    return re.findall(r"```sh\n(.*?)```", section, flags=re.S)


def test_from_nothing_to_three_machines(tmp_path: Path) -> None:
    samples, settings = blocks("tutorials/network.md", "Tables and experiment")
    recipe = blocks("flower.md", "From nothing to three machines")
    assert len(recipe) == 5
    port = free_port()
    script = "set -e\n" + "".join([samples, settings, *recipe])
    for page, here in (("rounds = 5", "rounds = 1"), ("18000", str(port)), ("18100", str(port + 1))):
        assert page in script
        script = script.replace(page, here)
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }  # fmt: skip
    log = tmp_path / "log"
    with log.open("wb") as out:
        started = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = started.wait(1500)
        finally:
            # The SuperLink and the SuperNodes stay; Flower gives some of what they start a group of their own.
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
    said = log.read_text(errors="replace")
    assert code == 0, said[-5000:]
    assert (tmp_path / "federation" / "run" / "report.html").exists(), said[-5000:]
    assert len((tmp_path / "federation" / "run" / "rounds.jsonl").read_text().splitlines()) == 1
    assert "fedkin: the run has ended" in said, said[-5000:]
