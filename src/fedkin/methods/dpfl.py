"""DPFL: each client averages with a few partners, chosen because their models lower its held-out loss.

Kharrat, Canini, Horvath. Decentralized personalized federated learning. arXiv 2406.06520, 2024. `docs/methods/dpfl.md`
says where paper and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from fedkin.federation import Samples, Task
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Each, Integer
from fedkin.graph import Graph
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.own_models import OwnModels, held_out_fifth, mean_loss
from fedkin.settings import one_of
from fedkin.views import ClientView, ServerView


class Dpfl(OwnModels):
    """w_i <- the mean, by samples, of the models of client i and its partners, then local training.

    Partners are chosen in round 2 and in every `every`-th round. The choice is greedy: a client starts from its own
    model and adds the one of `candidates` whose model lowers the loss of the mean most, until no model lowers it or
    `budget` is reached. The loss is that on a fifth of the client's samples, which it does not train on. In other
    rounds the partners stay.

    A client that never trained uses the mean of all models. The server's state also has `sizes`, the number of samples
    of each client that answered, and `partners`, its last choice.
    """

    name = "dpfl"
    title = "DPFL"
    paper = "Kharrat et al., 2024"
    by_client = ("models", "sizes", "partners")
    travels = "the whole model up, those of candidates or partners down: clients see each other's models"

    budget: int = Field(10, ge=1, json_schema_extra=one_of(2, 5, 10, 20))
    every: int = Field(2, ge=1)
    candidates: int = Field(20, ge=1)

    @phase(params=NET, n=COUNT, partners=Each(Integer(1)))
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Choose partners if asked, average with them, and train; partners: {id: number of samples}."""
        kept, held = held_out_fifth(client)
        own: Params = client.state.get("params", client.initial)
        models, sizes = {"": own, **message["models"]}, {"": client.size, **message["sizes"]}
        partners = sorted(message["models"])
        if message["choose"]:
            partners = (yield from self.chosen(client.task, models, sizes, held)) if len(held) else []
        mean = weighted_mean({id: models[id] for id in ("", *partners)}, {id: sizes[id] for id in ("", *partners)})
        fitted = yield from Fit(mean, data=kept)
        client.state["params"] = fitted.params
        return Message(params=fitted.params, n=client.size, partners={id: sizes[id] for id in partners})

    def chosen(
        self, task: Task, models: Mapping[str, Params], sizes: Mapping[str, int], held: Samples
    ) -> ClientFlow[list[str]]:
        """Choose partners greedily; models, sizes: by id, of this client ("") and the candidates."""

        def loss(ids: Sequence[str]) -> ClientFlow[float]:
            mean = weighted_mean({id: models[id] for id in ids}, {id: sizes[id] for id in ids})
            return (yield from mean_loss(task, mean, held))

        partners: list[str] = []
        best = yield from loss([""])
        while len(partners) < self.budget:
            losses = {}
            for id in sorted(set(models) - {"", *partners}):
                losses[id] = yield from loss(["", *partners, id])
            if not losses or not min(losses.values()) < best:
                break
            nearest = min(losses, key=lambda id: (losses[id], id))
            best = losses[nearest]
            partners.append(nearest)
        return partners

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        asked = {id: self.with_models(server, id) for id in sampled}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        self.keep(server, replies)
        state["sizes"] = {**state["sizes"], **{id: replies[id]["n"] for id in sorted(replies)}}
        chosen = {id: sorted(replies[id]["partners"]) for id in sorted(replies) if asked[id]["choose"]}
        state["partners"] = {**state["partners"], **chosen}
        ids = sorted(state["models"])
        weights = np.array([[float(j in state["partners"].get(i, ())) for j in ids] for i in ids])
        server.graph = Graph(tuple(ids), weights, directed=True, round=server.round)

    def with_models(self, server: ServerView, id: str) -> Message:
        """The models of the client's partners, or of candidates to choose partners from."""
        state = server.state
        choose = bool(state["models"]) and (server.round % self.every == 0 or id not in state["partners"])
        others = self.drawn(server, id) if choose else state["partners"].get(id, [])
        models, sizes = ({other: state[table][other] for other in others} for table in ("models", "sizes"))
        return Message(models=models, sizes=sizes, choose=choose)

    def drawn(self, server: ServerView, id: str) -> list[str]:
        """Return a client's candidates: all other clients, or `candidates` of them drawn at random."""
        others = sorted(set(server.state["models"]) - {id})
        if len(others) <= self.candidates:
            return others
        return sorted(server.rng(f"candidates of {id}").choice(others, self.candidates, replace=False).tolist())
