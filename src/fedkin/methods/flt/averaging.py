"""FLT's two averages, Algorithm 3, lines 15 to 20, normalised and over the clients that took part in the round."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from fedkin.flow import Message, Params
from fedkin.learning.robust import Rule, aggregated
from fedkin.methods.flt.state import State, matrix_of

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
    n = np.array([float(replies[id]["n"] if id in replies else state["sizes"][id]) for id in entering])
    held = {id: replies[id].params if id in replies else state["models"][state["model"][id]] for id in entering}
    weights = sp.csr_array(matrix_of(state["adjacency"])) + sp.eye_array(len(order), format="csr")
    weights = sp.csr_array(weights[:, [state["row"][id] for id in entering]] @ sp.diags_array(n))
    weights.eliminate_zeros()
    weights.sort_indices()
    # The number of the new model for each row of weights, with what its updates start from, or each old model kept.
    made: dict[tuple[bytes, str], str] = {}
    models: dict[str, Params] = {}
    model: dict[str, str] = {}
    for id, (left, right) in zip(order, pairwise(weights.indptr.tolist()), strict=True):
        near, row = weights.indices[left:right], weights.data[left:right]
        old = state["model"][id]
        told = near.tobytes() + row.tobytes()
        content = (told, "" if told and aggregate == "mean" else old)
        if content not in made:
            made[content] = str(len(made))
            share = {entering[place]: weight for place, weight in zip(near.tolist(), row.tolist(), strict=True)}
            there, kept = {other: held[other] for other in share}, state["models"][old]
            models[made[content]] = aggregated(there, share, aggregate, kept) if told else kept
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
    present: dict[str, list[str]] = {}
    for id in replies:
        present.setdefault(state["model"][id], []).append(id)
    absent = dict.fromkeys(present, 0.0)
    for id, number in state["model"].items() if stale else ():
        if number in absent and id not in replies:
            absent[number] += state["sizes"][id]
    for number, ids in sorted(present.items()):
        params = {id: replies[id].params for id in ids}
        n = {id: float(replies[id]["n"]) for id in ids}
        if absent[number]:
            # No client has an empty id: it stands for all members that have the group's model.
            params[""] = models[number]
            n[""] = absent[number]
        models[number] = aggregated(params, n, aggregate, models[number])
    return models
