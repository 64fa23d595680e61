"""Registries that fill themselves: a new module in a package is found without any other change."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import Any


def discover(package: str, path: Iterable[str], base: type, field: str) -> dict[str, Any]:
    """Concrete subclasses of `base` defined in the modules of a package, by the default of their `field`.

    The order is alphabetical. Raises TypeError if two have the same name.
    """
    entries: dict[str, Any] = {}
    for module in iter_modules(path):
        full = f"{package}.{module.name}"
        for entry in vars(import_module(full)).values():
            if not isinstance(entry, type) or not issubclass(entry, base) or isabstract(entry):
                continue
            name = entry.model_fields[field].default  # type: ignore[attr-defined]
            # Imported classes, and base classes without a name of their own, are not entries.
            if entry.__module__ != full or not isinstance(name, str):
                continue
            if name in entries:
                raise TypeError(f"{package}: {entries[name].__name__} and {entry.__name__} are both {name!r}")
            entries[name] = entry
    return dict(sorted(entries.items()))
