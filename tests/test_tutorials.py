"""The README, the tutorials and the notebook: every block runs, and prints what the page shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.invoked import said

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.M | re.S)


@pytest.fixture(autouse=True)
def empty(forgotten: None, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, from which nothing that a page defines is known afterwards."""
    monkeypatch.syspath_prepend(str(here))


def like(shown: str, line: str) -> bool:
    """Whether a line is the one that is shown; figures to .02, for other processors; `...` at the end is anything."""
    shown, line = " ".join(shown.split()), " ".join(line.split())
    if shown.endswith("..."):
        return line.startswith(shown.removesuffix("...").rstrip())
    number = re.compile(r"\d*\.\d+")
    if number.sub("#", shown) != number.sub("#", line):
        return False
    pairs = zip(number.findall(shown), number.findall(line), strict=True)
    return all(abs(float(one) - float(other)) <= 0.02 + 0.02 * abs(float(one)) for one, other in pairs)


def missing(shown: str, printed: str) -> str | None:
    """The first line that is shown and was not printed, in this order; lines of `...` stand for any others."""
    lines = iter(printed.splitlines())
    for one in shown.splitlines():
        if one.strip() not in ("", "...") and not any(like(one, line) for line in lines):
            return one
    return None


def done(code: str, file: str, names: dict[str, Any]) -> str:
    """What this code prints."""
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        exec(compile(code, file, "exec"), names)
    return heard.getvalue()


def called(words: list[str]) -> str:
    """What a command prints."""
    if words[0] == "python":
        return subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True).stdout
    assert words[0] == "fedkin", words
    return said(*words[1:])


def follow(page: Path) -> int:
    """Do what a page says; the number of blocks of output that were compared."""
    names: dict[str, Any] = {"__name__": "page"}
    printed, compared = "", 0
    for language, title, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if title:
            Path(title).write_text(body, encoding="utf-8")
        elif language == "sh":
            printed = "\n".join(called(shlex.split(line)) for line in body.splitlines())
        elif language == "python":
            printed = done(body, str(page), names)
        elif language == "text":
            assert missing(body, printed) is None, f"{page.name}: not printed: {missing(body, printed)}\n{printed}"
            compared += 1
        else:
            raise AssertionError(f"{page.name}: a block of {language!r} that nobody tries")
    return compared


@pytest.mark.slow
@pytest.mark.parametrize(("page", "blocks"), [("first-run", 2), ("my-table", 3), ("my-method", 2), ("my-model", 4)])
def test_tutorial(page: str, blocks: int) -> None:
    assert follow(DOCS / "tutorials" / f"{page}.md") == blocks


@pytest.mark.slow
def test_readme() -> None:
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    code, shown = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, flags=re.M | re.S)[0]
    printed = done(code, "README.md", {"__name__": "page"})
    assert missing(shown, printed) is None, printed


def test_what_is_not_printed_is_seen() -> None:
    printed = "a 0.51\nb 3\nrecords: runs/first\n"
    assert missing("a 0.52\n...\nrecords: ...\n", printed) is None
    assert missing("a 0.62\n", printed) == "a 0.62"
    assert missing("b 3\na 0.51\n", printed) == "a 0.51"
    assert missing("b 4\n", printed) == "b 4"


def shown_by(cell: dict[str, Any], names: dict[str, Any]) -> str:
    """What Jupyter would show of a cell: what it prints, then the value of its last line."""
    source = ast.parse("".join(cell["source"]))
    last = source.body.pop() if isinstance(source.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        exec(compile(source, "first.ipynb", "exec"), names)
        value = (
            eval(compile(ast.Expression(last.value), "first.ipynb", "eval"), names)
            if isinstance(last, ast.Expr)
            else None
        )
    return heard.getvalue() + ("" if value is None else repr(value))


@pytest.mark.slow
def test_notebook() -> None:
    book = json.loads((DOCS / "notebooks" / "first.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["language"]) == (4, "python")
    names: dict[str, Any] = {"__name__": "__main__"}
    compared = 0
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        found = shown_by(cell, names)
        kept = "".join("".join(out.get("text", out.get("data", {}).get("text/plain", ""))) for out in cell["outputs"])
        assert missing(kept, found) is None, f"{''.join(cell['source'])}\n{found}"
        assert bool(kept) == bool(found)
        compared += bool(kept)
    assert compared >= 4
