"""Commands whose imports, which take seconds, wait until their options have been read."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup

from fedkin.cli.quiet import quietly

__all__ = ["needing"]


def needing(module: str, group: bool = False) -> Any:
    """Return a class of commands, or of groups, that import this module before they begin, and not for their help."""

    def invoke(self: Any, context: Any) -> Any:
        with quietly():
            import_module(module)
        return super(made, self).invoke(context)

    made: Any = type("Needing", (TyperGroup if group else TyperCommand,), {"invoke": invoke})
    return made
