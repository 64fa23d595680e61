"""Candidates for an equal tuning: as many for every method, over its rate and the settings that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import qmc

from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.records.files import flat
from fedkin.running.experiment import Experiment
from fedkin.settings import Span, tunables

__all__ = ["RATE", "Equal", "at_the_border"]

RATE = "training.lr"
_CUT = 3  # one of so many candidates goes on, so many times as long
_AROUND = 10.0  # the rates that are tried reach from the experiment's divided by this to its product with it


@dataclass(frozen=True)
class Equal:
    """The same number of candidates for every method; rates: the range of `training.lr`, None: a tenth to ten times.

    The first candidate is the method as the experiment has it. The others spread evenly (Halton's sequence, scrambled
    by `seed`) over the rate and the method's own settings; a method without settings of its own has more rates instead.
    fixed: settings, or sections of them, that stay as they are, by path. halving: successive halving (Jamieson and
    Talwalkar, 2016): all run for a part of the rounds, the best third of them three times as long, and so on; the last
    ones at full length. optuna: only the first third, at least three, spread evenly; Optuna's TPE (Bergstra et al.,
    2011) chooses each of the others by the figures of those before it. Raises ConfigError for both, and where Optuna
    would choose none.
    """

    candidates: int
    rates: tuple[float, float] | None = None
    seed: int = 0
    fixed: tuple[str, ...] = ()
    halving: bool = False
    optuna: bool = False

    def __post_init__(self) -> None:
        if self.halving and self.optuna:
            raise ConfigError("halving and optuna: give one of them, Optuna compares candidates of the same length")
        if self.optuna and not self.chosen:
            raise ConfigError(
                f"optuna: with {self.candidates} candidates it would choose none, because the first three spread "
                "evenly; take 4 or more, or leave it out"
            )

    @property
    def spread(self) -> int:
        """How many candidates spread evenly.

        >>> Equal(12).spread, Equal(12, optuna=True).spread, Equal(4, optuna=True).spread
        (12, 4, 3)
        """
        return min(self.candidates, max(3, self.candidates // 3)) if self.optuna else self.candidates

    @property
    def chosen(self) -> int:
        """How many candidates Optuna chooses.

        >>> Equal(12).chosen, Equal(12, optuna=True).chosen, Equal(4, optuna=True).chosen
        (0, 8, 1)
        """
        return self.candidates - self.spread

    def rungs(self, rounds: int) -> list[tuple[int, int]]:
        """Return (candidates that run, their rounds), from the first to those at full length.

        >>> Equal(9, halving=True).rungs(30), Equal(9).rungs(30)
        ([(9, 3), (3, 10), (1, 30)], [(9, 30)])
        """
        steps = [self.candidates]
        while self.halving and steps[-1] >= _CUT:
            steps.append(steps[-1] // _CUT)
        last = len(steps) - 1
        return [(count, max(1, rounds // _CUT ** (last - place))) for place, count in enumerate(steps)]

    @classmethod
    def parse(cls, text: str, rates: str | None = None, halving: bool = False, optuna: bool = False) -> Equal:
        """Read "12", and "0.003,1" for the rates; raises ConfigError."""
        if not (text.isascii() and text.isdigit()) or not 2 <= int(text) <= 10_000:
            raise ConfigError(f"--equal {text!r}: expected a number of candidates, from 2 to 10,000")
        if rates is None:
            return cls(int(text), halving=halving, optuna=optuna)
        try:
            low, high = (float(part) for part in rates.split(","))
        except ValueError:
            low, high = 0.0, 0.0
        if not 0 < low < high < float("inf"):
            raise ConfigError(f"--rates {rates!r}: expected two ascending numbers above 0, such as 0.003,1")
        return cls(int(text), (low, high), halving=halving, optuna=optuna)

    def ranges(self, experiment: Experiment) -> dict[str, Span | tuple[Any, ...]]:
        """Return what is tuned of the experiment's method, by path."""
        lr = experiment.training.lr
        if self.rates is None and lr <= 0:
            raise ConfigError("--equal: training.lr is 0; give --rates LOW,HIGH")
        rates = self.rates or (lr / _AROUND, lr * _AROUND)
        every = {RATE: Span(*rates), **tunables(METHODS[experiment.method.name], "method")}
        return {
            path: span for path, span in every.items()
            if not any(path == each or path.startswith(f"{each}.") for each in self.fixed)
        }  # fmt: skip

    def values(self, experiment: Experiment) -> dict[str, Any]:
        """Return the values that an experiment has of what is tuned of its method, by path."""
        table = flat(experiment.resolved())
        return {path: table.get(path) for path in self.ranges(experiment)}

    def border(
        self, experiment: Experiment, chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Do `at_the_border`; a candidate has the experiment's value of what it does not change."""
        before = self.values(experiment)
        return at_the_border({**before, **chosen}, [{**before, **one} for one in tried])

    def settings(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return the candidates: values by path, none twice; the first one changes nothing."""
        ranges = self.ranges(experiment)
        drawn: list[dict[str, Any]] = [{}]
        # A setting with few values may be drawn twice; the sequence has enough other points.
        for point in qmc.Halton(len(ranges), seed=self.seed).random(20 * self.candidates):
            if len(drawn) == self.candidates:
                break
            one = {path: _value(span, share) for (path, span), share in zip(ranges.items(), point, strict=True)}
            if one not in drawn:
                drawn.append(one)
        return drawn


def at_the_border(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which settings have the smallest or largest of the numbers tried, in words.

    >>> at_the_border({"training.lr": 1.0}, [{"training.lr": 0.1}, {"training.lr": 1.0}, {}])
    ['lr: the largest tried']
    """
    found = []
    for path, value in chosen.items():
        numbers = [one[path] for one in tried if path in one and isinstance(one[path], (int, float))]
        if isinstance(value, bool) or len(set(numbers)) < 2 or value not in numbers:
            continue
        for word, end in (("smallest", min(numbers)), ("largest", max(numbers))):
            if value == end:
                found.append(f"{path.rpartition('.')[2]}: the {word} tried")
    return found


def _value(span: Span | tuple[Any, ...], share: float) -> Any:
    if isinstance(span, Span):
        return span.at(share)
    return span[min(int(share * len(span)), len(span) - 1)]
