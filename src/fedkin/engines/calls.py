"""Whether a method's functions take the arguments with which they are called."""

from __future__ import annotations

from functools import cache
from inspect import Parameter, Signature, getattr_static, signature
from types import FunctionType

from fedkin.engines.blame import place_in
from fedkin.errors import MethodError
from fedkin.flow import Method, PeerMethod, ServerMethod

__all__ = ["check_calls"]

_PHASE = ("self", "client", "message")


@cache
def check_calls(kind: type[Method]) -> None:
    """Raise MethodError for a function of a class of methods that cannot be called as fedkin calls it."""
    base = ServerMethod if issubclass(kind, ServerMethod) else PeerMethod
    calls = {
        name: tuple(signature(part).parameters)
        for name, part in {**vars(Method), **vars(base)}.items()
        if isinstance(part, FunctionType) and not name.startswith("_")
    }
    if issubclass(kind, ServerMethod):
        calls |= dict.fromkeys(kind.phases(), _PHASE)
    for name, expected in calls.items():
        bound = isinstance(getattr_static(kind, name), (classmethod, staticmethod))
        if (taken := _taken(getattr(kind, name), len(expected) - bound)) is not None:
            raise MethodError(
                f"{place_in(kind, name)}{name!r} takes {taken}; expected {name}({', '.join(expected)}), as it is called"
            )


def _taken(function: object, count: int) -> str | None:
    """Return the arguments of a function that does not take `count` of them by place; None if it does."""
    try:
        found = signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # what is no function of Python says nothing of its arguments
        return None
    try:
        found.bind(*range(count))
    except TypeError:
        plain = [each.replace(annotation=Parameter.empty) for each in found.parameters.values()]
        return str(Signature(plain))
    return None
