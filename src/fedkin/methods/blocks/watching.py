"""Test whether members still belong to their groups: `fedkin.graph.look` at their new samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from torch import Tensor

from fedkin.graph import Doubt, Signature, look
from fedkin.methods.blocks.signatures import bytes_of, signature_in
from fedkin.views import ServerView


class Watched(TypedDict):
    """What the server stores about a member that has had new samples.

    group: its group at that time. looks, sum: the fields of `Doubt`. seen: signature [bytes] of all its samples so far.
    """

    group: str
    looks: int
    sum: float
    seen: Tensor


def watch_members(server: ServerView, group: Mapping[str, str], alpha: float) -> None:
    """Test members' new samples, if any have arrived, and report drifted members in `server.drifted`.

    The server's state has `fresh`, signatures of the new samples, `signatures`, those of all earlier samples, and
    `verdict`, the verdict of each group; `watched` is updated. group: {client id: group}. alpha: over all looks, how
    often one member that did not drift is reported.
    """
    state = server.state
    fresh, verdict = state.pop("fresh", {}), state.get("verdict", {})
    if not fresh:
        return
    watched, pools = _entries(state, group), dict[str, Signature]()
    drifted = []
    for id in sorted(fresh.keys() & watched.keys()):
        number, new, member = group[id], signature_in(fresh[id]), watched[id]
        if number not in pools:
            members = [signature_in(watched[other]["seen"]) for other in sorted(watched) if group[other] == number]
            pools[number] = Signature.total(members)
        doubt = look(Doubt(member["looks"], member["sum"]), new, pools[number], verdict.get(number, "same"), alpha)
        if doubt.value >= 1 / alpha:
            drifted.append(id)
            del watched[id]
            continue
        pools[number] = Signature.total([pools[number], new])
        signature = bytes_of(Signature.total([signature_in(member["seen"]), new]))
        watched[id] = Watched(group=number, looks=doubt.looks, sum=doubt.sum, seen=signature)
    state["watched"] = {id: member for id, member in watched.items() if member["looks"]}
    server.drifted = drifted


def _entries(state: Mapping[str, Any], group: Mapping[str, str]) -> dict[str, Watched]:
    """What is stored about each member; a member that has changed groups is watched from the start."""
    signatures, before = state["signatures"], state.get("watched", {})
    entries = {}
    for id in sorted(group.keys() & signatures.keys()):
        entries[id] = Watched(group=group[id], looks=0, sum=0.0, seen=signatures[id])
        if id in before and before[id]["group"] == group[id]:
            entries[id] = before[id]
    return entries
