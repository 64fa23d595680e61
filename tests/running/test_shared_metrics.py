"""Further metrics over a network: by name for all, from each participant's own file."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedkin.errors import ConfigError
from fedkin.learning.metrics import MEASURES
from fedkin.running import plugins
from fedkin.running.experiment import load
from fedkin.running.networked import plan_of, settings_of
from fedkin.running.shared_metrics import check_metrics, read_metrics, sendable, with_metrics
from fedkin.tasks import Task
from fedkin.untrusted import toml_of
from network.federations import OWN_METRIC
from tiny import TABLE

pytestmark = pytest.mark.usefixtures("forgotten")
METHOD = """
import fedkin
from fedkin.methods.fedavg import FedAvg


class Mine(FedAvg):
    name = "mine"


@fedkin.metric(higher=True)
def right_share(outputs, targets):
    return (outputs.argmax(1) == targets).mean()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_wrong.py").write_text(OWN_METRIC)
    (tmp_path / "own_method.py").write_text(METHOD)
    return tmp_path


def written(folder: Path, **sections: Any) -> Path:
    path = folder / "e.toml"
    path.write_text(tomli_w.dumps({**TABLE, **sections}))
    return path


def forget(name: str) -> None:
    MEASURES.pop(name)
    plugins._FILES.clear()


def test_what_is_sent_names_metrics_and_no_file(folder: Path) -> None:
    path = written(folder, run={"metrics": ["own_wrong.py:wrong_share", "balanced-accuracy"]})
    plan = load(path)
    assert toml_of(settings_of(plan))["run"]["metrics"] == ["wrong-share", "balanced-accuracy"]
    text = sendable(plan, path.read_text())
    assert str(folder) not in text
    assert ".py" not in text
    assert settings_of(load(written(folder, **toml_of(text)))) == settings_of(plan)
    bare = written(folder, run={"metrics": ["balanced-accuracy"]})
    assert sendable(load(bare), bare.read_text()) == bare.read_text()


def test_a_participant_without_the_metric_says_which_and_how_to_bring_it(folder: Path) -> None:
    plan = load(written(folder, run={"metrics": ["own_wrong.py:wrong_share"]}))
    table = toml_of(sendable(plan, ""))
    settings = settings_of(plan)
    forget("wrong-share")
    lacking = with_metrics(table)
    assert settings_of(lacking) == settings
    words = r"run\.metrics: no metric 'wrong-share': give --metric FILE\.py:NAME, or install the package"
    with pytest.raises(ConfigError, match=words):
        plan_of(settings, Task(2, (4,)))
    with pytest.raises(ConfigError, match=words):
        check_metrics(lacking.run.metrics)
    names, files = read_metrics([f"{folder}/own_wrong.py:wrong_share"])
    assert settings_of(with_metrics({**table, "own": files}, names)) == settings
    assert [each.name for each in plan_of(settings, Task(2, (4,))).measures] == ["wrong-share"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("wrong-share", r"--metric: expected FILE\.py:NAME, got 'wrong-share'"),
        ("own_wrong.py:wrong", r"--metric: own_wrong\.py: no metric 'wrong'"),
        ("none.py:wrong", r"--metric: .*none\.py: No such file"),
    ],
)
def test_what_is_no_file_with_the_metric(named: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=words):
        read_metrics([named])


def test_a_metric_for_which_nobody_asks(folder: Path) -> None:
    names, _ = read_metrics([f"{folder}/own_wrong.py:wrong_share"])
    with pytest.raises(
        ConfigError, match=r"--metric: the experiment does not ask for 'wrong-share': balanced-accuracy"
    ):
        with_metrics({**TABLE, "run": {"metrics": ["balanced-accuracy"]}}, names)
    with pytest.raises(ConfigError, match=r"--metric: the experiment does not ask for 'wrong-share': for none"):
        with_metrics(TABLE, names)


def test_what_others_send_names_no_file(folder: Path) -> None:
    sent = with_metrics({**TABLE, "run": {"metrics": [f"{folder}/own_wrong.py:wrong_share"]}})
    with pytest.raises(ConfigError, match=r"names a file, and what others send names none"):
        plan_of(settings_of(sent), Task(2, (4,)))
    assert "own_wrong" not in {Path(path).stem for path in plugins._FILES}


@pytest.mark.parametrize(
    "sections",
    [
        {"method": {"name": "own_method.py:Mine"}},
        {"method": {"name": "own_method.py:Mine"}, "run": {"metrics": ["own_method.py:right_share"]}},
    ],
)
def test_own_parts_of_other_kinds_stay_refused(sections: dict[str, Any], folder: Path) -> None:
    path = written(folder, **sections)
    for refused in (settings_of, lambda plan: sendable(plan, path.read_text())):
        with pytest.raises(ConfigError, match=r"own: over a network files stay where they are"):
            refused(load(path))


OWN_NET = """
import torch


class Small(torch.nn.Sequential):
    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
"""


def test_the_refusal_has_the_lines_that_make_a_file_a_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_net.py").write_text(OWN_NET)
    path = written(folder, model={"name": "own_net.py:Small"})
    with pytest.raises(ConfigError) as refused:
        settings_of(load(path))
    package = tomllib.loads(str(refused.value).split("\n\n")[1])
    assert package["tool"]["setuptools"] == {"py-modules": ["own_net"]}
    ((name, target),) = package["project"]["entry-points"]["fedkin.models"].items()
    assert target == "own_net:Small"
    # What these lines install can be sent: the model has the name that the lines give it.
    module, _, label = target.partition(":")
    part = plugins.KINDS["model"].taken(getattr(sys.modules[module], label))
    assert part[0] == name
