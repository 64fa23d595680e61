"""A federation that is at hand in Python, to be run several times in a comparison or a sweep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import BaseModel

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.records.controls import controls_of, named, parted
from fedkin.records.folder import claimed
from fedkin.running.api import prepared, run
from fedkin.running.changes import assign, taken_changes
from fedkin.running.compare import Cells
from fedkin.running.loop import Result, Watcher
from fedkin.running.settings import without_none
from fedkin.settings import parse

__all__ = ["OfFederation"]

Method = ServerMethod | PeerMethod
# Sections of an experiment file, and the arguments of `fedkin.run` for them.
_SECTIONS = {"training": "training", "run": "settings", "faults": "faults", "privacy": "privacy"}


@dataclass(frozen=True, eq=False)
class OfFederation(Cells):
    """Runs on a federation, or on the one that a function makes for a seed.

    given: the methods by name. options: further arguments of `fedkin.run`. controls: which names are those of a control
    of the method that is given. method: which method it is, once known.
    """

    federation: Federation | Callable[[int], Federation]
    given: Mapping[str, Method]
    options: Mapping[str, Any] = field(default_factory=dict)
    controls: Mapping[str, str | None] = field(default_factory=dict)
    method: Method | None = None
    last: dict[int, Federation] = field(default_factory=dict)

    def for_method(self, name: str) -> Self:
        base, control = parted(name)
        control = control or self.controls.get(base)
        method = self.given[base]
        made = replace(self, method=method)
        if (method.name if control is None else named(method.name, control)) != name:
            made = made.with_changes(**{"run.label": name})
        if control is None:
            return made
        known = controls_of(type(method))
        if control not in known:
            have = nearest(control, known) if known else f"{base} exchanges nothing"
            raise ConfigError(f"{name}: {base} has no control {control!r}; {have}")
        return made.with_changes(**known[control])

    def with_changes(self, **changes: Any) -> Self:
        assert self.method is not None
        options = dict(self.options)
        table: dict[str, Any] = {"method": self.method.model_dump()}
        for section, name in _SECTIONS.items():
            given = options.get(name) or {}
            table[section] = given.model_dump() if isinstance(given, BaseModel) else copy.deepcopy(dict(given))
        for path, value in taken_changes(changes)[0].items():
            section = path.partition(".")[0]
            if section not in table:
                raise ConfigError(
                    f"{path}: of a federation, only {', '.join(table)} can be changed; pass the rest itself"
                )
            assign(table, path, value, path)
            if section != "method":
                options[_SECTIONS[section]] = table[section]
            if path == "training.rounds":
                options["rounds"] = None
        return replace(self, method=parse(type(self.method), table["method"], "method"), options=options)

    def check(self, cells: Sequence[Self], seed: int) -> None:
        for cell in cells:
            assert cell.method is not None
            prepared(cell.method, self._of(seed), seed=seed, **cell.options)

    def run(self, seed: int, folder: Path | None, *, resume: bool, restart: bool, watcher: Watcher | None) -> Result:
        assert self.method is not None
        return run(self.method, self._of(seed), seed=seed, out=folder, restart=restart, watcher=watcher, **self.options)

    def claimed(self, folder: Path, resume: bool, plan: Mapping[str, Any]) -> AbstractContextManager[None]:
        told = {
            "federation": self._of(plan["seeds"][0]).name,
            "methods": {
                label: {"name": method.name, **without_none(method.model_dump(mode="json"))}
                for label, method in self.given.items()
            },
            **({"controls": dict(self.controls)} if self.controls else {}),
        }
        return claimed(folder, tomli_w.dumps(told), resume, plan=plan)

    def planted(self, seed: int) -> bool:
        return self._of(seed).planted is not None

    def _of(self, seed: int) -> Federation:
        """The federation of this seed, of which the last is kept."""
        if isinstance(self.federation, Federation):
            return self.federation
        if seed not in self.last:
            made = self.federation(seed)
            if not isinstance(made, Federation):
                raise ConfigError(f"the function of the seed has to return a Federation, and returned {made!r:.80}")
            self.last.clear()
            self.last[seed] = made
        return self.last[seed]
