"""One file or package per algorithm, named as in its paper. fedkin finds the class in a new file by itself.

Every method can be imported by the name of its class: `from fedkin.methods import FedAvg`.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import Any

from fedkin.flow import AnyMethod, Method

__all__ = ["METHODS"]


def _methods() -> dict[str, Any]:
    """Return the methods by name; raise TypeError if two have the same name."""
    methods: dict[str, type[Method]] = {}
    for module in iter_modules(__path__):
        full = f"{__name__}.{module.name}"
        for entry in vars(import_module(full)).values():
            if not isinstance(entry, type) or not issubclass(entry, Method) or isabstract(entry):
                continue
            name = vars(entry).get("name")
            if not f"{entry.__module__}.".startswith(f"{full}.") or name is None:
                continue
            if name in methods:
                raise TypeError(f"{methods[name].__name__} and {entry.__name__} are both {name!r}")
            methods[name] = entry
    # The two with which others are compared come first.
    return {name: methods[name] for name in dict.fromkeys(["local", "fedavg", *sorted(methods)])}


METHODS: dict[str, type[AnyMethod]] = _methods()


def __getattr__(name: str) -> Any:
    for method in METHODS.values():
        if method.__name__ == name:
            return method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
