"""What is missing in a run: messages that were lost, late, refused or never sent, with the client and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkin.engines.base import SERVER

__all__ = ["KINDS", "kinds_of", "sentence", "summary_of"]

# What a reason begins with, and what the kind is called.
KINDS = {
    "lost": "lost on the way", "late": "late", "gone": "of clients that are gone", "stale": "of another round",
    "refused": "refused at the door", "failed": "never made, because the client failed",
    "spent": "not sent, because the client's privacy budget is spent",
}  # fmt: skip


def kinds_of(reasons: Iterable[str]) -> dict[str, int]:
    """Return the number of missing messages of each kind; the reason of one that is not missing is empty.

    >>> kinds_of(["lost", "", "refused: n is missing", "lost"])
    {'lost': 2, 'refused': 1}
    """
    found = Counter(reason.partition(":")[0] for reason in reasons if reason)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def summary_of(messages: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return the entry `missing` of a summary, from the rows of messages.parquet; empty if nothing is missing.

    kinds: how many of each kind. clients: of each client whose messages were refused, that failed, or whose privacy
    budget is spent, how many, and the round, phase and reason of the first.
    """
    kinds: Counter[str] = Counter()
    clients: dict[str, dict[str, Any]] = {}
    for round, sender, receiver, phase, _, _, reason in messages:
        if not reason:
            continue
        kind = reason.partition(":")[0]
        kinds[kind] += 1
        if kind in ("refused", "failed", "spent"):
            id = receiver if sender == SERVER else sender
            first = {"count": 0, "round": round, "phase": phase, "reason": reason}
            clients.setdefault(id, first)["count"] += 1
    if not kinds:
        return {}
    return {
        "kinds": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
        "clients": {id: clients[id] for id in sorted(clients)},
    }


def sentence(missing: Mapping[str, Any]) -> str:
    """Return the entry `missing` of a summary in words, with up to three clients.

    >>> first = {"count": 2, "round": 3, "phase": "train", "reason": "refused: n is missing"}
    >>> sentence({"kinds": {"lost": 4, "refused": 2}, "clients": {"a": first}})
    "4 lost on the way, 2 refused at the door; client 'a' in round 3, phase 'train': refused: n is missing"
    """
    counts = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in missing["kinds"].items() if kind in KINDS)
    named = list(missing["clients"].items())
    told = [f"client {id!r} in round {one['round']}, phase {one['phase']!r}: {one['reason']}" for id, one in named[:3]]
    more = [f"and {len(named) - 3} more clients"] if len(named) > 3 else []
    return "; ".join([counts, *told, *more])
