"""Federations of processes that are killed, stopped and cut off: nobody hangs, and who returns takes part and learns.

Undisturbed means a simulation of the same experiment, which an undisturbed federation equals (test_processes.py).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedkin.network.status import FILE, read_status
from fedkin.running.loop import Result, execute
from network.federations import experiment
from network.processes import Place, made
from town import Town

pytestmark = pytest.mark.slow

NAMES = [f"c0{number}" for number in range(8)]
KILLED = ["c01", "c02", "c03"]


def table(method: str, rounds: int, grace: float) -> dict[str, Any]:
    plan = experiment(method, clients=8, rounds=rounds, training={"lr": 0.3})
    return {**plan.table, "network": {"classes": 10, "deadline": 120.0, "grace": grace}}


def place_of(folder: Path, written: Mapping[str, Any], town: Town, peers: bool = False) -> Any:
    federation = experiment(clients=8).federation(Path())
    return made(folder, dict(written), town, federation, peers=peers)


def simulated(place: Place, folder: Path) -> Result:
    return execute(place.plan.setup(place.clients), place.plan.run, name="tiny", folder=folder)


def ended(place: Place, processes: Mapping[str, Process]) -> None:
    for name, process in processes.items():
        process.join(500)
        assert process.exitcode == 0, f"{name}\n" + "\n".join(place.log(each)[-2000:] for each in processes)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """(round, sender, receiver, phase, bytes, floats, missing) of all messages."""
    return list(zip(*pq.read_table(folder / "messages.parquet").to_pydict().values(), strict=True))


def accuracy(folder: Path) -> float:
    """The mean over the last 50 rounds: with a few test samples a client, single rounds differ by 2.3 points (sd)."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return statistics.fmean(line["accuracy"]["mean"] for line in lines[-50:])


def kill(process: Process) -> None:
    process.kill()
    process.join()


def test_who_is_killed_stopped_and_late_takes_part_again(tmp_path: Path, town: Town) -> None:
    with place_of(tmp_path, table("fedavg", 150, grace=0.2), town) as place:
        simulated(place, tmp_path / "here")
        server = place.serve("--out", str(tmp_path / "there"))
        nodes = {name: place.join(name) for name in NAMES}
        with place.follow("c00") as said:
            said.until("round 5:")
            for number, name in enumerate(KILLED):
                kill(nodes[name])
                said.until(f"round {10 + 10 * number}:")
                nodes[name] = place.join(name)
            # A stopped process is noticed by Zenoh's lease, after which the others go on without it.
            stopped = nodes["c04"].pid
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
            said.until("round 60:")
            os.kill(stopped, signal.SIGCONT)
        ended(place, {"server": server, **nodes})
        found = rows(tmp_path / "there")
        for name in (*KILLED, "c04"):
            told = {row[0]: row[6] for row in found if row[1] == name}
            assert any(why.startswith("gone") for why in told.values()), name
            assert told[150] == "", name
        assert accuracy(tmp_path / "here") - accuracy(tmp_path / "there") < 0.02
        status = read_status(tmp_path / "there" / FILE)
        assert (status.state, status.round) == ("ended", 150)
        assert all(status.others[name].round == 150 for name in NAMES)
