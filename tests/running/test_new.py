"""What `fedkin new` writes: its test passes as written, and the part is found by its file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin.cli.commands import app
from fedkin.errors import ConfigError
from fedkin.running import own
from fedkin.running.new import write_new


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    known, path = {section: dict(kind.known) for section, kind in own.KINDS.items()}, list(sys.path)
    yield
    for section, kind in own.KINDS.items():
        kind.known.clear()
        kind.known.update(known[section])
    own._FILES.clear()
    sys.path[:] = path
    for name in [name for name in sys.modules if name.removeprefix("test_").startswith("made_")]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["scenario", "metric", pytest.param("method", marks=pytest.mark.slow)])
def test_the_test_of_a_new_part_passes_and_its_file_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(app, ["new", kind, f"made-{kind}", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert f"python -m pytest {tmp_path}/test_made_{kind}.py" in done.output
    part = f"made_{kind}" if kind == "metric" else f"Made{kind.capitalize()}"
    assert f"{tmp_path}/made_{kind}.py:{part}" in done.output
    monkeypatch.syspath_prepend(str(tmp_path))
    tests = importlib.import_module(f"test_made_{kind}")
    run = [test for name, test in vars(tests).items() if name.startswith("test_")]
    assert len(run) == 2
    for test in run:
        test()
    names, _ = own.named_in([f"{tmp_path}/made_{kind}.py:{part}"], kind, Path(), kind)
    assert names == [f"made-{kind}"]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("methd", "mine", "new: no kind 'methd'; did you mean 'method'"),
        ("method", "My Method", "expected a name in small letters such as my-method"),
        ("metric", "a/b", "expected a name in small letters such as my-metric"),
        ("metric", "class", "expected a name in small letters"),
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
