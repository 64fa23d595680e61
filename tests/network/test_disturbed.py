"""A server and eight clients that are killed, stopped and cut off: nobody hangs, and who returns takes part again.

How many rounds someone misses depends on how quick the machine is, so accuracy is not bounded here: the run must be
the simulation in which the same answers are missing, bit for bit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path

import pytest

from certificates import Town, Wire
from fedkin.engines import LocalEngine
from fedkin.network.status import FILE, read_status
from network.federations import state_in
from network.processes import Follow, Place, ended, equal, kill, place_for, rows, simulated
from support import Losing, present, same

pytestmark = pytest.mark.slow

FAR = ["c04", "c05", "c06", "c07"]
KILLED = ["c01", "c02", "c03"]
QUICK = {"lr": 0.3}


@contextmanager
def begun(place: Place, run: Path) -> Iterator[tuple[Wire, Process, dict[str, Process]]]:
    """A server and its clients, half of which reach it over a wire."""
    wire = Wire(place.ports["server"])
    try:
        far = place.by({"server": wire.port})
        server = place.serve("--out", str(run))
        yield wire, server, place.join_all(FAR, far)
    finally:
        wire.close()


def test_all_that_come_back_in_time_change_no_bit(tmp_path: Path, town: Town) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "ifca", rounds=40, grace=120.0, training=QUICK) as place:
        here = simulated(place, tmp_path / "here")
        with begun(place, run) as (wire, server, nodes):
            said, away = Follow(place, "c00"), Follow(place, "c07")
            said.until("round 3:")
            for name in KILLED:  # one after another
                kill(nodes[name])
                nodes[name] = place.join(name)
            said.until("round 8:")
            wire.cut(apart=True)  # half of the clients
            away.until("the server is not reached")
            wire.mend()
            away.until("round 13:")
            for again in ("round 20:", "round 27:"):
                kill(server)
                server = place.serve("--resume", str(run))
                said.until("joining again")
                said.until(again)
            kill(server, *nodes.values())
            server = place.serve("--resume", str(run))
            ended(place, {"server": server, **place.join_all()})
    equal(run, here)


def test_who_is_killed_stopped_and_cut_off_takes_part_again(tmp_path: Path, town: Town) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", rounds=150, grace=0.2, training=QUICK) as place:
        with begun(place, run) as (wire, server, nodes):
            said, away = Follow(place, "c00"), Follow(place, "c07")
            said.until("round 3:")
            for number, name in enumerate(KILLED):
                kill(nodes[name])
                said.until(f"round {10 + 10 * number}:")
                nodes[name] = place.join(name)
            wire.cut(apart=True)
            away.until("the server is not reached")
            said.until("round 40:")
            wire.mend()
            away.until("round")
            # A stopped process is noticed by Zenoh's lease, after which the others go on without it.
            stopped = present(nodes["c04"].pid)
            os.kill(stopped, signal.SIGSTOP)
            said.until("round 90:")
            os.kill(stopped, signal.SIGCONT)
            ended(place, {"server": server, **nodes})
        # A simulation in which the answers that the run missed are lost has its models and its scores.
        missed = {(row[0], row[1], row[3]) for row in rows(run) if row[6]}
        lose = Losing(lambda sent: sent.receiver == "server" and (sent.round, sent.sender, sent.phase) in missed)
        here = simulated(place, tmp_path / "here", make=lambda setup: LocalEngine(setup, transport=lose))
    assert same(*(state_in(each)["server"] for each in (tmp_path / "here", run)))
    scored = [row for row in here.clients if (row[0], row[1], "evaluate") not in missed]
    assert sorted(rows(run, "clients")) == sorted(scored)
    found = rows(run)
    for name in place.names[1:]:
        told = {row[0]: row[6] for row in found if row[1] == name}
        assert any(why.startswith("gone") for why in told.values()), name
        assert told[150] == "", name
    status = read_status(run / FILE)
    assert (status.state, status.round) == ("ended", 150)
    assert all(status.others[name].round == 150 for name in place.names)
