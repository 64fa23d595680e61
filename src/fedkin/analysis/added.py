"""How much one method adds to another over seeds: the mean of paired differences, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedkin.analysis.intervals import LEVEL, over

__all__ = ["Added", "added"]


class Added(NamedTuple):
    """The mean difference over seeds and clients, above 0 if the first method is better, and its interval.

    low, high: None for one seed, whose clients share their draws. seeds: how many there are.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def word(self) -> str:
        """What the interval says: "better", "worse", "cannot be told apart", or "one seed"."""
        return self.against(0.0)

    def against(self, needed: float) -> str:
        """What the interval says if the difference must lie above `needed`, in the words of `word`."""
        if self.low is None or self.high is None:
            return "one seed"
        return "better" if self.low > needed else "worse" if self.high < needed else "cannot be told apart"


def added(differences: Mapping[int, Mapping[str, float]], level: float = LEVEL) -> Added | None:
    """Return the mean of the clients' differences and its interval; differences: {seed: {client id: difference}}.

    The clients of one seed share data, initial values and random draws, so that they are no independent samples: each
    seed counts as one, by its clients' mean, and Student's interval is that of the seeds' means. None without a client.

    >>> found = added({0: {"a": 0.1, "b": 0.3}, 1: {"a": 0.2, "b": 0.2}, 2: {"a": 0.2, "b": 0.3}})
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.word
    (0.217, 0.145, 0.288, 'better')
    """
    means = [
        float(np.mean([by_client[id] for id in sorted(by_client)])) for by_client in differences.values() if by_client
    ]
    if not means or len(means) < len(differences):
        return None
    bounds = over(means, level)
    low, high = (None, None) if bounds is None else bounds
    return Added(float(np.mean(means)), low, high, len(means))
