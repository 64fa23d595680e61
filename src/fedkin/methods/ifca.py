"""IFCA: every client tries all C models and trains the one that fits it best; the server averages within clusters.

Ghosh, Chung, Yin, Ramchandran. An efficient framework for clustered federated learning. NeurIPS 2020. Algorithm 1
with model averaging; `docs/methods/ifca.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Integer
from fedkin.keys import key
from fedkin.learning.aggregate import aggregated
from fedkin.learning.losses import per_sample
from fedkin.learning.net import body_of, head_of, redrawn
from fedkin.methods.blocks.averaging import mean_weights
from fedkin.methods.blocks.clusters import Clustered, cluster_means, mean_of_clusters
from fedkin.methods.blocks.signatures import SameStage, SigningMethod, ask_for_count, group_count
from fedkin.settings import one_of
from fedkin.views import ClientView, ServerView


class Ifca(Clustered, SigningMethod):
    """C models; a client belongs to the one with the smallest loss on its training samples.

    clusters: C, or "same[:alpha]": the number of groups found from signatures (`fedkin.graph.find`).
    weights: "samples" weighs a client by n_k in its cluster's mean, "equal" weighs all the same.
    aggregate: as in FedAvg, inside a cluster.
    share: "body" keeps one body for all and a head per cluster (the paper's weight sharing).
    redraw: which part of models 1 .. C-1 is initialised again at the start: the complete "net", or the "head" only.
    warmup: rounds of FedAvg before there are clusters; heads are redrawn after them.
    choose: at evaluation, a client uses the cluster of its "last" training, or chooses again ("anew").
    """

    name = "ifca"
    title = "IFCA"
    paper = "Ghosh et al., NeurIPS 2020"
    by_client = ("cluster", "same.signatures", "same.group")
    travels = "down: the models of all C clusters; up: the trained one and its number"

    clusters: Annotated[int, Field(ge=1)] | SameStage = Field(2, json_schema_extra=one_of(2, 3, 4, 5, 6, 8))
    share: Literal["nothing", "body"] = "nothing"
    redraw: Literal["net", "head"] = "net"
    warmup: int = Field(0, ge=0)
    choose: Literal["last", "anew"] = "last"

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        models: {cluster: params}; only "0" during the warm-up. cluster: {client id: cluster}, each client's last choice
        that reached the server. same: signatures and groups from the test, None where C is given.
        """
        server.state = {"models": {"0": server.initial}, "cluster": {}, "same": None}
        if not self.warmup:
            self.open_clusters(server)

    def wanted(self, server: ServerView) -> int:
        """C; 1 while C is not known."""
        return group_count(self.clusters, server.state["same"]) or 1

    def open_clusters(self, server: ServerView) -> None:
        """Give each cluster its own start: model 0 stays, the others are redrawn."""
        common = server.state["models"]["0"]
        models: dict[str, Params] = {"0": common}
        for number in range(1, self.wanted(server)):
            drawn = redrawn(server.net, key(server.seed, "", 0, f"cluster {number}"))
            whole_net = self.redraw == "net" and self.share == "nothing" and not self.warmup
            models[str(number)] = {**common, **(drawn if whole_net else head_of(drawn))}
        server.state["models"] = models

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=NET, cluster=Integer(high=lambda at: len(_received(at.asked)) - 1), n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Find the model with the smallest loss (Algorithm 1, line 6), then train it (line 8)."""
        models = _received(message)
        best = yield from _best(client, models)
        fitted = yield from Fit(models[best])
        return Message(params=fitted.params, cluster=int(best), n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state, before = server.state, self.wanted(server)
        state["same"] = yield from ask_for_count(server, state["same"], sampled, self.clusters)
        if self.wanted(server) > before and not self.warmup:
            self.open_clusters(server)
        replies = yield from Ask("train", dict.fromkeys(sampled, self.packed(server)))
        if not replies:
            return
        warming = len(state["models"]) < self.wanted(server)
        chosen = {id: str(reply["cluster"]) for id, reply in sorted(replies.items())}
        shared = {} if warming else self.shared_body(server, replies)
        models = cluster_means(state["models"], chosen, replies, self.weights, self.aggregate)
        state["models"] = {number: {**params, **shared} for number, params in models.items()}
        if warming:
            if server.round >= self.warmup:
                self.open_clusters(server)
            return
        state["cluster"] = {**state["cluster"], **chosen}
        self.record(server)

    def shared_body(self, server: ServerView, replies: Mapping[str, Message]) -> Params:
        """With `share` = "body", the mean of the bodies of all replies."""
        if self.share != "body" or len(server.state["models"]) == 1:
            return {}
        bodies = {id: body_of(reply.params) for id, reply in replies.items()}
        start = body_of(server.state["models"]["0"])
        return aggregated(bodies, mean_weights(replies, self.weights), self.aggregate, start)

    def packed(self, server: ServerView) -> Message:
        """All models in one message; a shared body travels once."""
        models = server.state["models"]
        if self.share == "body" and len(models) > 1:
            heads = {number: head_of(params) for number, params in models.items()}
            return Message(body=body_of(models["0"]), heads=heads)
        return Message(models=models)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        """Offer the model of the client's cluster; all models if it has no cluster or chooses again."""
        models, cluster = server.state["models"], server.state["cluster"]
        last = self.choose == "last" and id in cluster
        return Message(models={cluster[id]: models[cluster[id]]} if last else models)

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        """The model with the smallest loss on the client's training samples; without samples, the weighted mean."""
        models = _received(message)
        if client.size == 0 and len(models) > 1:
            common: Params = message["common"]
            return common
        return models[(yield from _best(client, models))]

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part try all models; one without samples gets the mean, weighted by members."""
        models = server.state["models"]
        common = mean_of_clusters(models, server.state["cluster"])
        return {id: Message(models=models, common=common) for id in ids}
        yield


def _received(message: Mapping[str, Any]) -> dict[str, Params]:
    """{cluster: params} in the order of the clusters."""
    if "heads" in message:
        models = {number: {**message["body"], **head} for number, head in message["heads"].items()}
    else:
        models = dict(message["models"])
    return {number: models[number] for number in sorted(models, key=int)}


def _best(client: ClientView, models: Mapping[str, Params]) -> ClientFlow[str]:
    """The cluster whose model has the smallest mean loss on the client's training samples; on ties the first.

    A loss that is not a number counts as infinite. A single model is not tried.
    """
    numbers, losses = list(models), []
    if len(numbers) == 1:
        return numbers[0]
    for params in models.values():
        outputs = yield from Infer(params)
        loss = float(per_sample(client.task)(outputs.double(), client.train.labels()).mean())
        losses.append(np.inf if np.isnan(loss) else loss)
    return numbers[int(np.argmin(losses))]
