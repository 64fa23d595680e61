"""Controls of a method: the same method without exchange, with one group, and with random or true groups.

A comparison names them METHOD@self, @one, @random and @oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from fedkin.errors import ConfigError, nearest
from fedkin.flow import Method, PeerMethod
from fedkin.methods import METHODS
from fedkin.settings import choose

R = TypeVar("R")

CONTROLS = ("self", "one", "random", "oracle")
_MARK = "@"


def named(method: str, control: str) -> str:
    """The name of a method's control in a comparison: "flt@self"."""
    return f"{method}{_MARK}{control}"


def split_control(name: str) -> tuple[str, str | None]:
    """Split a name into method and control; the control is None for the method itself.

    >>> split_control("flt@random"), split_control("flt")
    (('flt', 'random'), ('flt', None))
    """
    method, mark, control = name.partition(_MARK)
    return method, control if mark else None


def without_exchange(name: str, results: Mapping[str, R]) -> R | None:
    """Return the results of the control without exchange, NAME@self; None if it was not run.

    For Local and for the control itself, these are their own results.
    """
    method, control = split_control(name)
    return results[name] if method == "local" or control == "self" else results.get(named(method, "self"))


def controls_of(method: type[Method]) -> dict[str, dict[str, Any]]:
    """Return the changes of settings that make each control of a method, by the control's name.

    self: nothing is exchanged; each client trains alone with the method's own loss. one: all clients are in one group,
    or equally near to each other. random: the method's edges (or groups) are assigned to other clients. oracle: the
    planted groups are the graph, so they must be known. A method has the controls that its settings can express; every
    method except Local has `self`.
    """
    fields = method.model_fields
    if method.kind == "local":
        return {}
    if issubclass(method, PeerMethod):
        fixed = {"method.graph.on": False} if "on" in _inner(method, "graph") else {}
        return {
            "self": {"run.alone": True}, **({"one": {**fixed, "run.network": "full"}} if fixed else {}),
            "random": {**fixed, "run.network": "erdos-renyi:0.5"}, "oracle": {**fixed, "run.network": "planted"},
        }  # fmt: skip
    if "control" in _inner(method, "graph"):
        # With one model for all clients, even a graph without edges shares the model.
        alone: dict[str, Any] = {"run.alone": True} if method.kind == "global" else {"method.graph.control": "self"}
        one: dict[str, Any] = {"method.graph.control": "uniform"}
        if method.name == "sfmtl-graph":
            one |= {"method.graph.groups": "single"}
        return {
            "self": alone, "one": one, "random": {"method.graph.control": "random"},
            "oracle": {"method.graph.control": "oracle"},
        }  # fmt: skip
    controls: dict[str, dict[str, Any]] = {"self": {"run.alone": True}}
    if "clusters" in fields:
        controls["one"] = {"method.clusters": 1}
    return controls


def changes_of(name: str, where: str = "methods") -> dict[str, Any]:
    """Return the changes of settings for a method or control, by its name; raises ConfigError for an unknown name."""
    method, control = split_control(name)
    kind = choose(METHODS, method, where)
    if control is None:
        return {}
    controls = controls_of(kind)
    if control not in controls:
        have = nearest(control, controls) if controls else f"{method} exchanges nothing"
        raise ConfigError(f"{where} {name}: {method} has no control {control!r}; {have}")
    return controls[control]


def with_controls(methods: Sequence[str], planted: bool, kinds: Mapping[str, type[Method]] = METHODS) -> list[str]:
    """Return the methods, each followed by its controls; `oracle` only if planted groups are known.

    >>> with_controls(["local", "fedavg", "fedu"], planted=False)
    ['local', 'fedavg', 'fedavg@self', 'fedu', 'fedu@self', 'fedu@one', 'fedu@random']
    """
    names: list[str] = []
    for name in methods:
        method, control = split_control(name)
        controls = [] if control is not None else list(controls_of(choose(kinds, method, "methods")))
        names += [name, *(named(name, each) for each in controls if planted or each != "oracle")]
    return list(dict.fromkeys(names))


def _inner(method: type[Method], name: str) -> Mapping[str, Any]:
    """The fields of an inner group of settings; empty if the method has no such group."""
    field = method.model_fields.get(name)
    kind = None if field is None else field.annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
