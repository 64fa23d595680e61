"""Federations on a Flower deployment of processes: what a simulation computes, and who is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from network.federations import experiment, same, state_in
from network.flowering import Deployment, deployed
from town import Town

pytestmark = pytest.mark.slow

NAMES = [f"c0{number}" for number in range(3)]


@pytest.fixture
def place(tmp_path: Path, town: Town) -> Any:
    def made(method: str = "fedavg", /, rounds: int = 3, **sections: Mapping[str, Any]) -> Any:
        plan = experiment(method, clients=3, rounds=rounds, **sections)
        network = {"clients": NAMES, "classes": 10, "shape": [1, 8, 8], "deadline": 240.0, "grace": 120.0}
        table = {**plan.table, "network": network}
        return deployed(tmp_path / method, table, town, experiment(clients=3).federation(Path()))

    return made


def equal(here: Path, there: Path) -> None:
    """Whether the records of a run on Flower are those of a simulation."""
    assert (there / "rounds.jsonl").read_bytes() == (here / "rounds.jsonl").read_bytes()
    assert same(state_in(there)["server"], state_in(here)["server"])
    assert (there / "report.html").exists()


def finished(made: Deployment, log: str = "flwr") -> None:
    made.until(log, "fedkin: the run has ended")
    for name in NAMES:
        made.ended(f"node-{name}")


def test_it_is_the_simulation_bit_for_bit_and_who_is_not_registered_is_refused(place: Any) -> None:
    with place("sfmtl-graph") as made:
        here = made.simulated()
        made.all_up()
        made.supernode("mallory")
        made.app()
        made.run()
        finished(made)
        assert "Receiving" not in made.log("supernode-mallory")
        assert "Receiving" in made.log("supernode-c00")
        equal(here, made.folder / "run")


def test_a_node_that_is_killed_comes_back_and_a_server_that_is_killed_goes_on(place: Any) -> None:
    with place("flt", rounds=2) as made:
        here = made.simulated()
        made.all_up()
        made.app()
        made.run()
        made.until("node-c00", "round 1:")
        made.kill("node-c00")
        made.node("c00")
        made.until("flwr", "fedkin: round 1 of 2 is done")
        made.kill_app()
        made.kill("flwr")
        made.run("flwr-again")
        made.until("flwr-again", "fedkin: 1 of 2 rounds are done")
        finished(made, "flwr-again")
        equal(here, made.folder / "run")
