"""TFL: a graph of the clients, learned from their models, says who is central; lambda is pulled towards them.

Ma, Li, Peng. Beyond the federation: topology-aware federated learning for generalization to unseen clients. ICML 2024.
Equation numbers are the paper's; `docs/methods/tfl.md` says what it leaves open and how that is closed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NotRequired

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import NET
from fedkin.methods.blocks import minimax
from fedkin.methods.blocks.minimax import Minimax, entropy, figure, filled, mean, tensors_by_id
from fedkin.methods.blocks.stages import needs_planted, planted_labels
from fedkin.methods.blocks.vectors import as_vector, last_layers
from fedkin.methods.tfl.sketch import sketched
from fedkin.methods.tfl.topology import Topology, check_size, learned
from fedkin.settings import span
from fedkin.views import ClientView, ServerView

__all__ = ["State", "Tfl", "divergence_slope"]

Array = npt.NDArray[np.float64]
_KL_FLOOR = 1e-3


class State(minimax.State):
    """params, lam, drawn: as in `blocks.minimax`.

    vectors: of each client that ever answered, what the graph compares of its last model, {id: [d]}.
    prior: p_k of each client in the last graph, {id: 0-d float64 tensor}; absent before the first graph.
    """

    vectors: NotRequired[dict[str, Tensor]]
    prior: NotRequired[dict[str, Tensor]]


class Tfl(Minimax):
    """min over theta, max over lambda of sum_k lambda_k f_k(theta) - q D(lambda | p), p = softmax(centrality), Eq. (6).

    eta_lambda: rate of lambda; 0 leaves it as it is, and nothing is sent for losses. q: weight of the divergence.
    divergence: "euclidean", |lambda - p|^2 / 2, or "kl", KL(lambda | p) with entries of at least 1e-3.
    """

    name: ClassVar[str] = "tfl"
    title: ClassVar[str] = "TFL"
    paper: ClassVar[str] = "Ma et al., ICML 2024"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model, down and up; the new one down again for its loss"

    eta_lambda: float = Field(0.01, ge=0, json_schema_extra=span(1e-3, 1))
    q: float = Field(0.1, ge=0, json_schema_extra=span(0.01, 10))
    divergence: Literal["euclidean", "kl"] = "euclidean"
    graph: Topology = Topology()

    def check(self, federation: Federation) -> None:
        needs_planted(federation, control=self.graph.control)
        check_size(len(federation.seen), self.graph)

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """theta_k: descend f_k from theta on the client's own samples, Eq. (7)."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        # m clients, drawn by lambda, train; theta is the mean of their models.
        drawn = self.drawn(server, sampled)
        old = server.state["params"]
        replies = yield from Ask("train", {id: Message(params=old) for id in drawn})
        models = {id: reply.params for id, reply in replies.items()}
        new = mean(models, drawn)
        if new is None:
            return
        server.state["params"] = new
        # Every f rounds, the graph of all clients met so far, Eq. (4); its centrality gives the prior p.
        self.remember(server, models, old)
        if "prior" not in server.state or server.round % self.graph.every == 0:
            self.learn_topology(server)
        prior = filled(server.state["prior"], server.clients)
        # lambda <- projection of lambda + eta_lambda dF / dlambda, Eq. (6, 7).
        if self.eta_lambda > 0:
            losses = yield from self.heard(server, new, sampled)
            if losses is not None:
                slope = divergence_slope(self.weights(server), prior, self.divergence)
                self.ascend(server, self.eta_lambda * (losses - self.q * slope))
        server.info = {
            "prior_entropy": figure(entropy(prior)), "prior_largest": figure(float(prior.max())),
            **self.lambda_figures(server),
        }  # fmt: skip

    def remember(self, server: ServerView[State], models: Mapping[str, Params], old: Params) -> None:
        """Keep what the graph compares of each client's last model; these were trained from `old`."""
        names = last_layers(server.net.trainable, self.graph.layers)
        start = old if self.graph.vectors == "updates" else None
        vectors = {id: as_vector(models[id], names, start) for id in sorted(models)}
        if self.graph.sketch is not None:
            vectors = sketched(vectors, self.graph.sketch, server.seed)
        server.state["vectors"] = {**server.state.get("vectors", {}), **vectors}

    def learn_topology(self, server: ServerView[State]) -> None:
        """Renew the graph, Eq. (4), and the prior p = softmax(centrality)."""
        known = server.state["vectors"]
        ids = tuple(id for id in server.clients if id in known)
        found = learned(
            [known[id] for id in ids], self.graph, planted=planted_labels(server, ids),
            seed=server.key("clusters"), control_seed=server.key("control"),
        )  # fmt: skip
        prior = graph.softmax(found.centrality, self.graph.temperature)
        server.state["prior"] = tensors_by_id(ids, prior)
        lam = dict(zip(server.clients, self.weights(server).tolist(), strict=True))
        server.graph = graph.Graph(
            ids,
            found.edges,
            groups=None if found.clusters is None else graph.by_id(ids, found.clusters),
            round=server.round,
            values={"centrality": found.centrality, "prior": prior, "lambda": np.array([lam[id] for id in ids])},
        )


def divergence_slope(weights: Array, prior: Array, divergence: str) -> Array:
    """dD / dlambda [K]; a constant added to all entries would change nothing after the projection.

    >>> divergence_slope(np.array([0.75, 0.25]), np.array([0.5, 0.5]), "euclidean")
    array([ 0.25, -0.25])
    """
    if divergence == "euclidean":
        return weights - prior
    return np.asarray(np.log(np.maximum(weights, _KL_FLOOR) / np.maximum(prior, _KL_FLOOR)))
