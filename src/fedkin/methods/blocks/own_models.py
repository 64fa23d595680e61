"""Methods in which each client has its own model, and the server keeps each client's last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedkin.federation import Samples, Task
from fedkin.flow import ClientFlow, Infer, Message, Params, ServerMethod
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import per_sample
from fedkin.views import ClientView, ServerView


class OwnModels(ServerMethod):
    """The server's state has `models`, {client id: params} of clients that answered; a client's state has `params`.

    All tables of `by_client` start empty. A client uses its own model; before it trains, the mean of all.
    """

    kind = "personalised"
    by_client: ClassVar[tuple[str, ...]] = ("models",)

    def start(self, server: ServerView) -> None:
        server.state.update({table: {} for table in self.by_client})

    def keep(self, server: ServerView, replies: Mapping[str, Message]) -> None:
        """Keep the models in these replies."""
        server.state["models"] = {**server.state["models"], **{id: replies[id].params for id in sorted(replies)}}

    def offer(self, server: ServerView, id: str) -> Message:
        models = server.state["models"]
        if id in models:
            return Message()
        return Message(params=weighted_mean(models, dict.fromkeys(models, 1.0)) if models else server.initial)

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        return client.state.get("params") or message.params


def held_out_fifth(client: ClientView) -> tuple[Samples, Samples]:
    """Return (the samples that a client trains on, every fifth sample, on which it judges models)."""
    held = np.arange(client.size) % 5 == 4
    return client.train.take(np.flatnonzero(~held)), client.train.take(np.flatnonzero(held))


def mean_loss(task: Task, params: Params, samples: Samples) -> ClientFlow[float]:
    """The mean loss of a model on these samples of the client."""
    outputs = yield from Infer(params, "logits", data=samples)
    return float(per_sample(task)(outputs, samples.labels()).double().mean())
