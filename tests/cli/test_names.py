"""What a shell completes, and the examples in every command's help."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from fedkin.cli import app, options
from fedkin.cli.commands import EXAMPLES
from fedkin.data.fetching import ORIGINS
from fedkin.data.scenarios import SCENARIOS
from fedkin.data.sources import SOURCES
from fedkin.learning.models import MODELS
from fedkin.methods import METHODS
from fedkin.running.presets import preset_names

NAMES: dict[str, Any] = {
    "methods": METHODS, "scenarios": SCENARIOS, "sources": SOURCES, "models": MODELS, "presets": preset_names(),
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_every_built_in_name_is_read_from_the_files(kind: str) -> None:
    parts = NAMES[kind]
    built_in = [name for name in parts if isinstance(parts, list) or parts[name].__module__.startswith("fedkin.")]
    assert sorted(options.names_of_kind(kind)) == sorted(built_in)


def test_data_sets_and_kinds_are_completed() -> None:
    assert sorted(options.data_set_names("")) == sorted(ORIGINS)
    assert options.kind_names("m") == ["methods", "models", "metrics"]


def test_lists_of_methods_are_completed_one_after_another() -> None:
    assert options.method_lists("fedproto") == ["fedproto"]
    assert options.method_lists("local,fedprot") == ["local,fedproto"]
    assert options.method_lists("fedproto,fedprot") == []


def test_experiments_are_presets_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits-mine.toml", "digits.csv", "other.toml"):
        Path(name).write_text("")
    Path("digits").mkdir()
    Path("digits/a.toml").write_text("")
    assert options.experiment_files("digits") == ["digits-rotated", "digits/", "digits-mine.toml"]
    assert options.experiment_files("digits/") == ["digits/a.toml"]
    assert options.experiment_files("nowhere/") == []


def test_a_shell_completes_without_the_imports_that_take_seconds() -> None:
    code = (
        "import sys\n"
        "from fedkin.cli import main\n"
        "sys.argv = ['fedkin']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(' '.join({'torch', 'numpy', 'pydantic'} & set(sys.modules)))\n"
    )
    asked = {
        "_FEDKIN_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedkin compare digits-rotated --methods local,fedprot",
        "COMP_CWORD": "4",
        "PATH": "/bin",
        "PYTHONPATH": str(Path(options.__file__).parents[2]),
    }
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked, check=False)
    assert ended.stdout.split() == ["local,fedproto"]
    assert ended.stderr.strip() == ""


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
