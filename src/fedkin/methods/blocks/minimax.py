"""The frame that TFL and DRFA share: one model, and weights lambda of the clients on the simplex.

min over theta, max over lambda of sum_k lambda_k f_k(theta), by rounds of local training and steps of ascent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedkin import graph
from fedkin.flow import Ask, ClientFlow, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.vectors import training_loss
from fedkin.views import ClientView, ServerView

__all__ = ["Robust", "entropy", "figure", "filled", "mean"]

Array = npt.NDArray[np.float64]


class Robust(ServerMethod):
    """Clients drawn by lambda, the mean of their models, and a second broadcast that asks for losses.

    Where fewer than all take part, they are drawn by lambda with replacement and averaged plainly, a client drawn
    twice counting twice: the mean is sum_k lambda_k theta_k in expectation. Where all take part, it is that sum.

    ask_losses: whom the second broadcast goes to: "all" clients, or as many as train, "sampled" uniformly; a loss is
    scaled by K / how many were heard, and counts as 0 where none was. lambda_start: "uniform", or by "samples".
    floor: the least lambda_k, lowered to 1 / (2 K) where it is above that.
    """

    ask_losses: Literal["all", "sampled"] = "all"
    lambda_start: Literal["uniform", "samples"] = "uniform"
    floor: float = Field(0.0, ge=0)

    def start(self, server: ServerView) -> None:
        server.state["params"] = server.initial
        if self.lambda_start == "uniform":
            self.keep(server, np.full(len(server.clients), 1 / len(server.clients)))

    # -- at a client ------------------------------------------------------------------------------------------

    @phase
    def size(self, client: ClientView, message: Message) -> Message:
        """How many training samples there are."""
        return Message(n=client.size)

    @phase
    def losses(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """The training loss of the model in the message."""
        loss = yield from training_loss(client.task, message.params)
        return Message(loss=loss)

    # -- lambda -----------------------------------------------------------------------------------------------

    def weights(self, server: ServerView) -> Array:
        """lambda in the order of `server.clients`; a client that is new starts at 1 / K."""
        return filled(server.state.get("lambda", {}), server.clients)

    def keep(self, server: ServerView, weights: Array) -> None:
        """Store lambda."""
        server.state["lambda"] = _by_id(server.clients, weights)

    def weigh(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """Before the first round: lambda_k = n_k / n where that was asked for; a size not heard of is the mean."""
        if "lambda" in server.state:
            return
        replies = yield from Ask("size", {id: Message() for id in self.everyone(server, sampled)})
        if replies:
            mean = sum(reply["n"] for reply in replies.values()) / len(replies)
            n = np.array([replies[id]["n"] if id in replies else mean for id in server.clients], dtype=np.float64)
            self.keep(server, n / n.sum())

    def ascend(self, server: ServerView, losses: Mapping[str, Message], rate: float, pull: Array | float) -> None:
        """lambda <- projection of lambda + rate (v - pull), with v_k = K / heard * loss_k, or 0 if not heard."""
        count = len(server.clients)
        scale = count / len(losses)
        v = np.array([scale * float(losses[id]["loss"]) if id in losses else 0.0 for id in server.clients])
        floor = min(self.floor, 1 / (2 * count))
        self.keep(server, graph.project(self.weights(server) + rate * (v - pull), floor=floor))

    # -- who takes part ---------------------------------------------------------------------------------------

    def full(self, server: ServerView) -> bool:
        """Whether all clients take part in every round."""
        return server.training.count(len(server.clients)) == len(server.clients)

    def drawn(self, server: ServerView) -> dict[str, float]:
        """How much each drawn client counts: as often as it was drawn, or, where all take part, lambda_k."""
        weights, clients = self.weights(server), server.clients
        if self.full(server):
            # Relative to the largest, so that equal weights are exactly 1.
            return dict(zip(clients, (weights / weights.max()).tolist(), strict=True))
        count = server.training.count(len(clients))
        rows = server.rng("sample").choice(len(clients), size=count, p=weights / weights.sum())
        row, times = np.unique(rows, return_counts=True)
        return {clients[k]: float(n) for k, n in zip(row.tolist(), times.tolist(), strict=True)}

    def sample(self, server: ServerView) -> list[str]:
        """Those drawn, each once."""
        return sorted(self.drawn(server))

    def everyone(self, server: ServerView, sampled: Sequence[str]) -> Sequence[str]:
        """All clients; where all take part these are the sampled ones."""
        return sampled if self.full(server) else server.clients

    def audience(self, server: ServerView, sampled: Sequence[str]) -> Sequence[str]:
        """Whom the second broadcast goes to."""
        if self.ask_losses == "all" or self.full(server):
            return self.everyone(server, sampled)
        count = server.training.count(len(server.clients))
        rows = server.rng("losses").permutation(len(server.clients))[:count]
        return sorted(server.clients[k] for k in rows)

    # -- the model --------------------------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["params"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params


def mean(models: Mapping[str, Params], weights: Mapping[str, float]) -> Params | None:
    """The mean of models by these weights; None where all that came have weight 0."""
    counted = {id: weights.get(id, 1.0) for id in models}
    return weighted_mean(models, counted) if sum(counted.values()) > 0 else None


def filled(known: Mapping[str, torch.Tensor], ids: Sequence[str]) -> Array:
    """A distribution over `ids` from one over `known`: 1 / K to each of the new, the rest as it was, scaled.

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


def entropy(p: Array) -> float:
    """-sum p ln p, in nats: ln K when uniform, 0 when one-hot.

    >>> entropy(np.array([1.0, 0.0]))
    0.0
    """
    return abs(float(-(p[p > 0] * np.log(p[p > 0])).sum()))


def figure(value: float) -> float:
    """A figure for the records, without the last digits, in which the order of a sum shows."""
    return float(f"{value:.9g}")


def _by_id(ids: Sequence[str], values: Array) -> dict[str, torch.Tensor]:
    return dict(zip(ids, torch.from_numpy(np.asarray(values, dtype=np.float64)).clone().unbind(), strict=True))
