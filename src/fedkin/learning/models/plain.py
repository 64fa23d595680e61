"""Plain torch modules as named nets: the arguments of their class become settings."""

from __future__ import annotations

import inspect
import types
import typing
import warnings
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, create_model
from torch import nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.base import Model
from fedkin.learning.split_body_head import parted
from fedkin.untrusted import said

__all__ = ["Plain", "plain"]

_OURS = ("name", "head", "module", "build")
_VALUES = (bool, int, float, str)


class Plain(Model):
    """Settings of a plain torch module; head: the name of its head, by default its last Linear."""

    model_config = ConfigDict(protected_namespaces=())
    module: ClassVar[type[nn.Module]]

    head: str | None = None

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in _OURS}
        if "task" in inspect.signature(self.module).parameters:
            given["task"] = task
        try:
            made = self.module(**given)
        except Exception as error:  # whatever a class of the user's does
            raise ConfigError(f"model: {self.module.__name__}: {type(error).__name__}: {said(error)}") from error
        return parted(made, task, self.head)


_KNOWN: dict[type[nn.Module], type[Model]] = {}


def plain(module: type[nn.Module]) -> type[Model]:
    """Return settings for a class of torch modules: a field for each argument that has a plain value, or no default.

    The name is the class's own `name` if it has one, else that of the class. An argument `task` is the task; another
    one that has a default which is no number, text, truth value or list of these is not a setting. Raises ConfigError
    for arguments that cannot be settings.

    >>> class Narrow(nn.Module):
    ...     def __init__(self, width: int = 8):
    ...         super().__init__()
    >>> plain(Narrow)()
    Narrow(name='Narrow', head=None, width=8)
    """
    if module in _KNOWN:
        return _KNOWN[module]
    own = module.__dict__.get("name")
    name = own if isinstance(own, str) else module.__name__
    try:
        hints = typing.get_type_hints(module.__init__)
    except Exception:  # a name that is there for type checkers only
        hints = {}
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for given in inspect.signature(module).parameters.values():
        if given.name == "task" or given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD):
            continue
        needed = given.default is given.empty
        if not needed and not _usual(given.default):
            continue
        if given.name in _OURS or given.name.startswith("_") or given.kind is given.POSITIONAL_ONLY:
            raise ConfigError(f"{module.__name__}: its argument {given.name!r} cannot be a setting: rename it")
        hint = hints.get(given.name, given.empty)
        fields[given.name] = (_hint(hint, given.default), ... if needed else given.default)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = create_model(module.__name__, __base__=Plain, __module__=module.__module__, **fields)
    except Exception as error:  # names that pydantic keeps for itself, types that it does not know
        raise ConfigError(f"{module.__name__}: its arguments cannot be settings: {said(error)}") from error
    _KNOWN[module], made.module = made, module
    made.__doc__ = inspect.cleandoc(module.__dict__.get("__doc__") or f"The torch module {module.__name__}.")
    return made


def _usual(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_usual(each) for each in value)
    return value is None or isinstance(value, _VALUES)


def _hint(hint: Any, default: object) -> Any:
    """The type of a setting: as annotated if values in a file can have it, else as its default."""
    if _simple(hint):
        return hint
    if type(default) is int:
        return int | float
    return type(default) if type(default) in _VALUES else bool | Any


def _simple(hint: Any) -> bool:
    if typing.get_origin(hint) in (list, tuple, typing.Union, types.UnionType):
        return all(_simple(part) for part in typing.get_args(hint))
    return hint in (*_VALUES, type(None), ...) or typing.get_origin(hint) is Literal
