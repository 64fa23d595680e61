"""CFL: a cluster is split in two when its model has converged but some members' updates still point apart.

Sattler, Mueller, Samek. Clustered federated learning: model-agnostic distributed multitask optimization under privacy
constraints. IEEE TNNLS 32(8), 2021 (arXiv 2019). `docs/methods/cfl.md` says where paper, released code and this file
differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import NET
from fedkin.learning.aggregate import aggregated
from fedkin.methods.blocks.averaging import mean_weights
from fedkin.methods.blocks.clusters import Clustered, members_graph, numbered_by_size
from fedkin.methods.blocks.signatures import SameStage, SigningMethod, ask_for_groups
from fedkin.methods.blocks.vectors import Array, Labels, inner_products_of_params
from fedkin.settings import span
from fedkin.views import ClientView, ServerView

_ROOT = "r"


class Cfl(Clustered, SigningMethod):
    """A tree of clusters; the leaves are trained.

    split: when a cluster is split. "norms": by eps1 and eps2. "same[:alpha]": while its participants are in several of
    the groups found from signatures (`fedkin.graph.find`), whatever the lengths. Both split by cosines of updates.
    eps1, eps2: a cluster is split when |mean update| < eps1 while the largest |update| > eps2. With scale "first" both
    are shares of the largest update of the first round; with "absolute" they are lengths, as in the paper.
    gamma_max: a split also needs gamma_max < sqrt((1 - largest cosine across the parts) / 2). after: rounds before the
    first split. min_size: least number of participants in each part. weights: of clients in means, "samples" (n_k) or
    "equal". aggregate: as in FedAvg, inside a cluster.
    """

    name = "cfl"
    title = "CFL"
    paper = "Sattler et al., TNNLS 2021"
    by_client = ("node", "same.signatures", "same.group")
    travels = "the whole model, down and up; again for each split that a client has to be placed in"

    split: Literal["norms"] | SameStage = "norms"
    eps1: float = Field(0.3, ge=0, json_schema_extra=span(0.1, 0.9))
    eps2: float = Field(0.7, ge=0, json_schema_extra=span(0.1, 1))
    scale: Literal["first", "absolute"] = "first"
    gamma_max: float = Field(0.0, ge=0, le=1)
    after: int = Field(0, ge=0)
    min_size: int = Field(1, ge=1)

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        A node is named by its path from the root: "r" has all clients, "r0" and "r1" are its two parts. models: {node:
        params}; a leaf's model is trained, an inner node keeps the model that was split. directions: {node: parameters
        of length 1} of every node but the root: the mean direction of its members' updates when they were split off, or
        0 where they cancel out. node: {client id: node} where the client is. largest: length of the longest update of
        the first round; 0.0 before that. same: signatures and groups from the test, None without split "same".
        """
        server.state = {"models": {_ROOT: server.initial}, "directions": {}, "node": {}, "largest": 0.0, "same": None}

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=NET)
    def settle(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model of a cluster that was split, to find out on which side this client is."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        if self.split != "norms":
            state["same"] = yield from ask_for_groups(server, state["same"], sampled, self.split)
        state["node"] = {**state["node"], **(yield from self.placed(server, sampled))}
        node = {id: state["node"].get(id, _ROOT) for id in server.clients}
        asked = {id: self.offer(server, id) for id in sampled if not _is_split(state, node[id])}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        for leaf in sorted({node[id] for id in replies}):
            node |= self.advance(server, leaf, {id: replies[id] for id in sorted(replies) if node[id] == leaf})
        state["node"] = {**state["node"], **node}
        server.graph = members_graph(state["node"], sorted(set(state["node"].values())), server.round)

    def advance(self, server: ServerView, leaf: str, replies: Mapping[str, Message]) -> dict[str, str]:
        """Average one leaf's replies, or split the leaf; return {client id: new leaf} if it was split."""
        state, names = server.state, server.net.trainable
        start, weights = state["models"][leaf], mean_weights(replies, self.weights)
        params = {id: reply.params for id, reply in replies.items()}
        inner = inner_products_of_params(list(params.values()), names, start)
        if not state["largest"]:
            state["largest"] = float(np.sqrt(np.diag(inner).max()))
        labels = self.parts(server, list(replies), inner, np.array(list(weights.values())))
        if labels is None:
            state["models"] = {**state["models"], leaf: aggregated(params, weights, self.aggregate, start)}
            return {}
        lengths = dict(zip(params, np.sqrt(np.diag(inner)).tolist(), strict=True))
        moved = {id: f"{leaf}{label}" for id, label in zip(params, labels.tolist(), strict=True)}
        for part in (f"{leaf}0", f"{leaf}1"):
            members = {id: params[id] for id in params if moved[id] == part}
            state["models"] = {**state["models"], part: aggregated(members, weights, self.aggregate, start)}
            state["directions"] = {**state["directions"], part: direction(members, start, names, lengths)}
        return moved

    def parts(self, server: ServerView, ids: Sequence[str], inner: Array, weights: Array) -> Labels | None:
        """0 or 1 for each of these participants of a cluster, from inner products of their updates; None: no split."""
        if server.round <= self.after or len(inner) < 2 * self.min_size:
            return None
        eps1, eps2 = self.limits(server, ids)
        labels = graph.cfl(inner, eps1=eps1, eps2=eps2, counts=weights, gamma_max=self.gamma_max)
        if labels.max() == 0 or np.bincount(labels).min() < self.min_size:
            return None
        return numbered_by_size(labels, weights, np.diag(inner))

    def limits(self, server: ServerView, ids: Sequence[str]) -> tuple[float, float]:
        """eps1 and eps2 as lengths; with split "same", limits that hold always or never."""
        if self.split != "norms":
            same = server.state["same"]
            groups = {same["group"][id] for id in ids if id in same["group"]} if same else set()
            return (np.inf, 0.0) if len(groups) > 1 else (0.0, np.inf)
        unit = server.state["largest"] if self.scale == "first" else 1.0
        return self.eps1 * unit, self.eps2 * unit

    def placed(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, str]]:
        """Move clients at inner nodes down the tree; return {client id: new node}.

        A client trains the model that was split and goes to the part whose direction is closer to its update.
        """
        state = server.state
        nodes: dict[str, str] = {}
        at = {id: state["node"].get(id, _ROOT) for id in ids}
        while waiting := {id: node for id, node in at.items() if _is_split(state, node)}:
            start = {id: state["models"][node] for id, node in waiting.items()}
            replies = yield from Ask("settle", {id: Message(params=start[id]) for id in waiting})
            at = {}
            for id, reply in sorted(replies.items()):
                parts = [f"{waiting[id]}{label}" for label in (0, 1)]
                turned = [along(reply.params, start[id], state["directions"][part]) for part in parts]
                at[id] = nodes[id] = parts[int(turned[1] > turned[0])]
        return nodes

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["models"][server.state["node"].get(id, _ROOT)])

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part go down the tree as newcomers do."""
        server.state["node"] = {**server.state["node"], **(yield from self.placed(server, ids))}
        return {id: self.offer(server, id) for id in ids}


def _is_split(state: Mapping[str, Mapping[str, Params]], node: str) -> bool:
    return f"{node}0" in state["models"]


def direction(
    members: Mapping[str, Params], start: Params, names: Sequence[str], lengths: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return the mean of the members' updates, each scaled to length 1; the mean is scaled to length 1 too."""
    total = {name: torch.zeros_like(start[name]) for name in names}
    for id in sorted(members):
        if lengths[id] > 0:
            for name in names:
                total[name] += (members[id][name] - start[name]) / lengths[id]
    length = float(torch.sqrt(sum((t.double().square().sum() for t in total.values()), torch.zeros(()).double())))
    return {name: tensor / length for name, tensor in total.items()} if length > 0 else total


def along(params: Params, start: Params, towards: Params) -> float:
    """Return the update's inner product with a direction; it ranks directions of length 1 by their cosine."""
    return float(sum(((params[name] - start[name]).double() * part.double()).sum() for name, part in towards.items()))
