"""Peers over a network, each with its own process in mind: what a simulation of them computes, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedkin import methods
from fedkin.engines import LocalEngine
from fedkin.flow import Message, PeerFlow, Share
from fedkin.methods.dfedavgm import DFedAvgM
from fedkin.network.messages import read
from fedkin.network.peer_exchange import PeerExchange, PeerMessage
from fedkin.network.status import FILE, read_status
from fedkin.views import PeerView
from network.federations import experiment, own_models, simulated, state_in
from network.peers import Peers, all_equal, rows_of, together
from support import Ending, Losing, same

UNLIKE = {"name": "mixed", "bodies": ["small-plain", "small-residual", "mlp"], "width": 8}


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("mapl", {"method": {"warmup": 2, "hidden": 9}, "run": {"network": "regular:3"}}),
        ("dfedavgm", {"run": {"network": "ring"}}),
        pytest.param("dfedavgm", {"training": {"clients_per_round": 5}}, marks=pytest.mark.slow),
        pytest.param("mapl", {"method": {"warmup": 2, "hidden": 9}, "model": UNLIKE}, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_simulation_bit_for_bit(method: str, sections: Mapping[str, Any], tmp_path: Path) -> None:
    plan = experiment(method, clients=8, **sections)
    here = simulated(plan, tmp_path / "here")
    there = all_equal(plan, tmp_path)
    own_models(there.root, here)
    for name, result in there.results.items():
        assert rows_of(result, name, "messages") == rows_of(here, name, "messages")
        assert rows_of(result, name, "clients") == rows_of(here, name, "clients")
        assert [row["sampled"] for row in result.rounds] == [row["sampled"] for row in here.rounds]
        assert read_status(there.root / name / FILE).weights


class SaysTooMuch(DFedAvgM):
    """A user's DFedAvgM in which one peer sends a field that is not declared."""

    name = "says-too-much"

    def round(self, peer: PeerView) -> PeerFlow[None]:
        flow, answer = super().round(peer), None
        with suppress(StopIteration):
            while True:
                request = flow.send(answer)
                if isinstance(request, Share) and peer.id == "c01":
                    request = Share(Message(**request.message, secret=1))
                answer = yield request


def test_what_is_not_declared_is_not_sent_and_refused_as_in_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods.METHODS, SaysTooMuch.name, SaysTooMuch)
    offered, put = list[PeerMessage](), PeerExchange._put

    def spied(self: PeerExchange, id: str, round: int, turn: int, data: bytes) -> None:
        if self.link.me == "c01":
            offered.append(read(PeerMessage, data))
        put(self, id, round, turn, data)

    monkeypatch.setattr(PeerExchange, "_put", spied)
    plan = experiment(SaysTooMuch.name, clients=3, rounds=2, run={"network": "full"})
    here = simulated(plan, tmp_path / "here")
    there = all_equal(plan, tmp_path)
    for name in ("c00", "c02"):
        one, other = (
            [(*row[:4], *row[6:]) for row in rows_of(result, name, "messages") if row[6]]
            for result in (here, there.results[name])
        )
        assert one == other
        assert {row[4:] for row in one} == {("refused", "secret is not declared")}
    assert len(offered) == 8  # in each round a message, or why there is none, and the end, to two neighbours
    assert not [message for message in offered if message.message is not None]


def test_a_neighbour_that_is_gone_is_left_out(tmp_path: Path) -> None:
    plan = experiment("dfedavgm", clients=4, run={"network": "full"})
    lose = Losing(lambda envelope: "c02" in (envelope.sender, envelope.receiver) and envelope.round > 1)
    simulated(plan, tmp_path / "here", make=lambda setup: LocalEngine(setup, transport=lose))
    with Peers(plan, tmp_path) as there:
        others = ["c00", "c01", "c03"]
        # Who leaves has nothing to offer any more: it stays until all have heard it in round 1.
        heard = together(4, 1)
        there.start(*others, watcher=Ending(then=heard))
        there.start("c02", watcher=Ending(1, heard))
        there.join(*others)
        assert there.errors == {"c02": "Stop"}
        known = state_in(tmp_path / "here")["clients"]
        assert all(same(known[name], there.state(name)) for name in others)
        missing = {f"{row[6]}: {row[7]}" for row in there.results["c00"].messages if row[1] == "c02" and row[0] > 1}
        assert missing == {"gone: the connection is lost", "gone: not connected"}
        assert [line for line in there.said["c00"] if line.startswith("round") and "c02" in line] == [
            "round 2: c02: gone: the connection is lost"
        ]


def test_what_differs_between_peers_is_named(tmp_path: Path) -> None:
    with Peers(experiment("dfedavgm", clients=2), tmp_path) as there:
        there.start("c00")
        there.start("c01", plan=experiment("dfedavgm", clients=2, training={"lr": 0.2}))
        there.join()
    assert "training.lr is 0.1 here and 0.2 there" in there.errors["c00"]
    assert "training.lr is 0.2 here and 0.1 there" in there.errors["c01"]


def test_a_method_with_a_server_is_not_for_peers(tmp_path: Path) -> None:
    with Peers(experiment("fedavg", clients=2), tmp_path) as there:
        there.start("c00")
        there.join()
    assert there.errors["c00"] == "method.name: 'fedavg' has a server; use fedkin net serve"
