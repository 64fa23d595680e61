"""Groups followed over rounds: names that stay, and who moves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import count

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = ["Move", "follow", "moves"]

Move = tuple[int, str, int, int]


def follow(rounds: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, int]]:
    """The same groups under numbers that stay: {round: {client id: group}} in, the like out.

    A round's groups take over the numbers that most of their members carried when last seen, each number once
    (an assignment of largest overlap); a group without such members takes the lowest number that nobody carries.

    >>> follow({1: {"a": 0, "b": 0, "c": 1}, 2: {"a": 1, "b": 1, "c": 0}})[2]
    {'a': 0, 'b': 0, 'c': 1}
    """
    carried: dict[str, int] = {}
    named: dict[int, dict[str, int]] = {}
    for round in sorted(rounds):
        names = _names(rounds[round], carried)
        named[round] = {id: names[label] for id, label in rounds[round].items()}
        carried |= named[round]
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
    """(round, client id, from, to) for each client that is in another group than when last seen.

    >>> moves({1: {"a": 0, "b": 1}, 3: {"a": 1}})
    [(3, 'a', 0, 1)]
    """
    last: dict[str, int] = {}
    found: list[Move] = []
    for round in sorted(named):
        for id, group in sorted(named[round].items()):
            if last.get(id, group) != group:
                found.append((round, id, last[id], group))
            last[id] = group
    return found


def moves_by_client(found: list[Move]) -> dict[str, list[Move]]:
    """Moves by client id, most moves first."""
    by_client: dict[str, list[Move]] = defaultdict(list)
    for move in found:
        by_client[move[1]].append(move)
    return dict(sorted(by_client.items(), key=lambda item: (-len(item[1]), item[0])))
