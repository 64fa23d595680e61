"""FLT's dynamic clustering, Algorithm 3, lines 13 and 21 to 27: flags, who signs again, when groups are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import filterfalse

from fedkin.flow import Message
from fedkin.methods.flt.state import State
from fedkin.views import ServerView

__all__ = ["due_to_sign", "regroups", "take_flags", "take_signatures"]


def take_flags(state: State, replies: Mapping[str, Message]) -> None:
    """Note which clients say that their data have changed, line 22."""
    state["changed"] = {**state["changed"], **{id: True for id, reply in replies.items() if "changed" in reply}}


def due_to_sign(server: ServerView[State], sampled: Sequence[str], flags: int | None, every: int | None) -> list[str]:
    """Clients that send a signature in this round, line 23.

    These are clients without one; those whose data changed, once there are `flags` of them; and after every `every`
    rounds all.
    """
    # Where all take part in every round, whoever is not sampled is not there.
    there = sampled if server.training.per_round == "all" else server.clients
    state = server.state
    due = set(filterfalse(state["signatures"].__contains__, there))
    if flags is not None and len(state["changed"]) >= flags:
        due.update(id for id in there if id in state["changed"])
    if every is not None and server.round > 1 and (server.round - 1) % every == 0:
        due.update(there)
    return sorted(due)


def regroups(state: State, replies: Mapping[str, Message], control: str) -> bool:
    """Whether these signatures make all groups anew; if not, their senders join the groups that there are.

    They do before there are groups; if a client signed again; once newcomers outnumber founders; and with a control
    graph, which has no place for newcomers.
    """
    newcomers = len({*state["signatures"], *replies}) - state["founders"]
    again = any(id in state["row"] for id in replies)
    return again or newcomers > state["founders"] or control != "none"


def take_signatures(state: State, replies: Mapping[str, Message]) -> None:
    """Keep the signatures that came; their senders' flags are done with, line 26."""
    state["signatures"] = {**state["signatures"], **{id: reply["signature"] for id, reply in replies.items()}}
    state["sizes"] = {**state["sizes"], **{id: reply["n"] for id, reply in replies.items() if "n" in reply}}
    state["changed"] = {id: True for id in state["changed"] if id not in replies}
