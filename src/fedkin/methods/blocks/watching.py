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
    now: dict[str, Watched] = {id: one for id, one in state.get("watched", {}).items() if group.get(id) == one["group"]}
    seen = {id: now[id]["seen"] if id in now else signatures[id] for id in group if id in signatures}
    pools: dict[str, Signature] = {}
    drifted = []
    for id in sorted(set(fresh) & set(seen)):
        own, new = group[id], signature_in(fresh[id])
        if own not in pools:
            pools[own] = Signature.total([signature_in(seen[one]) for one in sorted(seen) if group[one] == own])
        before = Doubt(now[id]["looks"], now[id]["sum"]) if id in now else Doubt()
        doubt = look(before, new, pools[own], verdict.get(own, "same"), alpha)
        if doubt.value >= 1 / alpha:
            drifted.append(id)
            now.pop(id, None)
            continue
        pools[own] = Signature.total([pools[own], new])
        whole = bytes_of(Signature.total([signature_in(seen[id]), new]))
        now[id] = Watched(group=own, looks=doubt.looks, sum=doubt.sum, seen=whole)
    state["watched"], server.drifted = now, drifted
