"""The app in Flower's own simulation: the numbers of fedkin's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")
pytest.importorskip("ray", reason="Flower's simulation needs Ray: pip install 'flwr[simulation]'")

from network.federations import experiment, same, state_in
from network.flowering import deployed
from town import Town

pytestmark = pytest.mark.slow


def test_it_gives_the_numbers_of_fedkins_simulation(tmp_path: Path, town: Town) -> None:
    plan = experiment("sfmtl-graph", clients=3, rounds=3)
    with deployed(tmp_path, town, plan.federation(Path())) as made:
        one = made.trial("trial", {name: part for name, part in plan.table.items() if name != "network"})
        made.simulation()
        one.app("--simulation")
        one.run("flwr", "simulation", "--federation-config", "num-supernodes=3 client-resources-num-cpus=1")
        here, there = one.simulated(made.federation), one.folder / "run"
        one.ended(nodes=())
        assert (there / "rounds.jsonl").read_bytes() == (here / "rounds.jsonl").read_bytes()
        assert same(state_in(there)["server"], state_in(here)["server"])
        assert len(list((one.folder / "run-clients").glob("c0*/visit.safetensors"))) == 3
