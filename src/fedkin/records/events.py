"""Sentences about clients that joined, left or drifted in a run, from the lines of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedkin.errors import first_few

if TYPE_CHECKING:
    from fedkin.federation import Federation

_WORDS = {
    "joined": "joined",
    "left": "left: data no longer count from this round on",
    "drifted": "drifted away: new samples are unlike those of their group",
}


def events_of(row: Mapping[str, Any], *kinds: str) -> list[str]:
    """Return a sentence for each of these kinds of events in a round (without kinds: for all).

    >>> events_of({"round": 7, "events": {"joined": ["west"], "left": ["north", "south"]}})
    ['round 7: west joined', 'round 7: north, south left: data no longer count from this round on']
    """
    events = row.get("events", {})
    return [
        f"round {row['round']}: {first_few(events[what])} {words}"
        for what, words in _WORDS.items()
        if what in events and what in (kinds or _WORDS)
    ]


def events_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences about the clients that joined and left, for all rounds."""
    return [line for row in rows for line in events_of(row, "joined", "left")]


def drifts_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning for each round in which a test found that members have drifted from their group."""
    return [f"{line}; look at their data" for row in rows for line in events_of(row, "drifted")]


def replayed(federation: Federation, facts: Mapping[str, Any]) -> Federation:
    """Return the federation of the clients in a run, with the rounds in which they joined and left there.

    facts: the run's `federation.json` (`Result.federation`).
    """
    return type(federation)(
        [
            replace(
                client, joins=facts["clients"][id].get("joins", 1),
                away=tuple((first, last) for first, last in facts["clients"][id].get("away", ())),
            )
            for id, client in federation.items()
            if id in facts["clients"]
        ],
        federation.task, federation.name,
    )  # fmt: skip
