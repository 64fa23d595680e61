"""FLT-same, a method of fedkin: FLT's averages inside groups of clients whose signatures no test tells apart.

The rounds are those of FLT (Algorithm 3 of Jamali-Rad et al., 2022; `blocks/taskonomy.py`). Signatures and groups
differ: clients send moments of random features (`fedkin.graph.sign`), labels included, and groups come from
`fedkin.graph.find`. There is no encoder, no k-means, no UMAP, and no number of groups. `docs/methods/flt-same.md` says
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation.samples import hash_of
from fedkin.flow import Message, ServerFlow, phase
from fedkin.forms import COUNT
from fedkin.methods.blocks.signatures import (
    SIGNED,
    SMALLEST_DIFFERENCE,
    SigningMethod,
    Tests,
    collect_signatures,
    evidence_of,
    find_groups,
    signature_in,
    tests_of,
)
from fedkin.methods.blocks.taskonomy import GraphSettings, Related, Sets, Taskonomy, linked_below, seed_of
from fedkin.methods.blocks.vectors import Array
from fedkin.methods.blocks.watching import watch_members
from fedkin.views import ClientView, ServerView

# A signature's n counts persons, and the means weigh absent clients by samples.
_SIGNED_AND_SIZE = [
    {**fields, "size": COUNT.when(lambda at: at.method.stale)} if fields else {} for fields in SIGNED
]  # fmt: skip


class FltSame(Taskonomy, SigningMethod):
    """Clients send signatures of moments once; groups are clients that no test tells apart; then averages as in FLT.

    alpha: how often clients with the same distribution may be split. average, stale, aggregate, regroup_changed,
    regroup_every, graph: as in FLT; edges link clients nearer than gamma (`fedkin.graph.apart`).

    States are those of FLT, with one difference at the server. signatures: {client id: [bytes] uint8}.

    tests: the tests behind the groups, None with a control graph. verdict: {group as text: its verdict} by these tests.
    watched: {client id: doubts about its membership}.
    """

    name = "flt-same"
    title = "FLT-same"
    paper = "(fedkin)"
    by_client = (*Taskonomy.by_client, "tests.leaf", "watched")
    travels = "once: a signature of moments up; then the whole model of the client's group"

    alpha: float = Field(0.001, gt=0, lt=1)
    graph: GraphSettings = GraphSettings()

    @property
    def signs_again(self) -> bool:
        return self.regroup_every is not None or self.regroup_changed is not None

    @phase(*_SIGNED_AND_SIZE)
    def sign_moments(self, client: ClientView, message: Message) -> Message:
        """The client's signature, by the plan in the message; with `stale` also the number of its samples."""
        client.state["signed"] = hash_of(client.train).hex()
        reply = super().sign_moments(client, message)
        return Message(**reply, size=client.size) if self.stale and reply else reply

    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        signed = yield from collect_signatures(server, server.state, ids)
        watch_members(server, {id: str(number) for id, number in server.state["group"].items()}, self.alpha)
        n = {id: {"n": server.state["sizes"][id]} if self.stale else {} for id in signed}
        return {id: Message(signature=data, **n[id]) for id, data in signed.items()}

    def decoded(self, signature: Tensor) -> Any:
        return signature_in(signature)

    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        """Find groups by tests; clients nearer than gamma are neighbours."""
        seed, settings = seed_of(server), self.graph
        between = self.distances(sets, sets)
        tested = find_groups({str(row): one for row, one in enumerate(sets)}, self.alpha, SMALLEST_DIFFERENCE, seed)
        linked, gamma = linked_below(between, tested.labels, settings.gamma, settings.adjacency)
        server.state["tests"], server.state["verdict"] = None, {}
        if settings.control == "none":
            tests = tests_of(tested)
            leaf = {ids[int(row)]: node for row, node in tests["leaf"].items()}
            server.state["tests"] = Tests(**{**tests, "leaf": leaf})
            server.state["verdict"] = {str(label): verdict for label, verdict in enumerate(tested.verdicts)}
        return Related(linked, tested.labels, gamma, between)

    def make_groups(self, server: ServerView, ids: Sequence[str]) -> Related:
        related = super().make_groups(server, ids)
        # Verdicts have the labels of the tests; the state needs the numbers that groups keep over time.
        number = {str(label): str(server.state["group"][id]) for id, label in zip(ids, related.groups, strict=True)}
        server.state["verdict"] = {number[label]: verdict for label, verdict in server.state["verdict"].items()}
        return related

    def distances(self, sets: Sets, others: Sets) -> Array:
        return np.asarray(graph.apart(sets) if others is sets else graph.apart(sets, others))

    def record(self, server: ServerView) -> None:
        """The graph, each client's verdict, and the tests behind the groups."""
        super().record(server)
        state, tests = server.state, server.state.get("tests")
        if not tests or server.graph is None:
            return
        # A client that was alone no longer is once a newcomer has joined it.
        members = Counter(state["group"].values())
        verdicts = {}
        for id, group in state["group"].items():
            verdict = state["verdict"][str(group)]
            verdicts[id] = "same" if verdict == "alone" and members[group] > 1 else verdict
        server.graph = server.graph.tested(verdicts, evidence_of(tests))
