"""Candidates chosen by the figures of those before them, by Optuna's sampler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedkin.errors import ConfigError
from fedkin.settings import Span

__all__ = ["Guide", "version"]


class Guide:
    """Optuna's TPE (Bergstra et al., 2011) over the ranges of what is tuned, in memory.

    The same seed and the same figures in the same order give the same candidates, so that nothing has to be kept.
    Raises ConfigError if Optuna is not installed.
    """

    def __init__(self, ranges: Mapping[str, Span | tuple[Any, ...]], seed: int, higher: bool) -> None:
        self._optuna = _optuna()
        self._ranges = ranges
        spaces = self._optuna.distributions
        self._spaces = {
            path: spaces.FloatDistribution(span.low, span.high, log=span.log) if isinstance(span, Span)
            else spaces.CategoricalDistribution(span)
            for path, span in ranges.items()
        }  # fmt: skip
        with _quiet(self._optuna):
            # The first candidates are told; only if all of them failed one is drawn at random.
            sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
            self._study = self._optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
        self._asked: Any = None

    def ask(self) -> dict[str, Any]:
        """Return the next candidate: a value for each path, numbers with three digits inside of their range."""
        with _quiet(self._optuna):
            self._asked = self._study.ask(self._spaces)
        return {path: _rounded(self._ranges[path], value) for path, value in self._asked.params.items()}

    def tell(self, values: Mapping[str, Any], figure: float) -> None:
        """Take the figure of a candidate; nan: it failed. One that was not asked for counts if it is in the ranges."""
        failed = math.isnan(figure)
        states = self._optuna.trial.TrialState
        with _quiet(self._optuna):
            if self._asked is not None:
                asked, self._asked = self._asked, None
                self._study.tell(asked, None if failed else figure, state=states.FAIL if failed else states.COMPLETE)
            elif not failed and all(_within(span, values[path]) for path, span in self._ranges.items()):
                self._study.add_trial(
                    self._optuna.trial.create_trial(params=dict(values), distributions=self._spaces, value=figure)
                )


def version() -> str:
    """Return Optuna's version; raises ConfigError if it is not installed."""
    return str(_optuna().__version__)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("--optuna: needs Optuna: pip install 'fedkin[optuna]'") from None
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's line for each trial, whatever level the user has."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _within(span: Span | tuple[Any, ...], value: Any) -> bool:
    if isinstance(span, Span):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and span.low <= value <= span.high
    return value in span


def _rounded(span: Span | tuple[Any, ...], value: Any) -> Any:
    return min(max(float(f"{value:.3g}"), span.low), span.high) if isinstance(span, Span) else value
