"""FedFomo: each client downloads a few models and weighs each by how much it helps on held-out samples.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized federated learning with first order model optimization. ICLR 2021.
Equation numbers are the paper's; `docs/methods/fedfomo.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import NET, Each, Number
from fedkin.graph import Graph
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.model_mixing import mixing_matrix
from fedkin.methods.blocks.own_models import OwnModels, held_out_fifth, mean_loss
from fedkin.methods.blocks.vectors import as_vector
from fedkin.views import ClientView, ServerView


class FedFomo(OwnModels):
    """w_i <- w_i + sum_n v_n (w_n - w_i), v_n = max(0, (L_i(w_i) - L_i(w_n)) / |w_n - w_i|), normalised, Eq. (2, 3).

    L_i: mean loss on a fifth of the client's samples, which it does not train on. The client then trains w_i.

    models: M, the number of models that a client downloads. explore: the chance that such a model is drawn at random
    instead of by affinity. A client's affinity to another is the sum of its weights so far; the server's state has
    `affinity`, {client: {other: sum}}. A client that never trained uses the mean of all models.
    """

    name = "fedfomo"
    title = "FedFomo"
    paper = "Zhang et al., ICLR 2021"
    by_client = ("models", "affinity")
    travels = "the whole model up, those of M other clients down: clients see each other's models"

    models: int = Field(5, ge=1)
    explore: float = Field(0.3, ge=0, le=1)

    @phase(params=NET, taken=Each(Number(0.0)))
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Mix in the models that help, train, and send the model and the mixing weights."""
        kept, judged = held_out_fifth(client)
        own: Params = client.state.get("params", client.initial)
        weights: dict[str, float] = {}
        if len(judged):
            losses = {}
            for id, params in [("", own), *sorted(message["models"].items())]:
                losses[id] = yield from mean_loss(client.task, params, judged)
            names = client.net.trainable
            gains = {id: losses[""] - losses[id] for id in message["models"]}
            distances = {id: float(as_vector(p, names, own).norm()) for id, p in message["models"].items()}
            weights = taken(gains, distances)
        shares = {"": 1.0 - sum(weights.values()), **dict.fromkeys(message["models"], 0.0), **weights}
        mean = weighted_mean({"": own, **message["models"]}, shares)
        fitted = yield from Fit(mean, data=kept)
        client.state["params"] = fitted.params
        return Message(params=fitted.params, taken=weights)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        models, affinity = server.state["models"], server.state["affinity"]
        asked = {id: Message(models={n: models[n] for n in self.chosen(server, id)}) for id in sampled}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        self.keep(server, replies)
        rows = {id: {k: float(v) for k, v in replies[id]["taken"].items()} for id in sorted(replies)}
        new = {}
        for id, row in rows.items():
            old = affinity.get(id, {})
            new[id] = {**old, **{other: old.get(other, 0.0) + weight for other, weight in row.items()}}
        server.state["affinity"] = {**affinity, **new}
        ids, mixing = mixing_matrix({id: {**row, id: 1.0 - sum(row.values())} for id, row in rows.items()})
        server.graph = Graph(ids, mixing * (1 - np.eye(len(ids))), directed=True, round=server.round, mixing=mixing)

    def chosen(self, server: ServerView, id: str) -> list[str]:
        """Choose the clients whose models client `id` downloads."""
        left = sorted(server.state["models"].keys() - {id})
        draw, picked = server.rng(f"download {id}"), list[str]()
        liking = server.state["affinity"].get(id, {})
        while left and len(picked) < self.models:
            best, explores = max(liking.get(other, 0.0) for other in left), draw.random() < self.explore
            alike = left if explores else [other for other in left if liking.get(other, 0.0) == best]
            picked.append(alike[int(draw.integers(len(alike)))])
            left.remove(picked[-1])
        return sorted(picked)


def taken(gains: dict[str, float], distances: dict[str, float]) -> dict[str, float]:
    """The normalised weights max(0, gain / distance) of other models; 0 for models that do not help.

    >>> taken({"a": 3.0, "b": -1.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0})
    {'a': 0.75, 'b': 0.0, 'c': 0.25}
    """
    raw = {id: max(0.0, gain / distances[id]) if distances[id] > 0 else 0.0 for id, gain in gains.items()}
    total = sum(raw.values())
    return {id: value / total if total else 0.0 for id, value in raw.items()}
