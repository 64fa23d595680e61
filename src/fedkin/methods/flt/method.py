"""FLT: clients send k centres of their encoded data once; the server finds who is related, and averages accordingly.

Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE TNNLS 2022. Line numbers are
those of the paper's Algorithm 2 (FCR, form client relatedness) and Algorithm 3 (FLT). `docs/methods/flt.md` says where
paper, released code and this package differ. What the paper only sketches (newcomers, changed data) is in the modules
beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator

from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Flag, Number, Shaped, Sums, Upto
from fedkin.learning.encoders import moments
from fedkin.learning.robust import Rule
from fedkin.methods.blocks.crowd import check_all_pairs
from fedkin.methods.blocks.signatures import SIGNED, SigningMethod
from fedkin.methods.blocks.stages import needs_planted
from fedkin.methods.flt import dynamic, newcomers, stage
from fedkin.methods.flt.averaging import along_edges, inside_groups
from fedkin.methods.flt.encoder import EncoderSettings
from fedkin.methods.flt.relatedness import RelatednessSettings
from fedkin.methods.flt.relating import relate
from fedkin.methods.flt.signature import centres_of, codes, content, signatures
from fedkin.methods.flt.state import ClientState, State
from fedkin.views import ClientView, ServerView

__all__ = ["EncoderSettings", "Flt", "RelatednessSettings", "relate"]

# Sums over the clients' inputs, per feature; k centres of codes.
_SUMS = Sums(lambda at: at.task.numbers("method.encoder")[0], dtype=torch.float64)
_CENTRES = Shaped(
    Upto(lambda at: at.method.k),
    lambda at: at.method.encoder.length(at.task.numbers("method.encoder")),
    dtype=torch.float32,
)


class Flt(SigningMethod):
    """Signatures once, from which the server makes a graph and groups; then rounds of averaging along these.

    signature: the paper's "centres" of encoded samples, or "moments" (ours, `fedkin.graph.sign`), which tests need and
    for which no encoder travels. None: moments where groups are found by the test: where no number or rule is given.
    k: centres that a client sends, at most as many as it has distinct samples.
    average: inside "groups" (Case II) or over "neighbours" (Case I), weighted by n_j over the round's participants.
    stale: clients that did not take part enter the averages with the model that they have. aggregate: as in FedAvg.
    flags: lambda, the number of clients with changed data at which these sign again and the groups are made anew
    (None: never). every: tau, after how many rounds all sign again and the groups are made anew (None: never).
    """

    name: ClassVar[str] = "flt"
    title: ClassVar[str] = "FLT"
    paper: ClassVar[str] = "Jamali-Rad et al., TNNLS 2022"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a signature up (k centres, or moments); then the whole model of the client's group"

    signature: Literal["centres", "moments"] | None = None
    k: int = Field(5, ge=1)
    average: Literal["groups", "neighbours"] = "groups"
    stale: bool = False
    aggregate: Rule = "mean"
    flags: int | None = Field(1, ge=1)
    every: int | None = Field(None, ge=1)
    encoder: EncoderSettings = EncoderSettings()
    graph: RelatednessSettings = RelatednessSettings()

    @model_validator(mode="after")
    def _fits(self) -> Flt:
        if not self.moments and self.graph.from_test:
            raise ValueError("graph.groups: 'same' tests signatures of moments; take signature = 'moments', or give "
                             "graph.groups a number or another rule")  # fmt: skip
        unused = {"encoder": self.encoder != EncoderSettings(), "k": self.k != 5,
                  "graph.embedding": self.graph.embedding != "none"}  # fmt: skip
        for name, given in unused.items() if self.moments else ():
            if given:
                raise ValueError(f"{name}: for signatures of centres only, and these are of moments; leave it out, or "
                                 "give graph.groups a number or another rule than 'same'")  # fmt: skip
        return self

    @property
    def moments(self) -> bool:
        """Whether clients sign with moments, and not with centres."""
        return self.graph.from_test if self.signature is None else self.signature == "moments"

    @property
    def encoder_sent(self) -> EncoderSettings | None:
        """The encoder's settings; None for signatures of moments, which need none."""
        return None if self.moments else self.encoder

    def check(self, federation: Federation) -> None:
        groups, clients = self.graph.groups, len(federation.seen)
        if isinstance(groups, int) and groups > clients:
            raise ConfigError(f"method.graph.groups: {groups} groups, but the federation has {clients} clients")
        needs_planted(federation, control=self.graph.control)
        check_all_pairs(clients, control=self.graph.control)
        if not self.moments:
            self.encoder.check(federation)

    def start(self, server: ServerView[State]) -> None:
        server.state = State(signatures={}, row={}, founders=0, group={}, models={}, model={}, changed={}, sizes={})

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(count=Number(low=1), total=_SUMS, squares=_SUMS)
    def measure(self, client: ClientView[ClientState], message: Message) -> Message:
        """Only for tables, not in the paper: count, sum and sum of squares of the inputs, to standardise them."""
        count, total, squares = moments(client.train)
        return Message(count=count, total=total, squares=squares)

    @phase(centres=_CENTRES, n=COUNT.when(lambda at: at.method.stale))
    def sign(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Algorithm 2, lines 2 to 11: the client's signature."""
        embedding = yield from codes(client, message, self.encoder)  # 3 to 7: fine-tune, E_m = G(D_m)
        centres = centres_of(embedding, self.k, int(client.rng("k-means").integers(2**31)))  # 8, 9: M_m = kMEANS(E_m)
        client.state["signed"] = content(client.train)
        return Message(centres=centres, n=client.size) if self.stale else Message(centres=centres)  # 10

    @phase(*SIGNED)
    def sign_moments(self, client: ClientView[ClientState], message: Message) -> Message:
        """Ours, in place of `sign`: a signature that tests can read."""
        client.state["signed"] = content(client.train)
        return super().sign_moments(client, message)

    @phase(params=NET, n=COUNT, changed=Flag() | None)
    def train(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Algorithm 3, lines 7 to 13: E epochs from w_m, and the flag delta if the data have changed."""
        fitted = yield from Fit(message.params)
        changed = self.flags is not None and client.state["signed"] != content(client.train)
        return Message(params=fitted.params, n=client.size, **({"changed": True} if changed else {}))

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        """Algorithm 3, one round. Lines 21 to 27, which end a round in the paper, open the next one here."""
        state, first = server.state, not server.state["row"]
        # 1: all clients in the first round; later, lines 23 and 24.
        due = dynamic.due_to_sign(server, sampled, self.flags, self.every)
        joined = yield from self.form_relatedness(server, due)  # 2, 25: FCR
        # 4 to 6: w_m goes to the clients m of S^t. After the first round, newcomers train from the next one on.
        training = [id for id in sampled if id in state["model"] and (first or id not in joined)]
        replies = (yield from Ask("train", {id: self.offer(server, id) for id in training})) if training else {}
        if not replies:
            return
        dynamic.take_flags(state, replies)  # 22: Delta
        if self.average == "neighbours":
            state["models"], state["model"] = along_edges(state, replies, self.stale, self.aggregate)  # 16, 17: Case I
        else:
            state["models"] = inside_groups(state, replies, self.stale, self.aggregate)  # 18 to 20: Case II

    def form_relatedness(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[frozenset[str]]:
        """Algorithm 2 with new signatures of these clients; gives those of them that had no model before."""
        state = server.state
        replies = yield from signatures(server, self.encoder_sent, ids, self.stale)  # 1 to 11
        if not replies:
            return frozenset()
        joined = frozenset(id for id in replies if id not in state["model"])
        anew = dynamic.regroups(state, replies, self.graph.control)
        dynamic.take_signatures(state, replies)  # 12
        if anew:
            order, signed, planted = stage.inputs(server)
            found = relate(signed, self.graph, stage.seed_of(server), planted)  # 13 to 19
            stage.keep(server, order, signed, found, self.average, self.graph)
            if found.recall is not None:
                server.info = {"neighbour_recall": found.recall}
        else:
            newcomers.attach(server, self.graph, self.average)
        return joined

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        number = server.state["model"].get(id)
        return Message(params=server.initial if number is None else server.state["models"][number])

    def use(self, client: ClientView[ClientState], message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send their signature, and get the model of the nearest group (or client)."""
        joined, common = yield from newcomers.welcome(server, ids, self.encoder_sent, self.graph, self.average)
        return {id: self.offer(server, id) if id in joined else Message(params=common) for id in ids}
