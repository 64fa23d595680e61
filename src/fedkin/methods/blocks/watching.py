"""Whether members still belong to their groups, by `fedkin.graph.look` at samples that nobody has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from torch import Tensor

from fedkin.graph import Doubt, Signature, look
from fedkin.methods.blocks.signatures import bytes_of, signature_in
from fedkin.views import ServerView


class Watched(TypedDict):
    """What the server keeps of a member that has had new samples.

    group: in which it was then. looks, sum: the fields of `Doubt`. seen: signature [bytes] of all its samples so far.
    """

    group: str
    looks: int
    sum: float
    seen: Tensor


def watch_members(server: ServerView, group: Mapping[str, str], alpha: float) -> None:
    """Look at members' new samples, if any have come, and say who has drifted away.

    Of the server's state, `fresh` has the signatures of the new samples, `signatures` those of all before, `verdict`
    the verdict of each group, and `watched` is kept. group: {client id: group}. alpha: how often one member of a group
    that holds is said to have drifted, over all looks.
    """
    state = server.state
    fresh, signatures, verdict = state.pop("fresh", {}), state["signatures"], state.get("verdict", {})
    if not fresh:
        return
    # A member of another group than before is watched anew.
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
