"""How much can be tried in the time that is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedkin.advice.advising import KEPT, Plan, check
from fedkin.advice.gains import known
from fedkin.advice.shapes import Shape, shapes_of
from fedkin.advice.work import Bench, method_of, trained
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.records.files import read_json

__all__ = ["Budget"]

# From much to little: (folds, number of rates, share of the rounds).
_LADDER = ((5, 3, 1.0), (5, 2, 1.0), (4, 2, 1.0), (3, 2, 1.0), (3, 1, 1.0), (3, 1, 0.5), (3, 1, 0.25))
_PROBE = 4
# Of the budget, for all that is not measured: the choice, and the report.
_SHARE = 0.15
# The recorded runs are of local training and of what is recommended, where some train a second model.
_RECORDED = 3


class Budget:
    """Minutes that an advice may take, by a clock in seconds; begun: what the clock said at the start (None: now).

    >>> Budget(2.0, clock=lambda: 0.0).left
    102.0
    """

    def __init__(
        self, minutes: float, clock: Callable[[], float] = time.perf_counter, begun: float | None = None
    ) -> None:
        if not minutes > 0:
            raise ConfigError(f"--budget: expected minutes above 0, got {minutes:g}")
        self.minutes, self._clock = minutes, clock
        self._begun = self._mark = clock() if begun is None else begun
        self._after = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    @property
    def left(self) -> float:
        """Seconds that can be planned with."""
        return (1 - _SHARE) * 60 * self.minutes - self.spent

    def plan(self, federation: Federation, bench: Bench, folder: Path | None = None) -> Plan:
        """The largest plan that the time left is enough for, by the time of a few rounds and of the tests.

        An advice that was begun in `folder` keeps its plan, so that a stop changes nothing. Raises ConfigError for a
        federation that cannot be advised on.
        """
        check(federation)
        if folder is not None and (folder / KEPT).exists():
            kept = read_json(folder / KEPT)
            return Plan(kept["folds"], tuple(kept["factors"]), kept["rounds"])
        once, each = self._round(federation, bench)
        tests, kinds = self._tests(federation, bench)
        every = bench.run.evaluate_every
        for folds, rates, share in _LADDER:
            rounds = max(1, round(share * bench.training.rounds))
            run = once + each * rounds
            self._after = 2 * run + _RECORDED * rounds * (each + once / every)
            total = (folds + 1) * tests + folds * rates * kinds * run + self._after
            if total <= self.left or (folds, rates, share) == _LADDER[-1]:
                return Plan(folds, Plan().rates[:rates], rounds)
        raise AssertionError

    def goes_on(self, rate: int) -> bool:
        """Whether there is time for this rate (its number, from 0): it takes as long as the one before.

        The first rate is always tried.
        """
        now = self._clock()
        took, self._mark = now - self._mark, now
        return rate == 0 or took + self._after <= self.left

    def _round(self, federation: Federation, bench: Bench) -> tuple[float, float]:
        """(seconds of a run without rounds, seconds of a round), all clients training alone."""
        seen = federation.reorder(sorted(federation.seen))

        def run(rounds: int) -> float:
            few = replace(bench, training=bench.training.model_copy(update={"rounds": rounds}))
            begun = self._clock()
            trained(method_of(Shape()), seen, few, bench.training.lr)
            return self._clock() - begun

        run(1)  # what is made once
        short, long = run(1), run(_PROBE)
        each = (long - short) / (_PROBE - 1) if long > short else long / _PROBE
        return max(0.0, short - each), each

    def _tests(self, federation: Federation, bench: Bench) -> tuple[float, int]:
        """(seconds to find the candidates, how many of them differ at most)."""
        task = federation.task
        own = {id: client.train for id, client in federation.items() if known(task, client.train.labels())[0]}
        begun = self._clock()
        found, _ = shapes_of(own, task, bench.seed)
        # Other folds may tell candidates apart that are equal here.
        return self._clock() - begun, min(len(found), len(set(found.values())) + 1)
