"""CFL: clusters are split in two, again and again, where their members' updates pull apart.

Sattler, Mueller, Samek. Clustered federated learning: model-agnostic distributed multitask optimization under privacy
constraints. IEEE TNNLS 32(8), 2021 (arXiv 2019). `docs/methods/cfl.md` says where paper, released code and this file
differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.clusters import Array, Labels, Weights, counts, gram, members_graph, ordered
from fedkin.views import ClientView, ServerView

__all__ = ["Cfl", "parts"]

_ROOT = "r"


class Cfl(ServerMethod):
    """A tree of clusters: "r" is everyone, "r0" and "r1" are its two parts, and so on; leaves are trained.

    eps1, eps2: a cluster is split when |mean update| < eps1 while the largest |update| > eps2. With scale "first" both
    are shares of the largest update of the first round; with "absolute" they are lengths, as in the paper.
    gamma_max: also only if gamma_max < sqrt((1 - largest cosine across the parts) / 2). after: rounds before the first
    split. min_size: least participants in each part. weights: of clients in means, "samples" (n_k) or "equal".
    """

    name: ClassVar[str] = "cfl"
    title: ClassVar[str] = "CFL"
    paper: ClassVar[str] = "Sattler et al., TNNLS 2021"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "the whole model, down and up; again for each split that a client has to be placed in"

    eps1: float = Field(0.3, ge=0)
    eps2: float = Field(0.7, ge=0)
    scale: Literal["first", "absolute"] = "first"
    gamma_max: float = Field(0.0, ge=0, le=1)
    after: int = Field(0, ge=0)
    min_size: int = Field(1, ge=1)
    weights: Weights = "samples"

    def start(self, server: ServerView) -> None:
        # models: of every node; an inner node keeps the one that was split. sides: of every node but the root, the
        # direction in which its members pulled when they were split off. where: the node that a client is at.
        server.state.update(models={_ROOT: server.initial}, sides={}, where={}, largest=0.0)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    @phase
    def settle(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model of a cluster that was split, to find out on which side this client is."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        models = server.state["models"]
        found = yield from self.settled(server, sampled)
        if found:
            server.state["where"] = {**server.state["where"], **found}
        where = {id: server.state["where"].get(id, _ROOT) for id in server.clients}
        at_leaf = [id for id in sampled if not _inner(models, where[id])]
        replies = yield from Ask("train", {id: Message(params=models[where[id]]) for id in at_leaf})
        if not replies:
            return
        for node in sorted({where[id] for id in replies}):
            self.advance(server, node, {id: replies[id] for id in sorted(replies) if where[id] == node}, where)
        server.state["where"] = {**server.state["where"], **where}
        nodes = sorted(set(server.state["where"].values()))
        server.graph = members_graph(server.state["where"], nodes, server.round)

    def advance(
        self, server: ServerView, node: str, replies: Mapping[str, Message], where: dict[str, str]
    ) -> None:  # fmt: skip
        """Average one leaf's replies, or split it: `where` then says which of them went to which part."""
        state, names = server.state, server.net.trainable
        start, share = state["models"][node], counts(replies, self.weights)
        params = {id: reply["params"] for id, reply in replies.items()}
        inner = gram(list(params.values()), start, names)
        if not state["largest"]:
            state["largest"] = float(np.sqrt(np.diag(inner).max()))
        labels = self.split(server, inner, np.array(list(share.values())))
        if labels is None:
            state["models"] = {**state["models"], node: weighted_mean(params, share)}
            return
        lengths = dict(zip(params, np.sqrt(np.diag(inner)).tolist(), strict=True))
        for label in (0, 1):
            members = {id: params[id] for id, side in zip(params, labels.tolist(), strict=True) if side == label}
            child = f"{node}{label}"
            state["models"] = {**state["models"], child: weighted_mean(members, share)}
            state["sides"] = {**state["sides"], child: _direction(members, start, names, lengths)}
            where.update(dict.fromkeys(members, child))

    def split(self, server: ServerView, inner: Array, share: Array) -> Labels | None:
        """0 or 1 for each participant of a cluster, from the inner products of their updates; None: no split."""
        if server.round <= self.after or len(inner) < 2 * self.min_size or len(inner) < 2:
            return None
        unit = float(server.state["largest"]) if self.scale == "first" else 1.0
        labels = parts(inner, share, self.eps1 * unit, self.eps2 * unit, self.gamma_max)
        if labels is None or np.bincount(labels).min() < self.min_size:
            return None
        return ordered(labels, share, np.diag(inner))

    def settled(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, str]]:
        """Take clients that are at inner nodes down the tree: {client id: node} of those that moved.

        A client trains the model that was split and goes to the side that its update points to more.
        """
        models, sides = server.state["models"], server.state["sides"]
        found: dict[str, str] = {}
        at = {id: server.state["where"].get(id, _ROOT) for id in ids}
        while waiting := {id: node for id, node in at.items() if _inner(models, node)}:
            replies = yield from Ask("settle", {id: Message(params=models[node]) for id, node in waiting.items()})
            at = {}
            for id, reply in sorted(replies.items()):
                node = waiting[id]
                pulls = [_pull(reply["params"], models[node], sides[f"{node}{label}"]) for label in (0, 1)]
                at[id] = found[id] = f"{node}{int(pulls[1] > pulls[0])}"
        return found

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["models"][server.state["where"].get(id, _ROOT)])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part go down the tree as newcomers do."""
        server.state["where"] = {**server.state["where"], **(yield from self.settled(server, ids))}
        return {id: self.offer(server, id) for id in ids}


def parts(inner: Array, share: Array, eps1: float, eps2: float, gamma_max: float = 0.0) -> Labels | None:
    """CFL's two parts of clients whose updates have inner products `inner` [m, m]; None when its rule says no.

    The parts have the least possible largest cosine across. share: weights of the mean update.
    """
    weight = share / share.sum()
    lengths = np.sqrt(np.diag(inner))
    mean = np.sqrt(max(float(weight @ inner @ weight), 0.0))
    if not (mean < eps1 and lengths.max() > eps2):
        return None
    scale = np.where(lengths > 0, lengths, 1.0)
    cosine = np.clip(inner / np.outer(scale, scale), -1.0, 1.0)
    labels = graph.bipartition(cosine)
    across = float(cosine[np.ix_(labels == 0, labels == 1)].max())
    return labels if gamma_max < np.sqrt((1.0 - across) / 2) else None


def _inner(models: Mapping[str, Params], node: str) -> bool:
    return f"{node}0" in models


def _direction(
    members: Mapping[str, Params], start: Params, names: Sequence[str], lengths: Mapping[str, float]
) -> dict[str, Tensor]:  # fmt: skip
    """The mean of the members' updates, each scaled to length 1, itself scaled to length 1."""
    total = {name: torch.zeros_like(start[name]) for name in names}
    for id in sorted(members):
        if lengths[id] > 0:
            for name in names:
                total[name] += (members[id][name] - start[name]) / lengths[id]
    length = float(torch.sqrt(sum((t.double().square().sum() for t in total.values()), torch.zeros(()).double())))
    return {name: tensor / length for name, tensor in total.items()} if length > 0 else total


def _pull(params: Params, start: Params, side: Params) -> float:
    """The update's inner product with a direction: with two of length 1, the larger has the larger cosine."""
    return float(sum(((params[name] - start[name]).double() * tensor.double()).sum() for name, tensor in side.items()))
