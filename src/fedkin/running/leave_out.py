"""Leave-one-domain-out: methods compared with each group of clients unseen in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

from fedkin.data.scenarios.base import GROUP, groups_of
from fedkin.errors import ConfigError, nearest
from fedkin.running.compare import compare
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Result, Watcher

__all__ = ["leave_out", "without"]

Results = Mapping[str, Mapping[int, Result]]


def without(experiment: Experiment, group: str) -> Experiment:
    """Return the experiment with this group of clients unseen; a source that fits to samples does not use theirs."""
    if "unseen" in type(experiment.data).model_fields:
        return experiment.with_changes(**{"data.unseen": [group]})
    return experiment.with_changes(**{"scenario.unseen": GROUP + group})


def leave_out(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    data_root: Path,
    folder: Path,
    groups: Sequence[str] | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Callable[[str, str, int, int, int], Watcher] | None = None,
) -> dict[str, Results]:
    """Run `compare` with each group left out; returns its results by the group that was left out.

    groups: the groups to leave out (None: all groups of the federation). watcher(group, method, seed, runs done, runs
    in all) returns the watcher of a run. `folder` gets `experiment.toml`, `plan.json`, and for each group a folder of
    `compare` with its name. Raises ConfigError for an unknown group, or if the experiment itself names unseen clients.
    """
    known = _groups(experiment, data_root)
    for group in groups or ():
        if group not in known:
            raise ConfigError(f"--leave-out: no group {group!r}; {nearest(group, known)}")
    chosen = list(groups or known)
    places = {group: folder / _named(group) for group in chosen}
    if len(set(places.values())) < len(places):
        raise ConfigError(f"--leave-out: {', '.join(chosen)} would share a folder; rename the groups")
    plans = {group: without(experiment, group) for group in chosen}
    plan = {"methods": list(methods), "seeds": list(seeds), "leave_out": chosen}
    results: dict[str, Results] = {}
    with experiment.claimed(folder, resume, data_root, plan):
        for group, plan_of_group in plans.items():
            results[group] = compare(
                plan_of_group, methods, seeds, data_root, places[group], resume=resume, restart=restart,
                watcher=None if watcher is None else partial(watcher, group),
            )  # fmt: skip
    return results


def _named(group: str) -> str:
    """Return the name of a group's folder; a long one is cut, and ends in a hash of the whole."""
    name = re.sub(r"[^\w.-]+", "-", group)
    if len(name.encode()) <= 200:
        return name
    return f"{name[:40]}-{blake2b(group.encode(), digest_size=8).hexdigest()}"


def _groups(experiment: Experiment, data_root: Path) -> list[str]:
    """Return the groups of the federation if no group is left out."""
    if experiment.scenario.unseen is not None or getattr(experiment.data, "unseen", None):
        raise ConfigError(
            "--leave-out chooses who is unseen: take scenario.unseen and data.unseen out of the experiment"
        )
    return groups_of(experiment.with_changes(**{"scenario.pooled": False}).federation(data_root))
