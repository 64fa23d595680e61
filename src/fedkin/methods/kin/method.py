"""Kin: clients say once what their samples are like; tests find who may share a model, and how.

A method of fedkin's own. `docs/methods/kin.md` says what is ours, what is known, and what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Choice
from fedkin.learning.robust import Rule
from fedkin.methods.blocks.averaging import Weights
from fedkin.methods.blocks.clusters import cluster_means
from fedkin.methods.blocks.personal import has_place, own_view, shared_view
from fedkin.methods.blocks.signatures import SigningMethod, Tests, collected
from fedkin.methods.kin import grouping
from fedkin.methods.kin.harm import better_of, on_trial, won
from fedkin.methods.kin.state import ClientState, State
from fedkin.views import ClientView, ServerView

__all__ = ["ClientState", "Kin", "State"]


class Kin(SigningMethod):
    """One signature of each client, groups that no test can tell apart, and for each group what its verdict asks for.

    same: one model of the group. shares: one model, with each client's log class shares in its logits. offsets: one
    model of inputs less each client's mean. alone: local training.

    alpha: how often clients of one distribution may be told apart, over all times that groups are found.
    least: groups that differ by less share a model all the same (`fedkin.graph.find`).
    every: after how many rounds all sign again and groups are found anew (None: never).
    trials: in so many of its first rounds, and for as long as it keeps its own, a client trains a model of its own too.
    It holds out the share `held` of its samples, at least `fewest`. It keeps its own where that is better on these by
    `margin` standard errors, and ends its trials where the group's is (0 trials: it never keeps its own).
    ordered: the order of samples may mean something (`fedkin.graph.sign`). weights, aggregate: as in FedAvg.
    """

    name: ClassVar[str] = "kin"
    title: ClassVar[str] = "Kin"
    paper: ClassVar[str] = "(fedkin)"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a signature of 2 KB up; then the whole model of the client's group"

    alpha: float = Field(0.001, gt=0, lt=1)
    least: float = Field(0.01, ge=0)
    every: int | None = Field(None, ge=1)
    trials: int = Field(10, ge=0)
    held: float = Field(0.2, gt=0, lt=1)
    fewest: int = Field(10, ge=1)
    margin: float = Field(2.0, ge=0)
    ordered: bool = True
    weights: Weights = "samples"
    aggregate: Rule = "mean"

    @property
    def rule(self) -> grouping.Rule:
        """How groups are found."""
        return grouping.Rule(self.alpha, self.least)

    @property
    def reads_order(self) -> bool:
        return self.ordered

    def start(self, server: ServerView[State]) -> None:
        server.state = State(
            signatures={}, group={}, verdict={}, models={}, placed={}, looks=0, keeps={},
            tests=Tests(tree={}, leaf={}, alpha=self.alpha),
        )  # fmt: skip

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(n=COUNT, params=NET.when(lambda at: at.asked["verdict"] != "alone"), keeps=Choice("group", "own") | None)
    def train(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Train the group's model as this client sees it; and its own beside it, where samples are held out."""
        verdict = message["verdict"]
        if verdict == "alone":
            fitted = yield from Fit(self.use(client, message))
            client.state["own"] = fitted.params
            return Message(n=client.size)
        group, own = own_view(client, message.params, verdict), client.state.get("own", client.initial)
        trial = on_trial(client, message["look"], self.trials, self.held, self.fewest)
        if trial is None:
            fitted = yield from Fit(group)
            return Message(params=shared_view(client, fitted.params, verdict), n=client.size)
        kept, held = trial
        better = yield from better_of(client, group, own, held, self.margin)
        if better == "group":
            won(client, self.trials)
            fitted = yield from Fit(group)
            return Message(params=shared_view(client, fitted.params, verdict), n=client.size)
        client.state["keeps"] = "own" if better == "own" else "group"
        fitted = yield from Fit(group, data=kept)
        alone = yield from Fit(own, data=kept)
        client.state["own"] = alone.params
        return Message(params=shared_view(client, fitted.params, verdict), n=len(kept), keeps=client.state["keeps"])

    def use(self, client: ClientView[ClientState], message: Message) -> Params:
        """What the client keeps: its group's model as it sees it, or its own."""
        own = client.state.get("own")
        if message["verdict"] == "alone":
            own = client.initial if own is None else own
            return message.params if "params" in message else own
        if own is not None and client.state.get("keeps") == "own":
            return own
        return own_view(client, message.params, message["verdict"])

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        # Once: whoever has not signed does; groups are found, and newcomers placed in them.
        signed = yield from collected(server, server.state, grouping.due_to_sign(server, sampled, self.every))
        if signed:
            grouping.take(server, signed, self.rule)
        # Each round: train, and average inside groups.
        training = [id for id in sampled if id in state["group"]]
        replies = (yield from Ask("train", {id: self.offer(server, id) for id in training})) if training else {}
        shared = {id: reply for id, reply in replies.items() if "params" in reply}
        # Who trained alone has started from the model that it was sent.
        gone = {state["group"][id] for id in replies if state["verdict"][state["group"][id]] == "alone"}
        models = {number: model for number, model in state["models"].items() if number not in gone}
        state["models"] = cluster_means(models, state["group"], shared, self.weights, self.aggregate)
        state["keeps"] = {**state["keeps"], **{id: shared[id].get("keeps", "group") for id in shared}}
        server.info = self.figures(server)

    def figures(self, server: ServerView[State]) -> dict[str, float | None]:
        """For the records: groups of several clients; clients alone, and that keep their own model; smallest p.

        unserved: groups whose verdict asks for what the net has no place for; they have one model for all.
        """
        state = server.state
        verdicts = [state["verdict"][number] for number in state["group"].values()]
        p = [value for node in state["tests"]["tree"].values() for value in node["p"].values()]
        return {
            "groups": sum(verdict != "alone" for verdict in state["verdict"].values()),
            "alone": verdicts.count("alone"),
            "keep_own": sum(keeps == "own" for keeps in state["keeps"].values()),
            "smallest_p": min(p, default=None),
            "unserved": sum(not has_place(server.net, server.task, verdict) for verdict in state["verdict"].values()),
        }

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        state = server.state
        if id not in state["group"]:
            return Message(params=grouping.common(server), verdict="same", look=0)
        number = state["group"][id]
        model = {"params": state["models"][number]} if number in state["models"] else {}
        return Message(**model, verdict=state["verdict"][number], look=state["looks"])

    def welcome(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part sign, and get the model of the group that they belong to, if any."""
        found = {id: self.offer(server, id) for id in ids}
        if not server.state["group"]:
            return found
        signed = yield from collected(server, server.state, sorted(ids))
        for id, number in grouping.nearest(server, signed, self.rule).items():
            if number is not None and server.state["verdict"][number] != "alone":
                model, verdict = server.state["models"][number], server.state["verdict"][number]
                found[id] = Message(params=model, verdict=verdict, look=0)
        return found
