"""From signatures to groups and verdicts, at the level that is left for this look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedkin.graph import Signature, Verdicts, canonical, find
from fedkin.keys import key
from fedkin.methods.kin.state import State
from fedkin.views import ServerView

__all__ = ["Rule", "by_content", "level", "verdicts"]


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


def verdicts(server: ServerView[State], ids: Sequence[str], rule: Rule) -> Verdicts:
    """What these clients' signatures say, at the level of the last look."""
    state = server.state
    signed = tuple((id, _bytes(state["signatures"][id])) for id in by_content(ids, state["signatures"]))
    return _found(signed, level(rule.alpha, state["looks"]), rule.least, key(server.seed, "", "kin") >> 32)


# Newcomers are tested against groups found earlier: these are found again from what the state has, once a process.
@lru_cache(maxsize=4)
def _found(signed: tuple[tuple[str, bytes], ...], alpha: float, least: float, seed: int) -> Verdicts:
    signatures = {id: Signature.from_bytes(data) for id, data in signed}
    return _joined(find(signatures, alpha=alpha, least=least, seed=seed), signatures)


def _joined(found: Verdicts, signatures: Mapping[str, Signature]) -> Verdicts:
    """Where nothing but class shares differs and some client is alone, all are one group of "shares" after all.

    Groups of clients that have the same few classes are a little better off apart. But whose classes look as everybody
    else's need not train alone.
    """
    joined = dict(enumerate(found.verdicts))
    own = found.groups
    label = dict(own)
    todo = [0]
    while todo:
        node = found.tree[todo.pop()]
        only_shares = "concept" in node["p"] and not {"offset", "concept"} & set(node["rejected"])
        if node["children"] and only_shares and "alone" in {found.verdicts[own[id]] for id in node["clients"]}:
            number = len(joined)
            joined[number] = "shares"
            label |= dict.fromkeys(node["clients"], number)
        else:
            todo.extend(node["children"])
    if len(joined) == len(found.verdicts):
        return found
    raw = np.array([label[id] for id in found.ids])
    labels = canonical(raw)
    numbers = [int(raw[labels == place][0]) for place in range(labels.max() + 1)]
    profiles = dict(enumerate(found.profiles))
    for number in set(numbers) - set(profiles):
        profiles[number] = Signature.total([signatures[id] for id in found.ids if label[id] == number])
    verdicts = tuple(joined[number] for number in numbers)
    return replace(found, labels=labels, verdicts=verdicts, profiles=tuple(profiles[number] for number in numbers))


def by_content(ids: Sequence[str], signatures: Mapping[str, Tensor]) -> list[str]:
    """In the order of their signatures, so that ids decide only between equal ones."""
    return sorted(ids, key=lambda id: (_bytes(signatures[id]), id))


def _bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()
