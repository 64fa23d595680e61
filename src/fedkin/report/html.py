"""Pages from templates: texts are escaped, and Python passes rows of cells."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

NONE = Markup('<span class="quiet">–</span>')


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedkin.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip


def render(template: str, **values: Any) -> str:
    """Return a page from a template in this folder, with the style sheet as `css`."""
    return _environment().get_template(template).render(css=file_text("page.css"), **values)


def file_text(name: str) -> str:
    """Return a file in this folder as text."""
    return files("fedkin.report").joinpath(name).read_text(encoding="utf-8")


def small(text: str, below: str) -> Markup:
    """Return a cell with a small second text below its text."""
    return Markup("{}<small>{}</small>").format(text, below)
