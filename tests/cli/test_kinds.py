"""What settings may be is said in words: no type of Python is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.cli.listing import describe_type, describe_value
from fedkin.running.plugins import KINDS


def settings(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings(field.annotation)
        else:
            yield name, field


@pytest.mark.parametrize("section", [name for name, kind in KINDS.items() if name not in ("metric", "graph")])
def test_every_setting_is_said_in_words(section: str) -> None:
    for part in KINDS[section].known.values():
        for name, field in settings(part):
            words = describe_type(field.annotation, field.metadata)
            assert not re.search(r"[\[\]<>|']|typing|Union|None|Info|Path|\bint\b|\bstr\b", words), (part, name, words)


def test_bounds_and_alternatives_are_said() -> None:
    said = CliRunner().invoke(app, ["list", "scenarios", "rotated-masked"], env={"COLUMNS": "200"}).stdout
    assert re.search(r"scenario.unseen +not set +number, above 0, below 1; or text; or list of: text; or not set", said)
    assert re.search(r"scenario.pooled +false +true or false", said)
    assert re.search(r"scenario.rotations +\[0, 90, 180, 270\] +list of: 0, 90, 180 or 270", said)
    assert describe_type(dict[str, tuple[str, ...]]) == "table of: list of: text"
    assert describe_type(Path) == "path"
    assert describe_value({"a": True}) == "a = true"
