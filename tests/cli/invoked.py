"""Commands in this process: what they print, and in what words they refuse."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.errors import FedkinError


def said(*words: str | Path) -> str:
    ended = CliRunner().invoke(app, [str(word) for word in words])
    assert ended.exit_code == 0, f"{words}: {ended.output}\n{ended.exception!r}"
    return ended.output


def refused(*words: str | Path) -> str:
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    assert isinstance(error, FedkinError), error
    assert "\n" not in str(error)
    return str(error)
