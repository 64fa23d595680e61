"""Which edges of MAPL carry messages: neighbours are asked to stop, and now and then to send again.

The paper sends nothing along an edge of weight 0 and does not say how the sender gets to know. Here the receiver
decides, because w_ij is its interest in neighbour j. A neighbour sends until it is asked to stop, and again once it is
asked to (the paper's future work on exploration). A request that is lost does no harm: an unwanted neighbour goes on
sending and is asked to stop again, and a probe can be repeated in a later round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypedDict

from fedkin.flow import Message

__all__ = ["EdgeState", "outbox", "receivers", "remember", "requests"]


class EdgeState(TypedDict):
    """What a peer remembers of its edges.

    dropped: neighbours that it asked to stop, sorted; refused_by: neighbours that asked it to stop, sorted.
    """

    dropped: list[str]
    refused_by: list[str]


def receivers(state: EdgeState, neighbours: Sequence[str]) -> list[str]:
    """The neighbours that want messages."""
    return [id for id in neighbours if id not in state["refused_by"]]


def requests(
    state: EdgeState, neighbours: Sequence[str], heard: AbstractSet[str], kept: AbstractSet[str],
    probes: Callable[[str], bool],
) -> dict[str, bool]:  # fmt: skip
    """What to ask of whom: False, stop sending; True, send again. Renews `state["dropped"]`.

    heard: who sent a head in this round; kept: those of them with an edge of enough weight;
    probes(id): whether to ask a neighbour, dropped in an earlier round, for a message now.
    """
    dropped, before = heard - kept, set(state["dropped"]) - heard
    state["dropped"] = sorted(before | dropped)
    again = [id for id in neighbours if id in before and probes(id)]
    return dict.fromkeys(sorted(dropped), False) | dict.fromkeys(again, True)


def outbox(to: Iterable[str], message: Message, wants: Mapping[str, bool]) -> dict[str, Message]:
    """One message for each receiver, and the requests: with that message, or alone where there is none."""
    out = dict.fromkeys(to, message)
    for id, want in wants.items():
        out[id] = Message(**out.get(id, Message()), want=want)
    return dict(sorted(out.items()))


def remember(state: EdgeState, inbox: Mapping[str, Message]) -> None:
    """Take in the neighbours' requests: renews `state["refused_by"]`."""
    wants = {id: message["want"] for id, message in inbox.items() if "want" in message}
    still = set(state["refused_by"]) - wants.keys()
    state["refused_by"] = sorted(still | {id for id, want in wants.items() if not want})
