"""Eight peers that are killed, stopped and cut off: nobody hangs, and who returns takes part and learns.

Undisturbed means a simulation of the same experiment, which undisturbed peers equal (test_peer.py).
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import Town, Wire
from network.federations import state_in
from network.processes import Follow, Place, accuracy, ended, kill, place_for, rows, simulated
from support import present, same

pytestmark = pytest.mark.slow

NAMES = [f"c0{number}" for number in range(8)]
HALF, KILLED = NAMES[4:], ["c01", "c02", "c03"]
ROUNDS, STAGE = 150, 6  # of those that may miss something; of them between two things that happen
UNLIKE = {"name": "mixed", "bodies": ["small-plain", "small-residual", "mlp"], "width": 8}


@contextmanager
def halves(place: Place) -> Iterator[tuple[str, list[Wire]]]:
    """A join file for the second half of the peers, and the wires by which they dial the first half."""
    with ExitStack() as stack:
        wires = {name: Wire(place.ports[name]) for name in NAMES if name not in HALF}
        for wire in wires.values():
            stack.callback(wire.close)
        yield place.by({name: wire.port for name, wire in wires.items()}), list(wires.values())


def test_all_that_come_back_in_time_change_no_bit(tmp_path: Path, town: Town) -> None:
    mapl: dict[str, Any] = {"method": {"warmup": 4, "hidden": 9}, "model": UNLIKE, "run": {"network": "regular:3"}}
    with (
        place_for(tmp_path, town, "mapl", rounds=20, grace=120.0, peers=True, **mapl) as place,
        halves(place) as (far, wires),
    ):
        simulated(place, tmp_path / "here")
        peers, said, away = place.join_all(HALF, far), Follow(place, "c00"), Follow(place, "c07")
        said.until("mapl: round 2 ")
        for name in KILLED:  # one after another
            kill(peers[name])
            peers[name] = place.join(name)
        said.until("mapl: round 6 ")
        for wire in wires:
            wire.cut(apart=True)
        said.until("is not connected: waiting")
        away.until("is not connected: waiting")
        for wire in wires:
            wire.mend()
        said.until("mapl: round 10 ")
        for again in (12, 14):
            kill(*peers.values())
            peers = place.join_all()
            said.until(f"mapl: round {again} ")
        ended(place, peers)
    known = state_in(tmp_path / "here")["clients"]
    for name in NAMES:
        folder = tmp_path / f"{name}-state"
        assert same(state_in(folder)["clients"][name], known[name]), name
        assert sorted(rows(folder)) == sorted(row for row in rows(tmp_path / "here") if name in row), name
        assert (folder / "report.html").exists()


class Stages:
    """Rounds that are opened a few at a time: what happens to peers happens before the same rounds on every machine."""

    def __init__(self, place: Place) -> None:
        self.place, self.done = place, 0

    def go_on(self) -> None:
        """Let all do a few more rounds."""
        self.done += STAGE
        self.place.open(self.done)

    def all_there(self) -> None:
        """Wait until all have done the rounds that are open, and see each other."""
        self.place.level(self.done + 1)


def test_who_is_killed_stopped_and_cut_off_takes_part_again(tmp_path: Path, town: Town) -> None:
    sections: dict[str, Any] = {"training": {"lr": 0.3}, "run": {"network": "full"}}
    with (
        place_for(tmp_path, town, "dfedavgm", rounds=ROUNDS, grace=2.0, peers=True, **sections) as place,
        halves(place) as (far, wires),
    ):
        simulated(place, tmp_path / "here")
        place.gated, stages = True, Stages(place)
        peers, said, away = place.join_all(HALF, far), Follow(place, "c00"), Follow(place, "c07")

        def heard_again(name: str) -> None:
            stages.all_there()
            stages.go_on()
            said.until(f"{name}: heard again")

        stages.go_on()
        for name in KILLED:
            stages.all_there()
            kill(peers[name])
            stages.go_on()
            said.until(f"{name}: gone: the connection is lost")
            peers[name] = place.join(name)
            heard_again(name)
        stages.all_there()
        stopped = present(peers["c01"].pid)
        os.kill(stopped, signal.SIGSTOP)
        stages.go_on()
        said.until("c01: gone: it does not answer")
        os.kill(stopped, signal.SIGCONT)
        heard_again("c01")
        stages.all_there()
        for wire in wires:
            wire.cut(apart=True)
        stages.go_on()
        said.until("c07: gone")
        away.until("c00: gone")
        for wire in wires:
            wire.mend()
        heard_again("c07")
        away.until("c00: heard again")
        stages.all_there()
        assert stages.done < ROUNDS / 2
        place.open(ROUNDS)
        ended(place, peers)
        states = {name: tmp_path / f"{name}-state" for name in NAMES}
        for name in NAMES[1:]:
            heard = {row[0]: row[6] for row in rows(states["c00"]) if row[1] == name}
            assert any(why.startswith("gone") for why in heard.values()), name
            assert heard[ROUNDS] == "", name
        there = statistics.fmean(accuracy(folder) for folder in states.values())
        assert accuracy(tmp_path / "here") - there < 0.02
