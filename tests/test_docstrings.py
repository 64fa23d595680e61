"""Every public class, function, method and property says what it is, or overrides one that does."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import fedkin

MODULES = [module.name for module in pkgutil.walk_packages(fedkin.__path__, "fedkin.") if "._" not in module.name]
ROOMS = sorted({name.split(".")[1] for name in MODULES})


def public(module: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of what a module defines under names without an underscore."""
    for name, entry in vars(importlib.import_module(module)).items():
        if name.startswith("_") or getattr(entry, "__module__", None) != module:
            continue
        if inspect.isclass(entry) or inspect.isfunction(entry):
            yield f"{module}.{name}", entry
        if inspect.isclass(entry):
            for member, value in vars(entry).items():
                if not member.startswith("_") and isinstance(value, (staticmethod, classmethod, property)):
                    yield f"{module}.{name}.{member}", value
                elif not member.startswith("_") and inspect.isfunction(value):
                    yield f"{module}.{name}.{member}", getattr(entry, member)


def documented(entry: Any) -> bool:
    """Whether an object has a docstring; a class its own, a method perhaps that of what it overrides."""
    return bool(entry.__doc__ if inspect.isclass(entry) else inspect.getdoc(entry))


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_documented(room: str) -> None:
    modules = [name for name in MODULES if name.split(".")[1] == room]
    found = {name: entry for module in modules for name, entry in public(module)}
    assert sorted(name for name, entry in found.items() if not documented(entry)) == []


def test_what_is_looked_at() -> None:
    found = dict(public("fedkin.running.trackers"))
    assert {"fedkin.running.trackers.MLflow", "fedkin.running.trackers.MLflow.start"} <= set(found)
    assert documented(found["fedkin.running.trackers.MLflow.start"])  # inherited from Tracker

    class Silent:
        def act(self) -> None: ...

    assert not documented(Silent)
    assert not documented(Silent.act)
