"""How much can be tried in the time that is given."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fedkin.advice.advising import KEPT, Plan
from fedkin.advice.shapes import CANDIDATES, Shape
from fedkin.advice.work import Bench, method_of, trained
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.records.files import read_json

__all__ = ["plan_within"]

# From much to little: (folds, number of rates, share of the rounds).
_LADDER = ((5, 3, 1.0), (5, 2, 1.0), (4, 2, 1.0), (3, 2, 1.0), (3, 1, 1.0), (3, 1, 0.5), (3, 1, 0.25))
_PROBE = 3


def plan_within(minutes: float | None, federation: Federation, bench: Bench, folder: Path | None = None) -> Plan:
    """The largest plan that takes at most so many minutes (None: the largest), by the time of a few rounds.

    An advice that was begun in `folder` keeps its plan, so that a stop changes nothing.
    """
    if minutes is None:
        return Plan()
    if not minutes > 0:
        raise ConfigError(f"--budget: expected minutes above 0, got {minutes:g}")
    if folder is not None and (folder / KEPT).exists():
        kept = read_json(folder / KEPT)
        return Plan(kept["folds"], tuple(kept["factors"]), kept["rounds"])
    few = replace(bench, training=bench.training.model_copy(update={"rounds": _PROBE}))
    seen = federation.reorder(sorted(federation.seen))
    trained(method_of(Shape()), seen, few, bench.training.lr)  # what is made once
    begun = time.perf_counter()
    trained(method_of(Shape()), seen, few, bench.training.lr)
    each = (time.perf_counter() - begun) / _PROBE
    for folds, rates, share in _LADDER:
        rounds = max(1, round(share * bench.training.rounds))
        # Two runs at the end, and of the candidates seldom more than four differ.
        total = each * rounds * (folds * rates * min(4, len(CANDIDATES)) + 4)
        if total <= 60 * minutes or (folds, rates, share) == _LADDER[-1]:
            return Plan(folds, Plan().rates[:rates], rounds)
    raise AssertionError
