"""A whole torch module as a net: it is parted into a body and a head."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Task
from fedkin.untrusted import shown

__all__ = ["Modules", "made_up", "pair_of", "parted"]

Pair: TypeAlias = tuple[nn.Module, nn.Module]
# A net as its user hands it over; a function makes it for a task.
Modules: TypeAlias = Pair | nn.Module | Callable[[Task], Pair | nn.Module]

_LOG = logging.getLogger("fedkin")


def pair_of(modules: Modules, task: Task, head: str | None = None) -> Pair:
    """Return (body, head) of modules in any of the forms of `Modules`; raises ConfigError for what is none of them."""
    made: object = modules if isinstance(modules, (tuple, nn.Module)) or not callable(modules) else modules(task)
    if isinstance(made, nn.Module):
        return parted(made, task, head)
    if head is not None:
        raise ConfigError(f"head: {head!r}: it names the head of one whole module; a pair has its head already")
    if not isinstance(made, tuple) or len(made) != 2 or not all(isinstance(part, nn.Module) for part in made):
        raise ConfigError(
            f"model: expected a name, a torch module, a (body, head) pair of them, or a function of the task that "
            f"makes one, got {shown(repr(made), 80)}"
        )
    return made


def parted(module: nn.Module, task: Task, head: str | None = None) -> Pair:
    """Return copies (body, head) of a module, such that head(body(x)) is what the module gives for x.

    head: the name of the submodule that is the head, such as "fc" or "classifier.1"; without it the last Linear that a
    sample meets (for segmentation the last Linear or Conv2d), which is logged once. Raises ConfigError if there is
    none, or if the module computes more after its head.

    >>> import torch
    >>> body, head = parted(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), Task(2, (4,)), head="2")
    >>> head, body(torch.zeros(1, 4)).shape
    (Linear(in_features=3, out_features=2, bias=True), torch.Size([1, 3]))
    """
    whole = copy.deepcopy(module).cpu()
    modes = [(part, part.training) for part in whole.modules()]
    sample = made_up(task, next((p.dtype for p in whole.parameters() if p.is_floating_point()), torch.float32))
    whole.eval()
    met: dict[str, tuple[Any, int]] = {}  # what each part returned last, in this order, and how often it was written to

    def note(_: nn.Module, __: Any, given: Any, *, name: str) -> None:
        met.pop(name, None)
        met[name] = given, getattr(given, "_version", 0)

    hooks = [part.register_forward_hook(partial(note, name=name)) for name, part in whole.named_modules()]
    expected = _answer(whole, sample, task)
    for hook in hooks:
        hook.remove()
    name = _chosen(whole, met, task, head)
    if not name:
        return nn.Identity(), whole
    parent, _, field = name.rpartition(".")
    last = whole.get_submodule(name)
    setattr(whole.get_submodule(parent), field, nn.Identity())
    if not (_same(*met.get(name, (None, 0)), expected) and _alike(_again(whole, last, sample), expected)):
        raise ConfigError(
            f"model: {type(module).__name__} computes more after {name!r}, its {'head' if head else 'last layer'}: it "
            "has to return what that gives (no softmax after it), or pass a (body, head) pair of modules"
        )
    for part, training in modes:
        part.training = training
    if head is None:
        _say(type(module).__name__, name, str(last))
    return whole, last


def made_up(task: Task, dtype: torch.dtype, rows: int = 2) -> Any:
    """Return made-up inputs of the task's shape: ones for token ids and codes, else values from -1 to 1."""

    def one(name: str, shape: tuple[int, ...]) -> Tensor:
        if name in task.codes:
            return torch.ones(rows, *shape, dtype=torch.int64)
        whole = torch.Size((rows, *shape))
        return torch.linspace(-1, 1, whole.numel(), dtype=dtype).reshape(whole)

    made = {name: one(name, shape) for name, shape in task.shapes.items()}
    return made if isinstance(task.shape, Mapping) else made["x"]


def _answer(module: nn.Module, sample: Any, task: Task) -> Any:
    try:
        with torch.no_grad():
            return module(sample)
    except Exception as error:  # whatever a module of the user's does
        raise ConfigError(
            f"model: {type(module).__name__} does not take inputs of shape {task.shape} ({type(error).__name__}: "
            f"{shown(' '.join(str(error).split()), 300)})"
        ) from error


def _chosen(module: nn.Module, met: Iterable[str], task: Task, head: str | None) -> str:
    """Return the name of the head; raises ConfigError."""
    named = dict(module.named_modules())
    kinds = (nn.Linear, nn.Conv2d) if task.kind == "segmentation" else (nn.Linear,)
    if head is not None:
        if head not in named:
            raise ConfigError(f"head: {type(module).__name__} has no {head!r}; {nearest(head, filter(None, named))}")
        return head
    last = [name for name in met if isinstance(named[name], kinds)]
    if not last:
        of = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"model: {type(module).__name__} has no {of}, so its head is not known: name the submodule that is, "
            'such as head="fc", or pass a (body, head) pair of modules'
        )
    return last[-1]


def _again(body: nn.Module, head: nn.Module, sample: Any) -> Any:
    """Return what head and body give; None if what comes after the head cannot take features."""
    try:
        with torch.no_grad():
            return head(body(sample))
    except Exception:  # whatever a module of the user's does
        return None


def _same(given: object, writes: int, answer: object) -> bool:
    """Whether a module's answer is what a part of it gave: the same memory, and not written to since.

    Values of a few made-up samples do not tell: a clamp or a scale that begins at 1 may leave them as they are.
    """
    if not (isinstance(given, Tensor) and isinstance(answer, Tensor) and _alike(given, answer)):
        return False
    one, other = given.untyped_storage().data_ptr(), answer.untyped_storage().data_ptr()
    return one == other and answer._version == writes


def _alike(one: object, other: object) -> bool:
    known = isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
    return known and torch.allclose(one, other, equal_nan=True)  # type: ignore[arg-type]


@cache
def _say(whole: str, name: str, last: str) -> None:
    _LOG.warning('model: the head of %s is its last layer, %s, %s; to choose another: head="NAME"', whole, name, last)
