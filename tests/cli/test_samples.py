"""How `fedkin net join` and `fedkin net peer` come to their samples, where these are tables."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from fedkin.cli.participant import joined, met
from fedkin.cli.participant import read_samples as reader
from fedkin.errors import ConfigError, DataError
from fedkin.federation.summaries import agree
from fedkin.network.ledger import Ledger
from fedkin.network.link import Left
from fedkin.network.messages import encode
from fedkin.network.table_profiles import Shared
from fedkin.running.experiment import Experiment
from fedkin.running.networked import shared_in
from network.memory import MemoryNetwork
from sites import wards
from stays import written


def plan_for(folder: Path) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died"},
        "scenario": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [4]}, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1},
        "method": {"name": "dfedavgm"}, "network": {"clients": ["north"]},
    })  # fmt: skip


def test_a_table_is_shown_told_and_encoded(tmp_path: Path) -> None:
    plan, shown, ledger = plan_for(folder := written(tmp_path / "stays")), list[str](), Ledger()
    read = reader(plan, "north", str(folder / "north.csv"), None, None, "west")
    assert read.table is not None
    agreed = agree({"north": read.table.told}, read.table.reading)
    network, state = MemoryNetwork(), tmp_path / "state"
    state.mkdir()

    def yes(lines: list[str]) -> bool:
        shown.extend(lines)
        return True

    with network.link("server") as server, network.link("north") as link:
        server.offer("north", "encoding", encode(Shared(agreed, ("north",)).answer("north")))
        client, task = joined(read, plan, link, state, "server", yes, ledger, Event())
    assert (client.group, task.kind, task.shape) == ("west", "risk", (len(agreed.encoding.names),))
    assert any("rare ones may identify people" in line for line in shown)
    assert ledger.beside == ["profile"]
    kept = shared_in(state)
    assert kept is not None
    assert kept.agreed == agreed


def test_without_consent_nothing_of_a_table_leaves(tmp_path: Path) -> None:
    plan = plan_for(folder := written(tmp_path / "stays"))
    read = reader(plan, "north", str(folder / "north.csv"), "died", 0.2)
    network = MemoryNetwork()
    with network.link("south") as south, network.link("north") as link:
        with pytest.raises(Left):
            met(read, plan, link, tmp_path, ["north", "south"], lambda lines: False, Ledger(), Event())
        assert not network._served("north", "south", "profile")
        _, _, shared = met(read, plan, link, tmp_path, ["north", "south"], lambda lines: True, Ledger(), Event())
        assert shared is not None
        assert shared.clients == ("north",)
        assert south.pull("north", "profile", 5)  # for those who come later


def test_options_that_the_experiment_decides(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    with pytest.raises(ConfigError, match="--target age: the experiment learns 'died'"):
        reader(plan, "north", "north.csv", "age", None)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.2"):
        reader(plan, "north", "north.csv", None, 0.5)


def test_a_folder_of_images_is_read_as_the_experiment_says(tmp_path: Path) -> None:
    place = wards(tmp_path)
    plan = Experiment.of({
        "name": "wards", "data": {"source": "folder", "path": "elsewhere", "size": 4, "test_fraction": 0.4},
        "scenario": {"name": "domains"}, "model": {"name": "mlp"}, "training": {"rounds": 1, "lr": 0.1},
        "method": {"name": "fedavg"}, "network": {"classes": 3},
    })  # fmt: skip
    read = reader(plan, "north", str(place / "north"), None, 0.4, "west")
    assert read.ready is not None
    client, task = read.ready
    assert (client.id, client.group, task.shape, len(client.test)) == ("north", "west", (3, 4, 4), 6)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.4"):
        reader(plan, "north", str(place / "north"), None, 0.5)
    with pytest.raises(ConfigError, match="--target y: this is for a table"):
        reader(plan, "north", str(place / "north"), "y", None)
    with pytest.raises(DataError, match="no such folder"):
        reader(plan, "north", str(place / "nobody"), None, None)
