"""The examples in every command's help."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

from fedkin.cli import app
from fedkin.cli.commands import EXAMPLES


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


def test_every_command_ends_its_help_with_its_examples() -> None:
    for name, command in commands(typer.main.get_command(app)):
        assert command.epilog == "\n\n".join(["Examples:", *EXAMPLES[name]])
    assert set(EXAMPLES) == {name for name, _ in commands(typer.main.get_command(app))}


def test_no_brackets_of_a_help_are_taken_for_styles() -> None:
    for name, command in commands(typer.main.get_command(app)):
        for text in (command.help, *(option.help for option in command.params if hasattr(option, "help"))):
            shown = Text.from_markup(text or "").plain
            assert shown.count("[") == (text or "").count("["), f"{name}: {text}"


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_read(example: str) -> None:
    """Its command is there and takes these options and values, though nothing is run."""
    words = shlex.split(re.sub(r" > \S+$", "", example))
    assert words.pop(0) == "fedkin"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
    context = command.make_context("fedkin", words)
    assert not context.args
