"""Further metrics (`run.metrics`) of all clients' models after the last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.engines import Engine, Setup
from fedkin.errors import ConfigError
from fedkin.learning.measures import Measure, value
from fedkin.learning.sgd import infer
from fedkin.records.metrics import worst

__all__ = ["check_measures", "measured"]


def check_measures(measures: Sequence[Measure], kept: bool) -> None:
    """Raise ConfigError for two metrics of one name, and where samples are elsewhere. kept: whether they are here."""
    names = [each.name for each in measures]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConfigError(f"metrics: {twice[0]!r} twice")
    if names and not kept:
        raise ConfigError("run.metrics: over a network single samples stay with the participants, so leave it out")


def measured(engine: Engine, measures: Sequence[Measure]) -> dict[str, Any]:
    """Return what the summary has of each metric: direction, statistics over the clients that take part, and values.

    values: {client id: value}, also of clients that never took part; None where it is not determined.
    """
    setup = engine.setup
    if not measures or not isinstance(setup, Setup):
        return {}
    found: dict[str, dict[str, float | None]] = {each.name: {} for each in measures}
    models, last = engine.models(), setup.federation.at(setup.training.rounds)
    for id in sorted(models):
        net = setup.nets[id] if setup.nets is not None else setup.net
        test = last[id].test
        outputs = infer(net, net.scratch(), models[id], "logits", test) if len(test) else None
        for each in measures:
            found[each.name][id] = None if outputs is None else value(each, outputs, test.labels(), id)
    unseen = set(last.unseen)
    return {each.name: _described(each, found[each.name], unseen) for each in measures}


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
