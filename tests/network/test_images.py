"""Folders of images over a network: a simulation's run, and what differs between sites in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedkin.data.own import own_images
from fedkin.data.sources.folder import Folder
from fedkin.errors import RunError
from fedkin.federation import Federation
from fedkin.running.experiment import Experiment
from network.federations import Ending, clients, federated, served, simulated
from sites import wards

NAMES = ("north", "south")


def plan_for(place: Path, **data: Any) -> Experiment:
    return Experiment.of({
        "name": "wards",
        "data": {"source": "folder", "path": str(place), "folders": "clients", "size": 4, **data},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 2, "batch_size": 4, "lr": 0.1}, "method": {"name": "fedavg"},
        "run": {"checkpoint_every": 1}, "network": {"clients": list(NAMES), "deadline": 60.0, "grace": 0.2},
    })  # fmt: skip


def sites(plan: Experiment, place: Path) -> tuple[Federation, dict[str, Any]]:
    """What each site reads of its own folder, together, and its own task."""
    assert isinstance(plan.data, Folder)
    own = {name: own_images(name, str(place / name), plan.data) for name in NAMES}
    most = max((task for _, task in own.values()), key=lambda task: task.classes)
    return Federation([client for client, _ in own.values()], most), {name: task for name, (_, task) in own.items()}


def refusal(plan: Experiment, federation: Federation, folder: Path, **south: Any) -> tuple[str, list[str]]:
    """What south ends with, and what the server says, which waits for another one until it is stopped."""
    words: list[str] = []
    with clients(federation, folder / "nodes") as there:
        there.start("north")

        def say(line: str) -> None:
            words.append(line)
            if line.startswith("north is here"):
                there.start("south", **south)

        class Until(Ending):
            def stopping(self) -> bool:
                return "south" in there.threads and not there.threads["south"].is_alive()

        with pytest.raises(RunError, match="stopped while clients were awaited"):
            served(plan, there.network, folder / "there", watcher=Until(), say=say)
        there.join("south")
        return there.errors["south"], [line for line in words if "refused" in line]


@pytest.mark.parametrize("classes", [(), ("horse", "lynx", "dog", "cat")])
def test_it_is_the_simulation_bit_for_bit(classes: tuple[str, ...], tmp_path: Path) -> None:
    place = wards(tmp_path, *NAMES)
    if classes:
        shutil.rmtree(place / "south" / "cat")  # a site may lack a class that has a number
    plan = plan_for(place, classes=classes)
    here, federation = simulated(plan, tmp_path / "here"), sites(plan, place)[0]
    result, _ = federated(plan, federation, tmp_path)
    assert result.rounds == here.rounds
    assert sorted(result.clients) == sorted(here.clients)


def test_a_site_that_numbers_classes_otherwise_is_refused(tmp_path: Path) -> None:
    place = wards(tmp_path, *NAMES)
    shutil.rmtree(place / "south" / "cat")
    plan = plan_for(place)
    federation, tasks = sites(plan, place)
    error, said = refusal(plan, federation, tmp_path, task=tasks["south"])
    words = "the class 'cat' is here and not there (here: north; there: south)"
    assert error == f"the server refuses this client: {words}"
    assert said == [f"south is refused: {words}"]
