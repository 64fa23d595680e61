"""Whether members still belong to their groups, by `fedkin.graph.look` at samples that nobody has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from fedkin.graph import Doubt, Signature, look
from fedkin.methods.blocks.signatures import signature_in
from fedkin.views import ServerView


class Watched(TypedDict):
    """What the server keeps of a member that has had new samples.

    group: in which it was then. looks, sum: the fields of `Doubt`. seen: signature [bytes] of all its samples so far.
    """

    group: str
    looks: int
    sum: float
    seen: Tensor


def watch_members(server: ServerView[Any], group: Mapping[str, str], alpha: float) -> None:
    """Look at the new samples that have come, if any: `watch` of what the server's state has, {client id: group}."""
    state = server.state
    if fresh := state.pop("fresh", {}):
        watched, verdict = state.get("watched", {}), state.get("verdict", {})
        state["watched"], server.drifted = watch(watched, state["signatures"], fresh, group, verdict, alpha)


def watch(
    watched: Mapping[str, Watched], signatures: Mapping[str, Tensor], fresh: Mapping[str, Tensor],
    group: Mapping[str, str], verdict: Mapping[str, str], alpha: float,
) -> tuple[dict[str, Watched], list[str]]:  # fmt: skip
    """Look at members' new samples; returns what to keep, and who has drifted away.

    signatures: of all samples before these. fresh: of the new ones. group: {client id: group}; verdict: {group: its
    verdict}. alpha: how often one member of a group that holds is said to have drifted, over all looks.
    """
    now = dict(watched)
    # A member of another group than before is watched anew.
    now = {id: one for id, one in now.items() if group.get(id) == one["group"]}
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
        whole = Signature.total([signature_in(seen[id]), new]).to_bytes()
        now[id] = Watched(
            group=own, looks=doubt.looks, sum=doubt.sum, seen=torch.frombuffer(bytearray(whole), dtype=torch.uint8)
        )
    return now, drifted
