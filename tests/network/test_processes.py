"""A server and clients as processes over Zenoh with mutual TLS: what a simulation computes, also after kills."""

from __future__ import annotations

import json
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedkin.running.loop import Result, execute
from network.federations import experiment, same, state_in
from network.processes import Place, made
from town import Town

pytestmark = pytest.mark.slow

NAMES = ["c00", "c01", "c02", "c03"]


def table(method: str, rounds: int) -> dict[str, Any]:
    plan = experiment(method, clients=4, rounds=rounds)
    return {**plan.table, "network": {"classes": 10, "deadline": 120.0, "grace": 20.0}}


def simulated(place: Place, folder: Path) -> Result:
    return execute(place.plan.setup(place.clients), place.plan.run, name="tiny", folder=folder)


def ended(place: Place, *processes: Process) -> None:
    for process in processes:
        process.join(400)
        assert process.exitcode == 0, "\n".join(map(place.log, ("server", *NAMES)))


def equal(folder: Path, here: Result, kept: Path) -> None:
    """Whether the records of a server are those of a simulation."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rows == here.rounds
    for name, known in (("clients", here.clients), ("messages", here.messages)):
        there = list(zip(*pq.read_table(folder / f"{name}.parquet").to_pydict().values(), strict=True))
        assert sorted(there) == sorted(known), name
    assert same(state_in(folder)["server"], state_in(kept)["server"])
    assert (folder / "report.html").exists()


@pytest.mark.parametrize("method", ["fedavg", "sfmtl-graph"])
def test_it_is_the_simulation_bit_for_bit(method: str, tmp_path: Path, town: Town) -> None:
    written = table(method, 3)
    with made(tmp_path, written, town, experiment(clients=4).federation(Path())) as place:
        here = simulated(place, tmp_path / "here")
        server = place.serve("--out", str(tmp_path / "there"))
        nodes = [place.join(name) for name in NAMES]
        ended(place, server, *nodes)
        equal(tmp_path / "there", here, tmp_path / "here")


def test_kills_of_a_client_and_of_the_server_change_no_bit(tmp_path: Path, town: Town) -> None:
    with made(tmp_path, table("ifca", 40), town, experiment(clients=4).federation(Path())) as place:
        here = simulated(place, tmp_path / "here")
        server = place.serve("--out", str(tmp_path / "there"))
        nodes = {name: place.join(name) for name in NAMES}
        with place.follow("c01") as said:
            said.until("round 5:")
            nodes["c01"].kill()
            nodes["c01"].join()
            # Within network.grace: the request waits for it, and is answered from the state that was kept.
            nodes["c01"] = place.join("c01")
            said.until("round 12:")
            server.kill()
            server.join()
            server = place.serve("--resume", str(tmp_path / "there"))
            said.until("joining once more")
            said.until("round 30:")
        ended(place, server, *nodes.values())
        equal(tmp_path / "there", here, tmp_path / "here")


def test_peers_are_the_simulation_bit_for_bit(tmp_path: Path, town: Town) -> None:
    written = table("mapl", 4)
    written["method"] |= {"warmup": 2, "hidden": 9}
    with made(tmp_path, written, town, experiment(clients=4).federation(Path()), peers=True) as place:
        simulated(place, tmp_path / "here")
        ended(place, *[place.peer(name) for name in NAMES])
        known = state_in(tmp_path / "here")["clients"]
        for name in NAMES:
            assert same(state_in(tmp_path / f"{name}-state")["clients"][name], known[name]), name
            assert (tmp_path / f"{name}-state" / "report.html").exists()
