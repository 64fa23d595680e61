"""The room stands alone: no torch, quick to import, every example runs, every name is on its page."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedkin.graph

MODULES = sorted(f"fedkin.graph.{module.name}" for module in pkgutil.iter_modules(fedkin.graph.__path__))


@pytest.mark.slow
def test_importing_loads_no_torch_and_nothing_slow() -> None:
    slow = ("torch", "sklearn", "sknetwork", "networkx", "pandas", "pyarrow", "plotly", "rustworkx", "ot", "numba")
    code = f"import sys, fedkin.graph; found = [m for m in {slow} if m in sys.modules]; assert not found, found"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["fedkin.graph", *MODULES])
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_every_public_function_has_an_example() -> None:
    for name in fedkin.graph.__all__:
        entry = getattr(fedkin.graph, name)
        reads_files = name in ("load_graph", "read_signatures", "read_rows")
        if callable(entry) and not reads_files and name != "Placement":
            assert ">>>" in (entry.__doc__ or ""), name


def test_the_page_of_the_room() -> None:
    page = Path(__file__).parents[2] / "docs" / "graph.md"
    for one in (page, page.with_name("groups.md")):
        assert doctest.testfile(str(one), module_relative=False).failed == 0
    text = page.read_text(encoding="utf-8")
    assert [name for name in fedkin.graph.__all__ if f"`{name}`" not in text] == []
