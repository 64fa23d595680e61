"""What a run cost in privacy: the entry `privacy` of a summary, and the same in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedkin.engines.privacy import Privacy

__all__ = ["largest", "spent", "told"]


def spent(privacy: Privacy, releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry `privacy` of a summary, from `Engine.releases`.

    epsilon: its largest value and its mean over clients, and that of each client; None: unbounded, without noise.
    releases: of each client. open: the fields that were sent as they are, by phase.
    """
    each = {id: privacy.epsilon(one["releases"]) for id, one in sorted(releases.items())}
    open: dict[str, set[str]] = {}
    for one in releases.values():
        for phase, fields in one["open"].items():
            open.setdefault(phase, set()).update(fields)
    return {
        **{name: getattr(privacy, name) for name in ("clip", "noise", "delta", "budget")},
        "epsilon": {
            "max": _finite(max(each.values(), default=0.0)),
            "mean": _finite(sum(each.values()) / max(len(each), 1)),
            "clients": {id: _finite(value) for id, value in each.items()},
        },
        "releases": {id: one["releases"] for id, one in sorted(releases.items())},
        "open": {phase: sorted(open[phase]) for phase in sorted(open)},
    }


def largest(entry: Mapping[str, Any] | None) -> float | None:
    """Return the largest epsilon of any client in the entry `privacy` of a summary; None without one."""
    return None if not entry else entry["epsilon"]["max"]


def told(entry: Mapping[str, Any]) -> str:
    """Return the entry `privacy` of a summary in words.

    >>> epsilon, open = {"max": 10.72, "mean": 9.5}, {"train": ["n"]}
    >>> told({"epsilon": epsilon, "delta": 1e-5, "releases": {"a": 100}, "open": open})
    'epsilon 10.72 (mean over clients 9.50) at delta 1e-05, at most 100 releases; sent as they are: n (train)'
    """
    most, mean = (entry["epsilon"][name] for name in ("max", "mean"))
    number = "no finite epsilon (no noise)" if most is None else f"epsilon {most:.2f} (mean over clients {mean:.2f})"
    count = max(entry["releases"].values(), default=0)
    open = ", ".join(f"{', '.join(fields)} ({phase})" for phase, fields in entry["open"].items())
    return f"{number} at delta {entry['delta']:g}, at most {count:,} releases; sent as they are: {open or 'nothing'}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
