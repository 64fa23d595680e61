"""Every example in a docstring, and every Python block of the pages that say so, runs and prints what it says."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import fedkin

ROOT = Path(__file__).parents[1]
# A room with example tests of its own is not run twice.
ELSEWHERE = "fedkin.graph"
MODULES = ["fedkin", *(m.name for m in walk_packages(fedkin.__path__, "fedkin.") if not m.name.startswith(ELSEWHERE))]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.failed == 0


@pytest.mark.usefixtures("here")
def test_the_page_of_data() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "data.md"), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


@pytest.mark.usefixtures("forgotten", "here")
@pytest.mark.parametrize("page", ["docs/advise.md", "docs/models.md", "docs/tasks.md", "docs/writing-a-method.md"])
def test_pages(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_every_public_name_is_there() -> None:
    for name in fedkin.__all__:
        assert getattr(fedkin, name) is not None
    assert set(fedkin.__all__) <= set(dir(fedkin))
    assert all(not name.startswith("_") or name == "__version__" for name in dir(fedkin))
    assert len(dir(fedkin)) < 40
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedkin.nothing
