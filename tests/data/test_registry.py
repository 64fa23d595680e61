"""Sources and scenarios are found by being there, and `federate` finds them by name; what a data set is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data import SCENARIOS, SOURCES, federate
from fedkin.data.dataset import Dataset, Part
from fedkin.data.registry import discover
from fedkin.data.scenarios.base import shuffled_ids
from fedkin.data.scenarios.label_skew import Iid
from fedkin.data.sources.base import Source, locate
from fedkin.data.sources.images import Digits
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Scale, Task

MODULE = """
from typing import Literal
from fedkin.data.sources.images import Digits
from fedkin.data.sources.base import Source
from data_sets import toy

class Family(Source):
    def load(self, root): ...

class {name}(Family):
    source: Literal["{source}"] = "{source}"
"""


def test_what_there_is() -> None:
    assert {"cifar10", "cifar100", "digits", "emnist", "fashion-mnist", "femnist", "mnist", "npz"} <= set(SOURCES)
    assert "qmnist" in SOURCES
    for registry in (SOURCES, SCENARIOS):
        assert list(registry) == sorted(registry)
    for known in (*SOURCES.values(), *SCENARIOS.values()):
        assert (known.__doc__ or "").split("\n\n")[0].strip().endswith(".")
    assert all(scenario.planted for scenario in SCENARIOS.values())


def test_a_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_by_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "b.py").write_text(MODULE.format(name="B", source="zebra"))
    (package / "c.py").write_text(MODULE.format(name="C", source="ant"))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover("found_by_test", [str(package)], Source, "source")
    assert {name: entry.__name__ for name, entry in found.items()} == {"ant": "C", "zebra": "B"}
    assert list(found) == ["ant", "zebra"]
    (package / "d.py").write_text(MODULE.format(name="D", source="ant"))
    with pytest.raises(TypeError, match="C and D are both 'ant'"):
        discover("found_by_test", [str(package)], Source, "source")
    for name in [name for name in sys.modules if name.startswith("found_by_test")]:
        monkeypatch.delitem(sys.modules, name)


def test_locate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, here = tmp_path / "root", tmp_path / "here"
    for folder in (root, here):
        folder.mkdir()
        (folder / "both").touch()
    (here / "one").touch()
    monkeypatch.chdir(here)
    assert locate(root, Path("both")) == root / "both"
    assert locate(root, Path("one")) == Path("one")
    assert locate(root, Path("none")) == root / "none"
    assert locate(root, here / "both") == here / "both"
    monkeypatch.setenv("HOME", str(here))
    assert locate(root, Path("~/one")) == here / "one"


def test_federate(digits: Dataset) -> None:
    by_name = federate("digits", "iid", clients=3, seed=4, data={"seed": 1})
    by_object = federate(Digits(seed=1), Iid(clients=3), seed=4)
    assert list(by_name) == list(by_object)
    assert by_name.sizes == by_object.sizes
    assert federate(digits, "iid", clients=3).name == "digits-iid"


@pytest.mark.parametrize(("source", "scenario", "settings", "said"), [
    ("digit", "iid", {}, "source: no 'digit'; did you mean 'digits'"),
    ("digits", "idd", {}, "scenario: no 'idd'"),
    ("digits", "iid", {"client": 3}, r"scenario\.client: no such setting; did you mean 'clients'"),
    ("digits", "iid", {"data": {"path": "x"}}, r"data\.path: no such setting"),
    ("digits", Iid(), {"clients": 3}, "clients: set these on the scenario that you passed"),
    (Digits(), "iid", {"data": {"seed": 3}}, "data: set 'seed' on the source that you passed"),
])  # fmt: skip
def test_federate_refuses(source: Any, scenario: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        federate(source, scenario, **settings)


# -- Dataset and Part, and the ids of clients ----------------------------------------------------------------------


def test_by_class() -> None:
    part = Part(torch.zeros(6, 2), torch.tensor([2, 0, 2, 4, 0, 2]))
    assert [rows.tolist() for rows in part.by_class(6)] == [[1, 4], [], [0, 2, 5], [], [3], []]


def test_white() -> None:
    def of(x: torch.Tensor, scale: Scale | None) -> float:
        return Dataset("a", Part(x, torch.zeros(2, dtype=torch.int64)), Part(x[:0], torch.zeros(0)), TASK, scale).white

    byte = torch.tensor([[3], [9]], dtype=torch.uint8)
    assert of(byte, Scale(divide=16.0)) == 16
    assert of(byte, None) == 9
    assert of(byte.float(), Scale(divide=2.0)) == 9


TASK = Task(2, (1,))


def test_refuses_parts_that_do_not_fit() -> None:
    x, y = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(DataError, match="samples and labels differ in number: 3 and 2"):
        Part(x, y[:2])
    with pytest.raises(DataError, match="samples and clients differ in number: 3 and 1"):
        Part(x, y, np.array(["a"]))
    with pytest.raises(DataError, match=r"mine: test inputs have shape \(4,\), the task's is \(1,\)"):
        Dataset("mine", Part(x, y), Part(torch.zeros(3, 4), y), TASK)


@given(st.integers(1, 300), st.integers(0, 3))
def test_ids(count: int, seed: int) -> None:
    ids = shuffled_ids(count, seed)
    assert ids == shuffled_ids(count, seed)
    numbers = [int(id[1:]) for id in ids]
    assert sorted(numbers) == list(range(count))
    assert len({len(id) for id in ids}) == 1, "they sort as their numbers do"
    assert count == 1 or all(number != place for place, number in enumerate(numbers))
    assert count < 10 or ids != shuffled_ids(count, seed + 1)
