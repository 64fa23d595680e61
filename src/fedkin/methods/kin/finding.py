"""From signatures to groups and verdicts, at the level that is left for this look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedkin.graph import Verdicts
from fedkin.methods.blocks.signatures import verdicts_of
from fedkin.methods.kin.state import State
from fedkin.views import ServerView

__all__ = ["Rule", "level", "verdicts"]


class Rule(NamedTuple):
    """How groups are found: see `fedkin.graph.find`. alpha is that of all looks together."""

    alpha: float
    least: float


def level(alpha: float, look: int) -> float:
    """alpha of this look, 1, 2, ..: alpha / (look (look + 1)), so that all looks together spend at most alpha.

    >>> sum(level(0.001, look) for look in range(1, 1000)) < 0.001
    True
    """
    return alpha / (look * (look + 1))


def verdicts(server: ServerView[State], ids: Iterable[str], rule: Rule) -> Verdicts:
    """What these clients' signatures say, at the level of the last look."""
    state = server.state
    signatures = {id: state["signatures"][id] for id in ids}
    return verdicts_of(server, signatures, level(rule.alpha, state["looks"]), rule.least)
