"""Parts from files over a network: what others send names none, and the refusal says how a file becomes a package."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedkin.errors import ConfigError
from fedkin.running import plugins
from fedkin.running.experiment import load
from fedkin.running.networked import check_own, plan_of, settings_of
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


@pytest.mark.parametrize(
    ("sections", "group", "name", "target"),
    [
        ({"method": {"name": "own_parts.py:Mine"}}, "methods", "mine", "Mine"),
        ({"model": {"name": "own_parts.py:Small"}}, "models", None, "Small"),
        ({"run": {"metrics": ["own_parts.py:right_share"]}}, "metrics", "right-share", "right_share"),
    ],
    ids=["method", "model", "metric"],
)
def test_a_part_from_a_file_is_refused_with_the_lines_of_a_package(
    sections: dict[str, Any], group: str, name: str | None, target: str, tmp_path: Path
) -> None:
    (tmp_path / "own_parts.py").write_text(PARTS)
    path = tmp_path / "e.toml"
    path.write_text(tomli_w.dumps({**TABLE, **sections}))
    for refused in (settings_of, check_own):
        with pytest.raises(ConfigError, match=r"own: over a network files stay where they are") as error:
            refused(load(path))
    package = tomllib.loads(str(error.value).split("\n\n")[1])
    assert package["tool"]["setuptools"] == {"py-modules": ["own_parts"]}
    ((given, place),) = package["project"]["entry-points"][f"fedkin.{group}"].items()
    assert place == f"own_parts:{target}"
    assert name in (None, given)
    # What these lines install can be sent: the part has the name that the lines give it.
    part = getattr(sys.modules["own_parts"], target)
    assert plugins.KINDS[plugins.GROUPS[group]].taken(part)[0] == given


@pytest.mark.parametrize("name", ["own_parts.py:right_share", "right-share"])
def test_settings_of_others_name_metrics_that_are_known_and_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "own_parts.py").write_text(PARTS)
    path = tmp_path / "e.toml"
    path.write_text(tomli_w.dumps({**TABLE, "run": {"metrics": ["balanced-accuracy"]}}))
    sent = settings_of(load(path)).replace("balanced-accuracy", name.replace("own_parts", f"{tmp_path}/own_parts"))
    with pytest.raises(ConfigError, match=r"run\.metrics: no '"):
        plan_of(sent, Task(2, (4,)))
    assert "own_parts" not in sys.modules
