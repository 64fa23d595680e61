"""What kin chose for the clients, from the figures of a run's last round, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.graph.record import SHARING, own_part
from fedkin.methods.kin import LEVELS


@dataclass(frozen=True)
class KinChoice:
    """The level at which clients share a model, what each client has of its own, and the lead over other levels.

    level: the chosen one of `LEVELS`; None while none is chosen. shared: who shares a model at each level, in words.
    own: what each client has of its own, in words. leads: for each other level that was tried, how much better the
    chosen one was on held-out samples, in words.
    """

    level: str | None
    shared: Mapping[str, str]
    own: str
    leads: Mapping[str, str]

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]]) -> KinChoice | None:
        """The choice in the last of these lines of rounds.jsonl; None if the method makes no such choice."""
        figures = (rounds[-1].get("figures") or {}) if rounds else {}
        if "pull_weights" not in figures:
            return None
        number = figures.get("level")
        level = LEVELS[number] if isinstance(number, int) and 0 <= number < len(LEVELS) else None
        # Without groups of several clients, the level of groups is local training.
        shared = SHARING | ({"groups": SHARING["alone"]} if figures.get("groups") == 0 else {})
        own = ""
        if level is not None:
            own = own_part(figures["pull_weights"], figures.get("pull_bias"), bool(figures.get("own_body")))
        leads = {
            other: _lead(figures, name, shared[other])
            for other in LEVELS for name in (f"points_{other}", f"lead_{other}") if name in figures
        }  # fmt: skip
        return cls(level, shared, own, leads)

    def short(self) -> str:
        """The choice alone.

        >>> KinChoice.of([{"figures": {"level": 0, "pull_weights": None, "own_body": 1.0}}]).short()
        'chosen: one model for all, own bodies'
        """
        if self.level is None:
            return "on trial: no level is chosen yet"
        return f"chosen: {', '.join(filter(None, [self.shared[self.level], self.own]))}"

    def explained(self) -> str:
        """The choice, what a pull means, and the leads.

        >>> KinChoice.of([{"figures": {"level": 0, "pull_weights": 1.0, "pull_bias": 1.0}}]).explained()
        'chosen: one model for all, a head for each client (pull 1); a smaller pull is more personal'
        >>> lead = {"points_all": 1.9, "points_all_low": 1.2, "points_all_high": 2.6}
        >>> KinChoice.of([{"figures": {"level": 2, "pull_weights": None, **lead}}]).explained()[34:]
        'on held-out samples 1.9 points better than one model for all (95 % interval 1.2 to 2.6)'
        """
        if self.level is None:
            return self.short()
        pull = ["a smaller pull is more personal"] if "pull" in self.own else []
        return "; ".join([self.short(), *pull, *self.leads.values()])


def _lead(figures: Mapping[str, Any], name: str, level: str) -> str:
    """The lead over a level in words; name: of its figure, in points of accuracy ("points_...") or in loss."""
    lead, low, high = (figures[f"{name}{part}"] for part in ("", "_low", "_high"))
    better = lead >= 0
    if not better:
        lead, low, high = -lead, -high, -low
    if name.startswith("points"):
        size, interval = f"{lead:.1f} points {'better' if better else 'worse'}", f"{low:.1f} to {high:.1f}"
    else:
        size, interval = f"{lead:.2g} {'lower' if better else 'higher'} in loss", f"{low:.2g} to {high:.2g}"
    told = f"{size} than {level}" if low > 0 else f"not significantly different from {level}: {size}"
    return f"on held-out samples {told} (95 % interval {interval})"
