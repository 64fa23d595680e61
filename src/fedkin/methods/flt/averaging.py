"""FLT's two averages, Algorithm 3, lines 15 to 20, normalised and over the clients that took part in the round."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedkin.flow import Message, Params
from fedkin.learning.robust import Rule, aggregated
from fedkin.methods.flt.state import State

__all__ = ["along_edges", "inside_groups"]


def along_edges(
    state: State, replies: Mapping[str, Message], stale: bool, aggregate: Rule = "mean"
) -> tuple[dict[str, Params], dict[str, str]]:
    """Case I, lines 16 and 17: w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j, with A_mm = 1.

    Returns the new models, and which of them each client has. All means are of the models as the clients sent them.
    stale: clients that did not take part enter with the model that they have. A client without a neighbour that
    enters keeps its model. Clients with equal rows share one model; with another rule than the mean only if they
    shared one before, because updates are measured from it.
    """
    order = sorted(state["row"], key=lambda id: state["row"][id])
    entering = [id for id in order if id in replies or stale]
    n = torch.tensor([float(replies[id]["n"] if id in replies else state["sizes"][id]) for id in entering])
    held = {id: replies[id].params if id in replies else state["models"][state["model"][id]] for id in entering}
    weights = state["adjacency"].double()
    weights = weights + torch.eye(len(order), dtype=weights.dtype)
    weights = weights[:, [state["row"][id] for id in entering]] * n
    # The number of the new model for each row of weights, with what its updates start from, or each old model kept.
    made: dict[tuple[bytes, str], str] = {}
    models: dict[str, Params] = {}
    model: dict[str, str] = {}
    for id, row in zip(order, weights, strict=True):
        near = row.nonzero()[:, 0].tolist()
        old = state["model"][id]
        content = (row.numpy().tobytes() if near else b"", "" if near and aggregate == "mean" else old)
        if content not in made:
            made[content] = str(len(made))
            share = {entering[place]: float(row[place]) for place in near}
            there, kept = {other: held[other] for other in share}, state["models"][old]
            models[made[content]] = aggregated(there, share, aggregate, kept) if near else kept
        model[id] = made[content]
    return models, model


def inside_groups(
    state: State, replies: Mapping[str, Message], stale: bool, aggregate: Rule = "mean"
) -> dict[str, Params]:
    """Case II, lines 18 to 20: w_c = sum of n_m w_m / sum of n_m over the members of c that took part.

    stale: members that did not take part enter with the group's model. A group without participants keeps its model.
    To rules that weigh all alike, the members that did not take part count as one.
    """
    models = dict(state["models"])
    for number in sorted({state["model"][id] for id in replies}):
        members = [id for id, own in state["model"].items() if own == number]
        params = {id: replies[id].params for id in members if id in replies}
        n = {id: float(replies[id]["n"]) for id in params}
        absent = [id for id in members if id not in replies]
        if stale and absent:
            # No client has an empty id: it stands for all members that have the group's model.
            params[""] = models[number]
            n[""] = float(sum(state["sizes"][id] for id in absent))
        models[number] = aggregated(params, n, aggregate, models[number])
    return models
