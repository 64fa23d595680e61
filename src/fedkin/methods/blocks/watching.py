"""Test whether members still belong to their groups: `fedkin.graph.look` at their new samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

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
    fresh, signatures, verdict = state.pop("fresh", {}), state["signatures"], state.get("verdict", {})
    if not fresh:
        return
    # A member that has changed groups is watched from the start.
    entries: dict[str, Watched] = state.get("watched", {})
    watched = {id: entry for id, entry in entries.items() if group.get(id) == entry["group"]}
    seen = {id: watched[id]["seen"] if id in watched else signatures[id] for id in group if id in signatures}
    pools: dict[str, Signature] = {}
    drifted = []
    for id in sorted(set(fresh) & set(seen)):
        number, new = group[id], signature_in(fresh[id])
        if number not in pools:
            pools[number] = Signature.total([signature_in(seen[m]) for m in sorted(seen) if group[m] == number])
        before = Doubt(watched[id]["looks"], watched[id]["sum"]) if id in watched else Doubt()
        doubt = look(before, new, pools[number], verdict.get(number, "same"), alpha)
        if doubt.value >= 1 / alpha:
            drifted.append(id)
            watched.pop(id, None)
            continue
        pools[number] = Signature.total([pools[number], new])
        signature = bytes_of(Signature.total([signature_in(seen[id]), new]))
        watched[id] = Watched(group=number, looks=doubt.looks, sum=doubt.sum, seen=signature)
    state["watched"], server.drifted = watched, drifted
