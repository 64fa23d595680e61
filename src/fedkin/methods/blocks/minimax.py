"""The frame that TFL and DRFA share: one model, and a weight lambda_k for each client, on the simplex.

min over theta, max over lambda of sum_k lambda_k f_k(theta), by rounds of local training and steps of ascent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy import special
from torch import Tensor

from fedkin import graph
from fedkin.errors import MethodError
from fedkin.flow import Ask, ClientFlow, Message, Params, ServerFlow, phase
from fedkin.forms import Number
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.averaging import OneModel
from fedkin.methods.blocks.own_models import mean_loss
from fedkin.methods.blocks.vectors import Array
from fedkin.views import ClientView, ServerView


def filled(known: Mapping[str, Tensor], ids: Sequence[str]) -> Array:
    """A distribution over `ids` from one over `known`: each new id gets 1 / K; the others keep their proportions.

    >>> filled({"a": torch.tensor(0.25), "b": torch.tensor(0.75)}, ["a", "b", "c", "d"]).tolist()
    [0.125, 0.375, 0.25, 0.25]
    """
    values = np.array([float(known.get(id, math.nan)) for id in ids])
    new = np.isnan(values)
    old = values[~new].sum()
    if len(known) == len(ids) and not new.any():
        return values
    if not old > 0:
        return np.full(len(ids), 1 / len(ids))
    values[~new] *= (1 - new.mean()) / old
    values[new] = 1 / len(ids)
    return values


def figure(value: float) -> float:
    """A figure for the records, without the last digits, which depend on the order of a sum."""
    return float(f"{value:.9g}")


def tensors_by_id(ids: Sequence[str], values: Array) -> dict[str, Tensor]:
    """{id: 0-d float64 tensor} of these values [K], for a state."""
    return dict(zip(ids, torch.from_numpy(np.asarray(values, dtype=np.float64)).clone().unbind(), strict=True))


class Minimax(OneModel):
    """Clients drawn by lambda, the mean of their models, and a second broadcast that asks for losses.

    If fewer than all clients take part, they are drawn by lambda with replacement and averaged without weights; a
    client that is drawn twice counts twice. In expectation the mean is sum_k lambda_k theta_k. If all take part, it is
    that sum.

    ask_losses: the second broadcast goes to "all" clients, or to as many as train, "sampled" uniformly. A loss is
    scaled by K / the number of answers; a client without an answer has loss 0. floor: the smallest lambda_k;
    1 / (2 K) if that is smaller.
    """

    by_client: ClassVar[tuple[str, ...]] = ("lam", "drawn")

    ask_losses: Literal["all", "sampled"] = "all"
    floor: float = Field(0.0, ge=0)

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        params: the global model. lam: lambda_k of each client, {id: 0-d float64 tensor}; 1 / K at first. drawn: how
        often each client was drawn for this round, {id: count}; absent if all take part.
        """
        super().start(server)
        server.state["lam"] = tensors_by_id(server.clients, np.full(len(server.clients), 1 / len(server.clients)))

    # -- at a client ------------------------------------------------------------------------------------------

    def leave(self, server: ServerView, ids: Collection[str]) -> None:
        """Rescale the weights of the remaining clients to sum to 1."""
        super().leave(server, ids)
        state = server.state
        for name in {"lam", "prior"} & state.keys():
            if total := sum(float(value) for value in state[name].values()):
                state[name] = {id: value / total for id, value in state[name].items()}

    @phase(loss=Number())
    def losses(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """The training loss of the model in the message."""
        loss = yield from mean_loss(client.task, message.params, client.train)
        if not math.isfinite(loss):
            raise MethodError(f"the new model's training loss is {loss}; lower training.lr or set training.clip")
        return Message(loss=torch.tensor(loss, dtype=torch.float64))

    # -- who takes part ---------------------------------------------------------------------------------------

    def full(self, server: ServerView) -> bool:
        """Whether all clients take part in every round."""
        return server.training.count(len(server.clients)) == len(server.clients)

    def sample(self, server: ServerView) -> list[str]:
        """This round's clients, each once; the state keeps how often each is drawn, by lambda with replacement."""
        if self.full(server):
            return list(server.clients)
        weights, clients = self.weights(server), server.clients
        count = server.training.count(len(clients))
        draws = server.rng("sample").choice(len(clients), size=count, p=weights / weights.sum())
        server.state["drawn"] = {clients[k]: n for k, n in sorted(Counter(draws.tolist()).items())}
        return sorted(server.state["drawn"])

    def drawn(self, server: ServerView, sampled: Sequence[str]) -> Mapping[str, float]:
        """{client that trains: its weight}: how often it was drawn, or lambda_k if all take part."""
        if self.full(server) and sampled:
            weights = self.weights(server)
            # Relative to the largest, so that equal weights are exactly 1.
            share = dict(zip(server.clients, (weights / weights.max()).tolist(), strict=True))
            return {id: share[id] for id in sampled}
        return {id: server.state["drawn"][id] for id in sampled}

    def audience(self, server: ServerView, sampled: Sequence[str]) -> Sequence[str]:
        """The clients that the second broadcast goes to."""
        if self.full(server):
            return sampled
        if self.ask_losses == "all":
            return server.clients
        count = server.training.count(len(server.clients))
        rows = server.rng("losses").permutation(len(server.clients))[:count]
        return sorted(server.clients[k] for k in rows)

    # -- lambda -----------------------------------------------------------------------------------------------

    def weights(self, server: ServerView) -> Array:
        """lambda [K] in the order of `server.clients`; a new client starts at 1 / K."""
        return filled(server.state["lam"], server.clients)

    def estimated_losses(self, server: ServerView, model: Params, sampled: Sequence[str]) -> ServerFlow[Array | None]:
        """v [K], an estimate of f_k(model): K / answers * loss_k, and 0 without an answer; None if none answered."""
        messages = {id: Message(params=model) for id in self.audience(server, sampled)}
        replies = yield from Ask("losses", messages)
        if not replies:
            return None
        scale = len(server.clients) / len(replies)
        return np.array([scale * float(replies[id]["loss"]) if id in replies else 0.0 for id in server.clients])

    def ascend(self, server: ServerView, step: Array) -> None:
        """lambda <- projection onto the simplex of lambda + step [K]."""
        floor = min(self.floor, 1 / (2 * len(server.clients)))
        server.state["lam"] = tensors_by_id(server.clients, graph.project(self.weights(server) + step, floor=floor))

    def lambda_figures(self, server: ServerView) -> dict[str, float]:
        """How uneven lambda is: its entropy in nats, and its largest share."""
        weights = self.weights(server)
        return {"lambda_entropy": figure(special.entr(weights).sum()), "lambda_largest": figure(float(weights.max()))}


def mean(models: Mapping[str, Params], drawn: Mapping[str, float]) -> Params | None:
    """The mean of the returned models with the weights `drawn`; None if all these weights are 0."""
    counted = {id: drawn[id] for id in models}
    return weighted_mean(models, counted) if sum(counted.values()) > 0 else None
