"""IFCA: every client tries all C models, trains the one that fits it best; the server averages within clusters.

Ghosh, Chung, Yin, Ramchandran. An efficient framework for clustered federated learning. NeurIPS 2020. Algorithm 1
with model averaging; `docs/methods/ifca.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.keys import key
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import per_sample
from fedkin.learning.net import Net, head_of
from fedkin.learning.sgd import infer
from fedkin.methods.blocks.clusters import Weights, aggregated, centre, counts, members_graph
from fedkin.views import ClientView, ServerView

__all__ = ["Ifca", "redrawn"]


class Ifca(ServerMethod):
    """C models; a client belongs to the one with the least loss on its training samples.

    clusters: C. weights: "samples" weighs a client by n_k in its cluster's mean, "equal" weighs all alike.
    share: "body" keeps one body for all and a head per cluster (the paper's weight sharing).
    redraw: what of models 1.. C-1 is drawn anew at the start: the whole "net", or the "head" only.
    warmup: rounds of FedAvg before there are clusters; heads are redrawn after them.
    choose: a client that is evaluated uses its cluster as of its "last" estimate, or estimates "anew".
    """

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "down: the models of all C clusters; up: the trained one and its number"

    clusters: int = Field(2, ge=1)
    weights: Weights = "samples"
    share: Literal["nothing", "body"] = "nothing"
    redraw: Literal["net", "head"] = "net"
    warmup: int = Field(0, ge=0)
    choose: Literal["last", "anew"] = "last"

    def start(self, server: ServerView) -> None:
        server.state["models"] = {"0": server.initial}
        server.state["where"] = {}
        if not self.warmup:
            self.open(server)

    def open(self, server: ServerView) -> None:
        """Give each cluster its own start: model 0 stays, the others are redrawn."""
        common = server.state["models"]["0"]
        models = {"0": common}
        for number in range(1, self.clusters):
            drawn = redrawn(server.net, key(server.seed, "", 0, f"cluster {number}"))
            whole = self.redraw == "net" and self.share == "nothing" and not self.warmup
            models[str(number)] = {**common, **(drawn if whole else head_of(drawn))}
        server.state["models"] = models

    # -- at a client ------------------------------------------------------------------------------------------

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Find the model with the least loss, then train it."""
        models = _offered(message)
        best = "0"
        if len(models) > 1:
            losses = {}
            for number, params in models.items():
                outputs = yield from Infer(params)
                losses[number] = _loss(client, outputs)
            best = _least(losses)
        fitted = yield from Fit(models[best])
        return Message(params=fitted.params, cluster=int(best), n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        offer = self.packed(server)
        replies = yield from Ask("train", dict.fromkeys(sampled, offer))
        if not replies:
            return
        models = server.state["models"]
        where = {id: str(reply["cluster"]) for id, reply in sorted(replies.items())}
        new = aggregated(models, where, replies, self.weights)
        if self.share == "body" and len(models) > 1:
            bodies = {id: _body(reply["params"]) for id, reply in replies.items()}
            shared = weighted_mean(bodies, counts(replies, self.weights))
            new = {number: {**params, **shared} for number, params in new.items()}
        server.state["models"] = new
        if len(new) < self.clusters:
            if server.round >= self.warmup:
                self.open(server)
            return
        server.state["where"] = {**server.state["where"], **where}
        server.graph = members_graph(server.state["where"], sorted(new, key=int), server.round)

    def packed(self, server: ServerView) -> Message:
        """All models in one message; a shared body travels once."""
        models: Mapping[str, Params] = server.state["models"]
        if self.share == "body" and len(models) > 1:
            heads = {number: head_of(params) for number, params in models.items()}
            return Message(body=_body(models["0"]), heads=heads)
        return Message(models=models)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        where = server.state["where"]
        if self.choose == "last" and id in where:
            return Message(models={where[id]: server.state["models"][where[id]]})
        return Message(models=server.state["models"])

    def use(self, client: ClientView, message: Message) -> Params:
        models = _offered(message)
        if len(models) == 1:
            return next(iter(models.values()))
        if client.size == 0:
            common: Params = message["common"]
            return common
        module = client.net.scratch()
        tried = {n: infer(client.net, module, params, "logits", client.train) for n, params in models.items()}
        return models[_least({number: _loss(client, outputs) for number, outputs in tried.items()})]

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part try all models; one without samples to try them on gets their members' mean."""
        models, common = server.state["models"], centre(server.state["models"], server.state["where"])
        return {id: Message(models=models, common=common) for id in ids}
        yield


def _offered(message: Message) -> dict[str, Params]:
    """{cluster: params} in the order of the clusters."""
    if "heads" in message:
        models = {number: {**message["body"], **head} for number, head in message["heads"].items()}
    else:
        models = dict(message["models"])
    return {number: models[number] for number in sorted(models, key=int)}


def _loss(client: ClientView, outputs: Tensor) -> float:
    """Mean loss of these outputs on the client's training samples."""
    return float(per_sample(client.task)(outputs.double(), client.train.labels()).mean())


def _least(losses: Mapping[str, float]) -> str:
    """The cluster of least loss, the first of equals; a loss that is not a number loses."""
    numbers = list(losses)
    return numbers[int(np.argmin([np.inf if np.isnan(losses[number]) else losses[number] for number in numbers]))]


def _body(params: Params) -> dict[str, Tensor]:
    """All but the head."""
    head = head_of(params)
    return {name: tensor for name, tensor in params.items() if name not in head}


def redrawn(net: Net, seed: int) -> dict[str, Tensor]:
    """The net's initial parameters with the trainable ones drawn anew from `seed`.

    Modules with `reset_parameters` draw as they did when they were made. Parameters of other modules are shuffled
    entry by entry, which keeps their scale.
    """
    module = copy.deepcopy(net.module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for part in module.modules():
            own = list(part.parameters(recurse=False))
            trained = [parameter for parameter in own if parameter.requires_grad]
            if own and not trained:
                continue
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
            else:
                for parameter in trained:
                    parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].reshape(parameter.shape))
    drawn = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    return {name: drawn[name] if name in net.trainable else tensor for name, tensor in net.initial.items()}
