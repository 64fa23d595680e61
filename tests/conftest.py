"""Settings of all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedkin.federation import Federation
from fedkin.running import plugins
from support import Here, small_federation

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")
torch.set_num_threads(1)
os.fsync = lambda fd: None  # no test's files need to survive a power cut; tests of the order of writes count calls

# Their few tests are long: begun last, one process would run them while the other waits.
LONGEST = ("test_resume.py", "test_last_line.py", "test_tutorials.py", "test_fuzz.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def federation() -> Federation:
    """Six clients, two planted groups."""
    return small_federation()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode "workers" without a process, whose start costs seconds: tests/engines/test_modes.py starts some."""
    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", Here)


@pytest.fixture
def forgotten(tmp_path: Path) -> Iterator[None]:
    """What a test adds to fedkin's parts, and imports from its own folder, is gone afterwards."""
    known = {section: dict(kind.known) for section, kind in plugins.KINDS.items()}
    files, path, modules = dict(plugins._FILES), list(sys.path), set(sys.modules)
    yield
    for now, before in [
        (plugins._FILES, files),
        *((kind.known, known[section]) for section, kind in plugins.KINDS.items()),
    ]:
        now.clear()
        now.update(before)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
