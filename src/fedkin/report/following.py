"""Groups followed over rounds: stable numbers, and the clients that move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = ["Follower", "Move", "moves"]

Move = tuple[int, str, int, int]


class Follower:
    """Gives the groups of successive rounds stable numbers.

    A round's groups take over the numbers that most of their members had when last seen, each number once
    (an assignment of largest overlap); a group without such members takes the lowest free number.

    >>> follower = Follower()
    >>> follower.name({"a": 0, "b": 0, "c": 1})
    {'a': 0, 'b': 0, 'c': 1}
    >>> follower.name({"a": 1, "b": 1, "c": 0})
    {'a': 0, 'b': 0, 'c': 1}
    """

    def __init__(self) -> None:
        self._carried: dict[str, int] = {}

    def name(self, groups: Mapping[str, int]) -> dict[str, int]:
        """The next round's groups under their stable numbers."""
        names = _names(groups, self._carried)
        named = {id: names[label] for id, label in groups.items()}
        self._carried |= named
        return named


def _names(groups: Mapping[str, int], carried: Mapping[str, int]) -> dict[int, int]:
    """A number for each label of this round."""
    sizes = Counter(groups.values())
    labels = sorted(sizes, key=lambda label: (-sizes[label], label))
    overlap = Counter((label, carried[id]) for id, label in groups.items() if id in carried)
    numbers = sorted({number for _, number in overlap})
    names: dict[int, int] = {}
    if numbers:
        table = np.array([[overlap[label, number] for number in numbers] for label in labels])
        for row, column in zip(*linear_sum_assignment(table, maximize=True), strict=True):
            if table[row, column]:
                names[labels[row]] = numbers[column]
    taken = set(names.values()) | set(carried.values())
    free = (number for number in count() if number not in taken)
    return {label: names[label] if label in names else next(free) for label in labels}


def moves(named: Mapping[int, Mapping[str, int]]) -> list[Move]:
    """(round, client id, from, to) for each client that is in another group than when it was last seen.

    >>> moves({1: {"a": 0, "b": 1}, 3: {"a": 1}})
    [(3, 'a', 0, 1)]
    """
    last: dict[str, int] = {}
    moved: list[Move] = []
    for round in sorted(named):
        for id, group in sorted(named[round].items()):
            if last.get(id, group) != group:
                moved.append((round, id, last[id], group))
            last[id] = group
    return moved
