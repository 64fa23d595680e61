"""FLT: clients send k centres of their encoded data once; the server finds who is related, and averages along that.

Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE TNNLS 2022. Algorithm and line
numbers below are the paper's; `docs/methods/flt.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.graph import Graph
from fedkin.keys import key
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.encoders import moments
from fedkin.methods.blocks.vectors import needs_planted
from fedkin.methods.flt.relatedness import Array, RelatednessSettings, attach, continued, relate
from fedkin.methods.flt.signature import EncoderSettings, centres_of, codes, content
from fedkin.views import ClientView, ServerView

__all__ = ["EncoderSettings", "Flt", "RelatednessSettings", "along_edges", "inside_groups"]

_DENSE = 1000  # clients up to which a graph is recorded as a dense matrix


class Flt(ServerMethod):
    """Signatures first, once; then rounds of averaging inside groups (Case II) or along the graph's edges (Case I).

    k: centres that a client sends, at most as many as it has distinct samples.
    average: "groups" or "neighbours", both weighted by n_j over the round's participants.
    stale: clients that did not take part enter the averages with the model they have.
    flags: lambda, how many clients must say that their data have changed for these to sign again and the groups to be
    made anew (None: never). every: tau, rounds after which all sign again and the groups are made anew (None: never).
    """

    name: ClassVar[str] = "flt"
    title: ClassVar[str] = "FLT"
    paper: ClassVar[str] = "Jamali-Rad et al., TNNLS 2022"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: an encoder down, k centres up; then the whole model of the client's group"

    k: int = Field(5, ge=1)
    average: Literal["groups", "neighbours"] = "groups"
    stale: bool = False
    flags: int | None = Field(1, ge=1)
    every: int | None = Field(None, ge=1)
    encoder: EncoderSettings = EncoderSettings()
    graph: RelatednessSettings = RelatednessSettings()

    def check(self, federation: Federation) -> None:
        groups, clients = self.graph.groups, len(federation.seen)
        if isinstance(groups, int) and groups > clients:
            raise ConfigError(f"method.graph.groups: {groups} groups, but the federation has {clients} clients")
        needs_planted(federation, control="oracle" if self.graph.control == "oracle" else None)
        self.encoder.check(federation)

    def start(self, server: ServerView) -> None:
        server.state.update(centres={}, rank={}, group={}, model={}, models={}, changed={}, sizes={}, founders=0)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase
    def measure(self, client: ClientView, message: Message) -> Message:
        """How many, sum and sum of squares of the inputs: what standardising tables takes."""
        count, total, squares = moments(client.train)
        return Message(count=count, total=total, squares=squares)

    @phase
    def sign(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Encode the samples, send the k-means centres of their codes; Algorithm 2, lines 2 to 11."""
        if client.size == 0:
            return Message()
        points = yield from codes(client, message, self.encoder)
        client.state["signed"] = content(client.train)
        centres = centres_of(points, self.k, int(client.rng("k-means").integers(2**31)))
        return Message(centres=centres, n=client.size) if self.stale else Message(centres=centres)

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model, and say whether the samples are still those that were signed for."""
        fitted = yield from Fit(message.params)
        changed = self.flags is not None and client.state["signed"] != content(client.train)
        return Message(params=fitted.params, n=client.size, **({"changed": True} if changed else {}))

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        # Where everyone takes part in every round, those who are left out are not there at all.
        there = sampled if server.training.per_round == "all" else server.clients
        first = not state["rank"]
        yield from self.related(server, there)
        # Newcomers train from the next round on, line 24.
        fresh = state.pop("fresh", [])
        due = [id for id in sampled if id in state["model"] and (first or id not in fresh)]
        replies = (yield from Ask("train", {id: self.offer(server, id) for id in due})) if due else {}
        if not replies:
            return
        state["changed"] = {**state["changed"], **{id: True for id, reply in replies.items() if "changed" in reply}}
        average = inside_groups if self.average == "groups" else along_edges
        state.update(average(state, replies, self.stale))

    def related(self, server: ServerView, there: Sequence[str]) -> ServerFlow[None]:
        """Signatures of those who are due, then the first groups, or new ones, or places for newcomers."""
        state = server.state
        changed = [id for id in there if id in state["changed"]]
        flagged = self.flags is not None and len(state["changed"]) >= self.flags
        periodic = self.every is not None and server.round > 1 and (server.round - 1) % self.every == 0
        unsigned = [id for id in there if id not in state["centres"]]
        again = list(there) if periodic else changed if flagged else []
        new = yield from self.signatures(server, sorted({*unsigned, *again}))
        if not new:
            return
        state["centres"] = {**state["centres"], **{id: reply["centres"] for id, reply in new.items()}}
        state["changed"] = {id: True for id in state["changed"] if id not in new}
        state["sizes"] = {**state["sizes"], **{id: reply["n"] for id, reply in new.items() if "n" in reply}}
        late = len(state["centres"]) - state["founders"]
        # So few made the groups that those who came later have more to say; also before the first stage.
        redo = late > state["founders"] or self.graph.control != "none" or any(id in state["rank"] for id in new)
        state["fresh"] = [id for id in new if id not in state["model"]]
        (self.stage if redo else self.attached)(server)

    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        """What these clients sent of k centres each; line 1 sends them the encoder."""
        state, shape = server.state, server.task.numbers("method.encoder")
        if not ids:
            return {}
        if "encoder" not in state:
            sums: dict[str, Any] = {}
            if self.encoder.measures(shape):
                replies = yield from Ask("measure", {id: Message() for id in ids})
                if not replies:
                    return {}
                came = [reply for _, reply in sorted(replies.items())]
                sums = {name: sum(reply[name] for reply in came) for name in ("count", "total", "squares")}
            params, own = self.encoder.trained(shape, server.public)
            state.update(encoder=self.encoder.sent(params), moments=own or sums)
        whole = {"encoder": state["encoder"], "moments": state["moments"]}
        light = {**whole, "encoder": {}} if self.encoder.keep else whole
        messages = {id: {**(light if id in state["centres"] else whole)} for id in ids}
        replies = yield from Ask(
            "sign", {id: Message(**{k: v for k, v in m.items() if v}) for id, m in messages.items()}
        )
        return {id: reply for id, reply in replies.items() if "centres" in reply}

    def stage(self, server: ServerView) -> None:
        """Make graph and groups from all signatures, lines 13 to 18; groups keep the models of those they come from."""
        state = server.state
        # Neither ids nor the order of answers decide on anything, but for clients with equal centres.
        order = sorted(state["centres"], key=lambda id: (_bytes(state["centres"][id]), id))
        planted = None if server.planted is None else [server.planted.get(id, "") for id in order]
        found = relate([_array(state["centres"][id]) for id in order], self.graph, _seed(server), planted)
        before = [state["group"].get(id) for id in order]
        made = continued(found.labels.tolist(), before, dict.fromkeys(state["group"].values()))
        group = {id: made[label][0] for id, label in zip(order, found.labels.tolist(), strict=True)}
        if self.average == "groups":
            models = {str(n): state["models"].get(str(parent), server.initial) for n, parent in made}
            state.update(models=models, model=dict(group))
        else:
            self.adopted(server, order, found.adjacency)
        state.update(
            group=group, rank={id: place for place, id in enumerate(order)}, founders=len(order),
            adjacency=self.stored(found.adjacency), gamma=found.gamma,
        )  # fmt: skip
        self.recorded(server)

    def attached(self, server: ServerView) -> None:
        """Give those who signed for the first time the group, and the model, of their nearest; nobody else is moved."""
        state = server.state
        known = sorted(state["rank"], key=lambda id: int(state["rank"][id]))
        new = sorted((id for id in state["centres"] if id not in state["rank"]),
                     key=lambda id: (_bytes(state["centres"][id]), id))  # fmt: skip
        founders, others = known[: state["founders"]], known[state["founders"] :]
        numbers = sorted({state["group"][id] for id in founders})
        labels = np.array([numbers.index(state["group"][id]) for id in founders])
        fresh, made, late = ([_array(state["centres"][id]) for id in ids] for ids in (new, founders, others))
        rows, nearest, closest = attach(fresh, made, late, labels, state["gamma"], self.graph, _seed(server))
        group = {id: numbers[label] for id, label in zip(new, nearest.tolist(), strict=True)}
        if self.average == "groups":
            state["model"] = {**state["model"], **group}
        else:
            state["model"] = {
                **state["model"],
                **{id: state["model"][founders[place]] for id, place in zip(new, closest.tolist(), strict=True)},
            }
        old = state["adjacency"].double().numpy()
        grown = np.zeros((len(known) + len(new),) * 2)
        grown[: len(known), : len(known)] = old
        grown[len(known) :] = rows
        grown[:, len(known) :] = rows.T
        state.update(
            group={**state["group"], **group}, adjacency=self.stored(grown),
            rank={**state["rank"], **{id: len(known) + place for place, id in enumerate(new)}},
        )  # fmt: skip
        self.recorded(server)

    def adopted(self, server: ServerView, order: Sequence[str], adjacency: Array) -> None:
        """Case I at a stage: who has no model yet takes that of its strongest neighbour who has one."""
        state = server.state
        had = np.array([id in state["model"] for id in order])
        if not had.any():
            state.update(models={"0": server.initial}, model=dict.fromkeys(order, 0))
            return
        model = dict(state["model"])
        for place, id in enumerate(order):
            if not had[place]:
                strength = np.where(had, adjacency[place], -1.0)
                model[id] = state["model"][order[int(strength.argmax())]]
        state["model"] = model

    def stored(self, adjacency: Array) -> Tensor:
        """The adjacency as a state holds it: a bit for every pair where that is enough."""
        weights = torch.from_numpy(adjacency)
        return weights.bool() if bool(((weights == 0) | (weights == 1)).all()) else weights.float()

    def recorded(self, server: ServerView) -> None:
        """Set the graph of this round: only rounds that change it have one."""
        state = server.state
        ids = tuple(sorted(state["rank"]))
        places = torch.tensor([state["rank"][id] for id in ids])
        weights: Any = state["adjacency"][places][:, places].double().numpy()
        if len(ids) > _DENSE:
            weights = sp.csr_array(weights)
        group = {id: int(state["group"][id]) for id in ids}
        server.graph = Graph(ids, weights, groups=group, round=server.round)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        number = server.state["model"].get(id)
        return Message(params=server.initial if number is None else server.state["models"][str(number)])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part sign, and get the model of the nearest group (or client).

        One without samples to sign with gets the mean of all clients' models.
        """
        state = server.state
        if not state["rank"]:
            return {id: self.offer(server, id) for id in ids}
        numbers = list(state["model"].values())
        members = {number: float(numbers.count(int(number))) for number in state["models"]}
        new = yield from self.signatures(server, sorted(ids))
        if new:
            state["centres"] = {**state["centres"], **{id: reply["centres"] for id, reply in new.items()}}
            self.attached(server)
        common = weighted_mean(state["models"], members) if len(new) < len(ids) else {}
        return {id: self.offer(server, id) if id in new else Message(params=common) for id in ids}


def inside_groups(state: Mapping[str, Any], replies: Mapping[str, Message], stale: bool) -> dict[str, Any]:
    """Case II, lines 18 to 20: w_c = sum of n_m w_m / sum of n_m over the members of c that took part.

    stale: members that did not take part count too, with the group's model. A group without participants keeps it.
    """
    models = dict(state["models"])
    for number in sorted({state["model"][id] for id in replies}):
        came = {id: replies[id] for id in replies if state["model"][id] == number}
        params = {id: reply["params"] for id, reply in came.items()}
        n = {id: float(reply["n"]) for id, reply in came.items()}
        if stale:
            absent = [id for id, own in state["model"].items() if own == number and id not in came]
            if absent:
                # No client has an empty id: it stands for all who hold the group's model.
                params[""] = models[str(number)]
                n[""] = float(sum(state["sizes"][id] for id in absent))
        models[str(number)] = weighted_mean(params, n)
    return {"models": models}


def along_edges(state: Mapping[str, Any], replies: Mapping[str, Message], stale: bool) -> dict[str, Any]:
    """Case I, lines 16 and 17: w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j, A_mm = 1, over the j that took part.

    All means are of the models as they came. stale: those who did not take part count too, with the model they have.
    Who has no neighbour among these keeps its model. Clients with equal rows share one model.
    """
    order = sorted(state["rank"], key=lambda id: int(state["rank"][id]))
    entering = [id for id in order if id in replies or stale]
    weights = state["adjacency"].double()
    weights = weights + torch.eye(len(order), dtype=weights.dtype)
    n = torch.tensor([float(replies[id]["n"] if id in replies else state["sizes"][id]) for id in entering])
    rows = weights[:, [state["rank"][id] for id in entering]] * n
    held = {id: replies[id]["params"] if id in replies else state["models"][str(state["model"][id])] for id in entering}
    made: dict[Any, int] = {}
    models: dict[str, Params] = {}
    model: dict[str, int] = {}
    for id, row in zip(order, rows, strict=True):
        near = row.nonzero()[:, 0].tolist()
        told: Any = (row.numpy().tobytes(),) if near else state["model"][id]
        if told not in made:
            made[told] = len(made)
            share = {entering[place]: float(row[place]) for place in near}
            mean = weighted_mean({other: held[other] for other in share}, share) if near else None
            models[str(made[told])] = state["models"][str(told)] if mean is None else mean
        model[id] = made[told]
    return {"models": models, "model": model}


def _seed(server: ServerView) -> int:
    """Of the embedding and of control graphs: the same in every round, so that a fit can be made again."""
    return key(server.seed, "", "relatedness") >> 32


def _array(centres: Tensor) -> Array:
    return np.asarray(centres.double().numpy())


def _bytes(centres: Tensor) -> bytes:
    return bytes(centres.contiguous().numpy().tobytes())
