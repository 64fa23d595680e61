"""What `fedkin new` writes: its test passes as written, and the part is found by its file."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from cli.invoked import said
from fedkin.errors import ConfigError
from fedkin.flow import ServerMethod
from fedkin.running import new, plugins
from fedkin.running.experiment import load
from fedkin.running.new import write_new
from tiny import written

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.mark.parametrize("kind", ["scenario", "metric", pytest.param("method", marks=pytest.mark.slow)])
def test_the_test_of_a_new_part_passes_and_its_file_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = said("new", kind, f"made-{kind}", "--out", tmp_path)
    assert f"python -m pytest {tmp_path}/test_made_{kind}.py" in printed
    part = f"made_{kind}" if kind == "metric" else f"Made{kind.capitalize()}"
    assert f"{tmp_path}/made_{kind}.py:{part}" in printed
    monkeypatch.syspath_prepend(str(tmp_path))
    tests = importlib.import_module(f"test_made_{kind}")
    run = [test for name, test in vars(tests).items() if name.startswith("test_")]
    assert len(run) == 2
    for test in run:
        test()
    assert named_by(printed.splitlines()[-1], tmp_path) == f"made-{kind}"


def test_the_kinds_that_a_new_method_names_are_kinds() -> None:
    template = (Path(new.__file__).parent / "templates" / "method.txt").read_text()
    (line,) = [line for line in template.splitlines() if line.strip().startswith("kind =")]
    kinds = get_args(get_args(get_type_hints(ServerMethod)["kind"])[0])
    assert set(re.findall(r'"(\w+)"', line)) <= {*kinds}
    assert "personalised" in line


def named_by(printed: str, folder: Path) -> str:
    """The part that the printed command uses, as a shell hands its words over."""
    command = printed[printed.index("fedkin ") :]
    *_, option, value = shlex.split(command)
    if option == "--methods":
        return plugins.resolve_names(value.split(","), "method", "--methods")[0][-1]
    assert option == "--set"
    plan = load(written(folder / "e.toml"), [value])
    return plan.run.metrics[0] if "metrics" in value else plan.scenario.name


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("methd", "mine", "new: no kind 'methd'; did you mean 'method'"),
        ("method", "My Method", "expected a name in small letters such as my-part"),
        ("metric", "a/b", "expected a name in small letters such as my-part"),
        ("metric", "class", "expected a name in small letters"),
        ("method", "pandas", "there is a Python module 'pandas' already"),
        ("method", "fedavg", "there is a method 'fedavg' already; choose another name, such as my-fedavg"),
        ("scenario", "rotated-masked", "there is a scenario 'rotated-masked' already"),
        ("metric", "balanced-accuracy", "there is a metric 'balanced-accuracy' already"),
        ("metric", "mean", "metric 'mean': a column of tables has this name"),
        ("method", "message", "the file imports 'Message' from elsewhere; choose another name, such as my-message"),
        ("method", "ask", "the file imports 'Ask'"),
        ("scenario", "client", "the file imports 'Client'"),
        ("metric", "np", "the file imports 'np'"),
        ("method", "random", "there is a Python module 'random' already; choose another name, such as my-random"),
    ],
)
def test_names_that_cannot_be_are_refused(kind: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        write_new(kind, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("kept")
    with pytest.raises(ConfigError, match=r"test_mine.py exists, and is not written over"):
        write_new("metric", "mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
