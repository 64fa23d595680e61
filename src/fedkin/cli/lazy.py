"""Commands that import slow modules only after their options have been read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup

from fedkin.cli.exit_status import quiet_interrupts

__all__ = ["command_after_import"]


def command_after_import(module: str | None, group: bool = False, **checks: Callable[[Any], object]) -> Any:
    """Return a class of commands (or groups) that import a module when they run, and not for their help.

    checks: by parameter, a function that raises ConfigError for a value that is certainly wrong; called before imports.
    """

    def invoke(self: Any, context: Any) -> Any:
        for name, check in checks.items():
            check(context.params.get(name))
        if module is not None:
            with quiet_interrupts():
                import_module(module)
        return super(command_class, self).invoke(context)

    command_class: Any = type("LazyCommand", (TyperGroup if group else TyperCommand,), {"invoke": invoke})
    return command_class
