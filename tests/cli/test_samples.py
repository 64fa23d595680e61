"""How `fedkin net join` comes to its samples, and what it asks before anything of a table leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.cli.participant import read_samples
from fedkin.data.own import OwnTable
from fedkin.engines.ledger import Ledger
from fedkin.errors import ConfigError, DataError
from fedkin.network.client import NetworkClient
from fedkin.network.link import Left
from fedkin.running.experiment import Experiment
from fedkin.running.networked import exchange, settings_of, setup_of
from image_folders import wards
from network.memory import MemoryNetwork
from stays import written


def plan_for(folder: Path) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died"},
        "scenario": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [4]}, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1},
        "method": {"name": "dfedavgm"}, "network": {"clients": ["north"]},
    })  # fmt: skip


@pytest.mark.parametrize("server", [True, False])
def test_without_consent_nothing_of_a_table_leaves(server: bool, tmp_path: Path) -> None:
    plan, shown = plan_for(folder := written(tmp_path / "stays")), list[str]()
    read = read_samples(plan, "north", str(folder / "north.csv"), 0.2, "west")
    assert isinstance(read, OwnTable)
    assert read.group == "west"

    def no(lines: list[str]) -> bool:
        shown.extend(lines)
        return False

    network, ledger, state = MemoryNetwork(), Ledger(), tmp_path / "state"
    state.mkdir()
    link = network.link("north")
    with network.link("server"), link:
        client = NetworkClient(link, read, setup_of, state, settings=settings_of(plan), consent=no, ledger=ledger)
        with pytest.raises(Left):
            client.run() if server else exchange(plan, link, read, ["north", "south"], state, consent=no, ledger=ledger)
        assert not [data for data in link.offers.values() if data]
    assert any("rare ones may identify people" in line for line in shown)
    assert any("params (of the net: body.1.weight [4, " in line for line in shown)
    assert ledger.sent_unprotected == []


def test_options_that_the_experiment_decides(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.2"):
        read_samples(plan, "north", "north.csv", 0.5)


def test_a_folder_of_images_is_read_as_the_experiment_says(tmp_path: Path) -> None:
    place = wards(tmp_path)
    plan = Experiment.of({
        "name": "wards", "data": {"source": "folder", "path": "elsewhere", "size": 4, "test_fraction": 0.4},
        "scenario": {"name": "domains"}, "model": {"name": "mlp"}, "training": {"rounds": 1, "lr": 0.1},
        "method": {"name": "fedavg"}, "network": {"classes": 3},
    })  # fmt: skip
    read = read_samples(plan, "north", str(place / "north"), 0.4, "west")
    assert isinstance(read, tuple)
    client, task = read
    assert (client.id, client.group, task.shape, len(client.test)) == ("north", "west", (3, 4, 4), 6)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.4"):
        read_samples(plan, "north", str(place / "north"), 0.5)
    with pytest.raises(DataError, match="no such folder"):
        read_samples(plan, "north", str(place / "nobody"), None)
