"""Parts from files over a network: they are refused, and what others send names none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedkin.errors import ConfigError
from fedkin.running.experiment import load
from fedkin.running.networked import check_no_files, settings_of, setup_of
from fedkin.tasks import Task
from tiny import TABLE

pytestmark = pytest.mark.usefixtures("forgotten")
PARTS = """
import fedkin
import torch
from fedkin.methods.fedavg import FedAvg


class Mine(FedAvg):
    name = "mine"


class Small(torch.nn.Sequential):
    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))


@fedkin.metric(higher=True)
def right_share(outputs, targets):
    return (outputs.argmax(1) == targets).mean()
"""


def written(folder: Path, **sections: Any) -> Path:
    """An experiment with these sections, beside a file of parts."""
    (folder / "own_parts.py").write_text(PARTS)
    (folder / "e.toml").write_text(tomli_w.dumps({**TABLE, **sections}))
    return folder / "e.toml"


@pytest.mark.parametrize(
    "sections",
    [
        {"method": {"name": "own_parts.py:Mine"}}, {"model": {"name": "own_parts.py:Small"}},
        {"run": {"metrics": ["own_parts.py:right_share"]}},
    ],
    ids=["method", "model", "metric"],
)  # fmt: skip
def test_a_part_from_a_file_is_refused(sections: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, **sections)
    for refused in (settings_of, check_no_files):
        with pytest.raises(ConfigError, match=r"own: .*own_parts.py: over a network files stay where they are"):
            refused(load(path))


@pytest.mark.parametrize("name", ["own_parts.py:right_share", "right-share"])
def test_settings_of_others_name_metrics_that_are_known_and_no_file(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, run={"metrics": ["balanced-accuracy"]})
    sent = settings_of(load(path)).replace("balanced-accuracy", name.replace("own_parts", f"{tmp_path}/own_parts"))
    with pytest.raises(ConfigError, match=r"run\.metrics: no '"):
        setup_of(sent, Task(2, (4,)))
    assert "own_parts" not in sys.modules
