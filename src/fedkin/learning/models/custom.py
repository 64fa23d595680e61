"""Nets that users write as torch modules: split into body and head; classes of modules as named nets."""

from __future__ import annotations

import copy
import inspect
import logging
import types
import typing
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from pydantic import ConfigDict, create_model
from torch import Tensor, nn

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Task
from fedkin.learning.models.nets import Model
from fedkin.learning.net import sample_inputs
from fedkin.untrusted import error_text, escaped

Pair: TypeAlias = tuple[nn.Module, nn.Module]
# The forms in which a user may pass a net; a function makes a net for a task.
Modules: TypeAlias = Pair | nn.Module | Callable[[Task], Pair | nn.Module]

_LOG = logging.getLogger("fedkin")
_RESERVED = ("name", "head", "module", "build")
_VALUES = (bool, int, float, str)


# -- a whole module as body and head ----------------------------------------------------------------------------------


def pair_of(modules: Modules, task: Task, head: str | None = None) -> Pair:
    """Return (body, head) of modules in any of the forms of `Modules`; raises ConfigError for anything else."""
    pair: object = modules if isinstance(modules, (tuple, nn.Module)) or not callable(modules) else modules(task)
    if isinstance(pair, nn.Module):
        return parted(pair, task, head)
    if head is not None:
        raise ConfigError(f"head: {head!r}: it names the head of one whole module; a pair has its head already")
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair):
        raise ConfigError(
            f"model: expected a name, a torch module, a (body, head) pair of them, or a function of the task that "
            f"makes one, got {escaped(repr(pair), 80)}"
        )
    return pair


def parted(module: nn.Module, task: Task, head: str | None = None) -> Pair:
    """Return copies (body, head) of a module, such that head(body(x)) equals module(x).

    head: the name of the submodule that is the head, such as "fc" or "classifier.1"; without it the last Linear through
    which a sample passes (for segmentation the last Linear or Conv2d); this choice is logged once. Raises ConfigError
    without such a layer, or if the module computes more after its head.

    >>> import torch
    >>> body, head = parted(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), Task(2, (4,)), head="2")
    >>> head, body(torch.zeros(1, 4)).shape
    (Linear(in_features=3, out_features=2, bias=True), torch.Size([1, 3]))
    """
    kind = type(module).__name__
    whole = copy.deepcopy(module).cpu()
    training = {part: part.training for part in whole.modules()}
    sample = sample_inputs(task, next((p.dtype for p in whole.parameters() if p.is_floating_point()), torch.float32))
    whole.eval()
    expected, outputs = _outputs_of(whole, sample, task)
    name = _head_name(whole, list(outputs), task, head)
    if not name:
        return nn.Identity(), whole
    last = cut(whole, name)
    if not _ends_with(whole, last, sample, expected, *outputs.get(name, (None, 0))):
        raise ConfigError(
            f"model: {kind} computes more after {name!r}, its {'head' if head else 'last layer'}: it "
            "has to return what that gives (no softmax after it), or pass a (body, head) pair of modules"
        )
    for part, mode in training.items():
        part.training = mode
    if head is None:
        _log_head(kind, name, str(last))
    return whole, last


def _outputs_of(module: nn.Module, sample: Any, task: Task) -> tuple[Any, dict[str, tuple[Any, int]]]:
    """Return the output of a module, and of each part its last output and how often this had been written to.

    The parts are in the order of the passes. Raises ConfigError if the module does not take the sample.
    """
    outputs: dict[str, tuple[Any, int]] = {}

    def note(_: nn.Module, __: Any, output: Any, *, name: str) -> None:
        outputs.pop(name, None)
        outputs[name] = output, getattr(output, "_version", 0)

    hooks = [part.register_forward_hook(partial(note, name=name)) for name, part in module.named_modules()]
    try:
        with torch.no_grad():
            expected = module(sample)
    except Exception as error:  # a user's module may raise anything
        kind, reason = type(module).__name__, escaped(" ".join(str(error).split()), 300)
        raise ConfigError(
            f"model: {kind} does not take inputs of shape {task.shape} ({type(error).__name__}: {reason})"
        ) from error
    for hook in hooks:
        hook.remove()
    return expected, outputs


def cut(module: nn.Module, name: str) -> nn.Module:
    """Replace the submodule of this name by nn.Identity, and return the submodule."""
    parent, _, field = name.rpartition(".")
    part = module.get_submodule(name)
    setattr(module.get_submodule(parent), field, nn.Identity())
    return part


def _head_name(module: nn.Module, passed: list[str], task: Task, head: str | None) -> str:
    """Return the name of the head; passed: names of modules in the order of the passes. Raises ConfigError."""
    named = dict(module.named_modules())
    if head is not None:
        if head not in named:
            raise ConfigError(f"head: {type(module).__name__} has no {head!r}; {nearest(head, filter(None, named))}")
        return head
    kinds = (nn.Linear, nn.Conv2d) if task.kind == "segmentation" else (nn.Linear,)
    last = [name for name in passed if isinstance(named[name], kinds)]
    if not last:
        raise ConfigError(
            f"model: {type(module).__name__} has no {' or '.join(kind.__name__ for kind in kinds)}, so its head is not "
            'known: name the submodule that is, such as head="fc", or pass a (body, head) pair of modules'
        )
    return last[-1]


def _ends_with(body: nn.Module, head: nn.Module, sample: Any, expected: Any, output: Any, version: int) -> bool:
    """Whether the module returns what its head gives: the same memory, not written to since, and head(body(x)).

    The values of made-up samples prove nothing: a clamp, or a scale that begins at 1, may leave them unchanged.
    """
    if not isinstance(output, Tensor) or not isinstance(expected, Tensor) or output.shape != expected.shape:
        return False
    if output.untyped_storage().data_ptr() != expected.untyped_storage().data_ptr() or expected._version != version:
        return False
    try:
        with torch.no_grad():
            again = head(body(sample))
    except Exception:  # what comes after the head does not take features
        return False
    return again.shape == expected.shape and torch.allclose(again, expected, equal_nan=True)


@cache
def _log_head(module: str, name: str, last: str) -> None:
    text = 'model: the head of %s is its last layer, %s, %s; to choose another: head="NAME"'
    _LOG.warning(text, module, name, last)


# -- a class of modules as a named net --------------------------------------------------------------------------------


class Plain(Model):
    """Settings of a plain torch module; head: the name of its head, by default its last Linear."""

    model_config = ConfigDict(protected_namespaces=())
    module: ClassVar[type[nn.Module]]

    head: str | None = None

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        arguments = {name: getattr(self, name) for name in type(self).model_fields if name not in _RESERVED}
        if "task" in inspect.signature(self.module).parameters:
            arguments["task"] = task
        try:
            module = self.module(**arguments)
        except Exception as error:  # a user's class may raise anything
            raise ConfigError(f"model: {self.module.__name__}: {type(error).__name__}: {error_text(error)}") from error
        return parted(module, task, self.head)


_PLAIN: dict[type[nn.Module], type[Model]] = {}


def plain(module: type[nn.Module]) -> type[Model]:
    """Return settings for a class of torch modules: a field for each argument with a plain default, or without one.

    Plain defaults are numbers, texts, truth values and lists of these; arguments with other defaults are not settings.
    The name is the class's own `name` if it has one, else the name of the class. An argument `task` gets the task.
    Raises ConfigError for arguments that cannot be settings.

    >>> class Narrow(nn.Module):
    ...     def __init__(self, width: int = 8):
    ...         super().__init__()
    >>> plain(Narrow)()
    Narrow(name='Narrow', head=None, width=8)
    """
    if module in _PLAIN:
        return _PLAIN[module]
    own_name = module.__dict__.get("name")
    name = own_name if isinstance(own_name, str) else module.__name__
    fields: dict[str, Any] = {"name": (Literal[name], name), **_fields_of(module)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings = create_model(module.__name__, __base__=Plain, __module__=module.__module__, **fields)
    except Exception as error:  # names that pydantic reserves, types that it does not know
        raise ConfigError(f"{module.__name__}: its arguments cannot be settings: {error_text(error)}") from error
    _PLAIN[module], settings.module = settings, module
    settings.__doc__ = inspect.cleandoc(module.__dict__.get("__doc__") or f"The torch module {module.__name__}.")
    return settings


def _fields_of(module: type[nn.Module]) -> dict[str, Any]:
    """Return {argument: (type, default or ...)} of the arguments that are settings."""
    fields, hints = {}, _hints_of(module)
    for argument in inspect.signature(module).parameters.values():
        required = argument.default is argument.empty
        given = argument.name == "task" or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        if given or not (required or _is_plain(argument.default)):
            continue
        if argument.name in _RESERVED or argument.name.startswith("_") or argument.kind is argument.POSITIONAL_ONLY:
            raise ConfigError(f"{module.__name__}: its argument {argument.name!r} cannot be a setting: rename it")
        hint = _setting_type(hints.get(argument.name, argument.empty), argument.default)
        fields[argument.name] = (hint, ... if required else argument.default)
    return fields


def _hints_of(module: type[nn.Module]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(module.__init__)
    except Exception:  # a name that only type checkers know
        return {}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, _VALUES)


def _setting_type(hint: Any, default: object) -> Any:
    """The type of a setting: the annotated one if values in a file can have it, else that of its default."""
    if _in_files(hint):
        return hint
    if type(default) is int:
        return int | float
    return type(default) if type(default) in _VALUES else bool | Any


def _in_files(hint: Any) -> bool:
    if typing.get_origin(hint) in (list, tuple, typing.Union, types.UnionType):
        return all(_in_files(part) for part in typing.get_args(hint))
    return hint in (*_VALUES, type(None), ...) or typing.get_origin(hint) is Literal
