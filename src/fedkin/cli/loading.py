"""Commands whose imports, which take seconds, wait until their options have been read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup

from fedkin.cli.quiet import quietly

__all__ = ["needing"]


def needing(module: str, group: bool = False, **checks: Callable[[Any], object]) -> Any:
    """Return a class of commands, or of groups, that import this module before they begin, and not for their help.

    checks: functions of parameters that refuse what is certainly wrong before the imports.
    """

    def invoke(self: Any, context: Any) -> Any:
        for name, check in checks.items():
            check(context.params.get(name))
        with quietly():
            import_module(module)
        return super(made, self).invoke(context)

    made: Any = type("Needing", (TyperGroup if group else TyperCommand,), {"invoke": invoke})
    return made
