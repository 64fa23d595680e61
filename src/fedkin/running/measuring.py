"""Further metrics (`run.metrics`) of all clients' models, in every evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.engines import Engine, Score
from fedkin.errors import ConfigError
from fedkin.learning.measures import Measure
from fedkin.records.metrics import worst

__all__ = ["check_measures", "in_round", "measured"]

_ONCE = ("title", "higher", "share", "values")


def check_measures(measures: Sequence[Measure]) -> None:
    """Raise ConfigError for two metrics of one name."""
    names = [each.name for each in measures]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConfigError(f"metrics: {twice[0]!r} twice")


def measured(engine: Engine, scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return what the summary has of each metric: direction, statistics over the clients that take part, and values.

    values: {client id: value}, also of clients that never took part; None where it is not determined.
    """
    unseen = set(engine.everyone.unseen)
    return {
        each.name: _described(each, {id: scores[id].further[at] for id in sorted(scores)}, unseen)
        for at, each in enumerate(engine.setup.measures)
    }


def in_round(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a round's line has of each metric: the statistics over the clients that take part."""
    return {name: {what: value for what, value in row.items() if what not in _ONCE} for name, row in measured.items()}


def _described(measure: Measure, values: Mapping[str, float | None], unseen: Iterable[str]) -> dict[str, Any]:
    own = [value for id, value in values.items() if id not in unseen]
    known = np.array([value for value in own if value is not None], dtype=np.float64)
    sign = 1.0 if measure.higher else -1.0
    row: dict[str, Any] = {"title": measure.title, "higher": measure.higher, "share": measure.share}
    if len(known):
        row |= {
            "mean": float(known.mean()), "std": float(known.std()), "worst10": sign * worst(sign * known, 0.1),
            "worst20": sign * worst(sign * known, 0.2),
        }  # fmt: skip
    return row | {"clients": len(known), "left_out": len(own) - len(known), "values": dict(values)}
