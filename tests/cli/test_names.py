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


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_ends_its_help_with_examples() -> None:
    for name, command in COMMANDS.items():
        head, *examples = command.epilog.split("\n\n")
        assert head == "Examples:"
        assert examples
        assert all(example.startswith(f"fedkin {name}") for example in examples)
        assert "\n" not in command.help


def test_no_brackets_of_a_help_are_taken_for_styles() -> None:
    for name, command in COMMANDS.items():
        for text in (command.help, *(option.help for option in command.params if hasattr(option, "help"))):
            shown = Text.from_markup(text or "").plain
            assert shown.count("[") == (text or "").count("["), f"{name}: {text}"


@pytest.mark.parametrize(
    "example", [line for command in COMMANDS.values() for line in command.epilog.split("\n\n")[1:]]
)
def test_every_example_is_read(example: str) -> None:
    """Its command is there and takes these options and values, though nothing is run."""
    words = shlex.split(re.sub(r" > \S+$", "", example))
    assert words.pop(0) == "fedkin"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
    context = command.make_context("fedkin", words)
    assert not context.args
