"""Folders of images over a network: a simulation's run, and what differs between sites in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedkin.data.own import own_images
from fedkin.data.sources.folder import Folder
from fedkin.federation import Client, Federation
from fedkin.network.agreement import Agreement, difference
from fedkin.running.experiment import Experiment
from fedkin.tasks import Task
from image_folders import wards
from network.federations import Clients, equal, simulated

NAMES = ("north", "south")


def plan_for(place: Path, **data: Any) -> Experiment:
    return Experiment.of({
        "name": "wards",
        "data": {"source": "folder", "path": str(place), "folders": "clients", "size": 4, **data},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 2, "batch_size": 4, "lr": 0.1}, "method": {"name": "fedavg"},
        "run": {"checkpoint_every": 1}, "network": {"clients": list(NAMES), "deadline": 60.0, "grace": 0.2},
    })  # fmt: skip


def sites(plan: Experiment, place: Path) -> dict[str, tuple[Client, Task]]:
    """What each site reads of its own folder."""
    assert isinstance(plan.data, Folder)
    return {name: own_images(name, str(place / name), plan.data) for name in NAMES}


@pytest.mark.parametrize("classes", [(), ("horse", "lynx", "dog", "cat")])
def test_it_is_the_simulation_bit_for_bit(classes: tuple[str, ...], tmp_path: Path) -> None:
    place = wards(tmp_path, *NAMES)
    if classes:
        shutil.rmtree(place / "south" / "cat")  # a site may lack a class that has a number
    plan = plan_for(place, classes=classes)
    here, own = simulated(plan, tmp_path / "here"), sites(plan, place).values()
    most = max((task for _, task in own), key=lambda task: task.classes)
    there = Clients(plan, tmp_path)
    there.federation = Federation([client for client, _ in own], most)
    equal(there.whole(), here)


def test_a_site_that_numbers_classes_otherwise_is_refused(tmp_path: Path) -> None:
    place = wards(tmp_path, *NAMES)
    shutil.rmtree(place / "south" / "cat")
    north, south = (
        Agreement(settings="", task=task, columns=client.about["columns"])
        for client, task in sites(plan_for(place), place).values()
    )
    assert difference(north, south) == "the class 'cat' is here and not there"
