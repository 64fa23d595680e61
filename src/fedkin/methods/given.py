"""Given groups and neighbours: the settings say which clients share a model and which keep their own.

What `fedkin advise` recommends, as a method. Inside a group this is FedAvg (McMahan et al., AISTATS 2017), and along
`near` the average over neighbours of FLT's case I (Jamali-Rad et al., 2022). The own heads and bodies of clients are
those of `kin`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import Field, model_validator

from fedkin.errors import ConfigError, nearest
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, ClientFlow, Fit, Mean, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.graph import Graph, canonical
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.pulled_head import Strength, with_own_parts
from fedkin.views import ClientView, ServerView


class Given(ServerMethod):
    """Groups of clients that share a model, by id; a client in no group trains alone.

    groups: {name: ids}; a client is in at most one. near: {id: ids}, for clients in no group: the client's model is the
    mean of its own and these clients' models, weighted by samples. pull_weights, pull_bias: clients that share a model
    use it with their own heads, pulled to the shared head with these strengths (`fedkin.methods.blocks.pulled_head`;
    None: it is shared). own_body: before use they also train its body further. keep_own: ids of clients that share a
    model but also train their own, and use that one. own_lr: the rate of models of one client (None: that of
    `[training]`).
    """

    name = "given"
    title = "Given groups"
    paper = "(baseline)"
    kind = "clustered"
    travels = "the whole model of the client's group, down and up"

    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    near: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    pull_weights: float | None = Field(None, gt=0)
    pull_bias: float | None = Field(None, gt=0)
    own_body: bool = False
    keep_own: tuple[str, ...] = ()
    own_lr: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Given:
        named = [id for members in self.groups.values() for id in members] + list(self.near)
        twice = sorted({id for id in named if named.count(id) > 1}) if len(set(named)) < len(named) else []
        if twice:
            raise ValueError(f"groups: client {twice[0]!r} is there twice; expected one group, or near, for each")
        return self

    def check(self, federation: AnyRoster) -> None:
        """Raise ConfigError for an id that belongs to no client."""
        ids_of = {
            "groups": [id for members in self.groups.values() for id in members],
            "near": [id for row in self.near.items() for id in (row[0], *row[1])],
            "keep_own": list(self.keep_own),
        }
        for setting, ids in ids_of.items():
            for id in ids:
                if id not in federation:
                    raise ConfigError(f"method.{setting}: no client {id!r}; {nearest(id, federation)}")

    def rows(self) -> dict[str, tuple[str, ...]]:
        """Return {client id: sorted ids whose models are averaged for it, its own included} of clients that share."""
        rows: dict[str, tuple[str, ...]] = {}
        for members in self.groups.values():
            if len(members) > 1:
                rows |= dict.fromkeys(members, tuple(sorted(members)))
        near = {id: tuple(sorted({id, *others})) for id, others in self.near.items() if {id} != {id, *others}}
        # A client whose model others need shares it, even if it uses no other model.
        needed = {other: (other,) for row in near.values() for other in row if other not in rows}
        return dict(sorted((rows | needed | near).items()))

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        models: {client id: params} of clients that share a model; members of a group have the same object.

        A client's state: own, the model that the client trains by itself; absent if it has none.
        """
        server.state["models"] = dict.fromkeys(self.rows(), server.initial)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(n=COUNT, params=NET.when(lambda at: not at.asked["alone"]))
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the shared model, and the client's own."""
        reply = Message(n=client.size)
        # The shared model trains first, so that its random draws are those of FedAvg with and without own models.
        if not message["alone"]:
            fitted = yield from Fit(message.params)
            reply = Message(params=fitted.params, n=client.size)
        if message["own"]:
            rate = {} if self.own_lr is None else {"lr": self.own_lr}
            training = client.training.model_copy(update=rate)
            alone = yield from Fit(client.state.get("own", client.initial), training=training)
            client.state["own"] = alone.params
        return reply

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        if message["own"]:
            own: Params = client.state.get("own", client.initial)
            return own
        weights, bias = (math.inf if pull is None else pull for pull in (self.pull_weights, self.pull_bias))
        return with_own_parts(client, message.params, Strength(weights, bias), self.own_body)

    # -- at the server ----------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        if server.round == 1:
            server.graph = self.graph(server)
        messages, rows = {id: self.offer(server, id) for id in sampled}, self.rows()
        mean = None if self.near else Mean(group={id: rows[id][0] for id in sampled if id in rows})
        replies = yield from Ask("train", messages, mean)
        if mean is not None:
            group_means = mean.by_group(replies)
            old = server.state["models"]
            server.state["models"] = {id: group_means.get(row[0], old[id]) for id, row in rows.items()}
            return
        means = means_of_rows(set(rows.values()), replies)
        server.state["models"] = {id: means.get(row, server.state["models"][id]) for id, row in rows.items()}

    def offer(self, server: ServerView, id: str) -> Message:
        models = server.state["models"]
        if id in models:
            return Message(params=models[id], alone=False, own=id in self.keep_own)
        if id not in server.clients and models:
            # A client that never took part is in no group: it gets the mean of all shared models.
            return Message(params=weighted_mean(models, dict.fromkeys(models, 1.0)), alone=False, own=False)
        return Message(alone=True, own=True)

    def graph(self, server: ServerView) -> Graph:
        """Return the groups, with weight 1 from each client to those whose models are averaged for it."""
        ids, rows = server.clients, self.rows()
        row_of = {id: number for number, id in enumerate(ids)}
        weights = np.zeros((len(ids), len(ids)))
        for id in rows.keys() & row_of.keys():
            weights[row_of[id], [row_of[other] for other in rows[id] if other in row_of]] = 1.0
        np.fill_diagonal(weights, 0.0)
        named = {id: name for name, members in self.groups.items() for id in members if len(members) > 1}
        labels = canonical(np.array([named.get(id, f"\0{id}") for id in ids]))
        numbered = dict(zip(ids, labels.tolist(), strict=True))
        return Graph(ids, weights, groups=numbered, directed=bool(self.near), round=server.round)


def means_of_rows(rows: Iterable[tuple[str, ...]], replies: Mapping[str, Message]) -> dict[tuple[str, ...], Params]:
    """Return the mean of the models that the clients in a row have sent, for each row of which any has."""
    shared = {id: reply for id, reply in replies.items() if "params" in reply}
    means: dict[tuple[str, ...], Params] = {}
    for row in rows:
        if models := {id: shared[id].params for id in row if id in shared}:
            means[row] = weighted_mean(models, {id: float(shared[id]["n"]) for id in models})
    return means
