"""Commands in this process: what they print, and in what words they refuse."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from fedkin.cli import app, main
from fedkin.errors import FedkinError

COMMANDS = typer.main.get_command(app)


def said(*words: str | Path, columns: int | None = None) -> str:
    """Standard output of a command that succeeds; columns: of its terminal."""
    env = None if columns is None else {"COLUMNS": str(columns)}
    ended = CliRunner().invoke(app, [str(word) for word in words], env=env)
    assert ended.exit_code == 0, f"{words}: {ended.output}\n{ended.exception!r}"
    return ended.stdout


def refused(*words: str | Path) -> str:
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    assert isinstance(error, FedkinError), error
    assert "\n" not in str(error)
    return str(error)


def fault(line: str, mentioned: bool = False) -> str | None:
    """What is wrong with a command line: a command or an option that does not exist, a value that cannot be read."""
    words = shlex.split(line, comments=True)[1:]
    for stop in ("&", "|", ">", "2>", "2>/dev/null"):
        words = words[: words.index(stop)] if stop in words else words
    words = [word.removesuffix(";") for word in words if word != "done"]
    command: Any = COMMANDS
    context = None
    try:
        while isinstance(command, click.Group) and words and words[0] != "--version":
            name, command, words = command.resolve_command(click.Context(command), words)
            assert command is not None, name
        context = command.make_context("fedkin", list(words))
    except click.exceptions.Exit:
        return None  # --version, and commands without arguments, which print their help
    except click.ClickException as error:
        if mentioned and (isinstance(error, click.MissingParameter) or "requires an argument" in error.message):
            return None
        return f"{line}: {error.format_message()}"
    finally:
        if context is not None:
            context.close()
    return None


class Terminal:
    """Runs whole commands, words as on the command line: (status, standard output, standard error)."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["fedkin", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, out, err

    def did(self, *words: str | Path) -> str:
        """Standard output of a command that succeeds and says nothing else."""
        code, out, err = self(*words)
        assert (code, err) == (0, "")
        return out

    def refused(self, *words: str | Path) -> str:
        """The one line with which a command refuses, without "error: "."""
        code, out, err = self(*words)
        assert (code, out, err.count("\n"), err[:7]) == (2, "", 1, "error: "), (code, out, err)
        return err.removeprefix("error: ").rstrip("\n")
