"""FedU: personal models of one task each, pulled together along the edges of a graph by its Laplacian.

Dinh, Vu, Tran, Dao, Zhang. A new look and convergence rate of federated multitask learning with Laplacian
regularization. IEEE TNNLS 35(6), 2024. `docs/methods/fedu.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.vectors import Layers, flat, last_layers, needs_planted, rows
from fedkin.methods.sfmtl_graph.method import mixed_heads
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView

__all__ = ["FedU", "StatedGraph"]

Array = npt.NDArray[np.float64]
_STATED = ("uniform", "planted")  # graphs of this method, beside the similarities of fedkin.graph


class StatedGraph(Settings):
    """The graph of the clients, a_kl >= 0.

    source: "uniform" (every pair 1), "planted" (1 inside a planted group, else 0), or the similarity of models:
    "cosine", "dot", "l1", "l2", "rbf", of their "weights" or their "updates" since the common start (`vectors`).
    layers: "all", or the last so many. sparsify: a stage of `fedkin.graph`, for example "knn:5".
    control: replace the graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    source: str = "uniform"
    vectors: Literal["weights", "updates"] = "updates"
    layers: Layers = "all"
    sparsify: str = "none"
    control: str = "none"

    @field_validator("source", "sparsify", "control")
    @classmethod
    def _known(cls, spec: str, info: Any) -> str:
        """Refuse an unknown stage when the experiment is read, not in the middle of a run."""
        if info.field_name == "source" and spec in _STATED:
            return spec
        make: dict[str, Callable[[str], object]] = {
            "source": graph.similarity_stage, "sparsify": graph.sparsify_stage, "control": graph.control_stage
        }  # fmt: skip
        try:
            make[str(info.field_name)](spec)
        except ConfigError as error:
            own = f", or {', '.join(_STATED)}" if info.field_name == "source" else ""
            raise ValueError(f"{error}{own}") from None
        return spec


class FedU(ServerMethod):
    """min over W of sum_k f_k(w_k) + lam / 2 sum over pairs of a_kl |w_k - w_l|^2.

    After R local steps, w_k <- w_k - tau lam sum_l a_kl (w_k - w_l), all from the models before it.

    lam: weight of the regulariser. tau: rate of the server's step; None: lr * R, as in the paper.
    neighbours: l runs over those that "answered" in this round, or over "all" that ever did, by their last models.
    welcome_steps: local steps by which a client that never took part makes the mean model its own.
    """

    name: ClassVar[str] = "fedu"
    title: ClassVar[str] = "FedU"
    paper: ClassVar[str] = "Dinh et al., TNNLS 2024"
    kind: ClassVar[Literal["personalised"]] = "personalised"
    travels: ClassVar[str] = "the client's own whole model, down and up"

    lam: float = Field(0.1, ge=0)
    tau: float | None = Field(None, ge=0)
    neighbours: Literal["answered", "all"] = "answered"
    welcome_steps: int = Field(10, ge=0)
    graph: StatedGraph = StatedGraph()

    def check(self, federation: Federation) -> None:
        needs_planted(
            federation, control="oracle" if self.graph.control == "oracle" else None,
            source="planted" if self.graph.source == "planted" else None,
        )  # fmt: skip

    def start(self, server: ServerView) -> None:
        server.state["models"] = {}

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's own model."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    @phase
    def adapt(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """A personal model for a client that never took part."""
        steps = {"local_steps": self.welcome_steps, "local_epochs": None}
        fitted = yield from Fit(message.params, training=client.training.model_copy(update=steps))
        return Message(params=fitted.params)

    # -- at the server ----------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if not replies:
            return
        trained = {id: replies[id]["params"] for id in sorted(replies)}
        kept = {**server.state["models"], **trained}
        ids = tuple(id for id in server.clients if id in (kept if self.neighbours == "all" else trained))
        weights = self.affinity(server, ids, kept)
        rate = self.lam * (server.training.lr * server.training.local if self.tau is None else self.tau)
        mixing = _dense(graph.laplacian_step(weights, None, rate))
        if mixing.min() < -1e-12:
            warnings.warn(
                f"lambda tau times the largest degree is {1 - mixing.diagonal().min():.2g}, above 1: models overshoot "
                "their neighbours; lower method.lam or method.tau, or thin the graph with method.graph.sparsify",
                stacklevel=1,
            )
        server.graph = graph.Graph(ids, weights, round=server.round, mixing=mixing)
        mixed = dict(zip(ids, mixed_heads([kept[id] for id in ids], mixing), strict=True))
        server.state["models"] = {**kept, **{id: mixed[id] for id in trained}}

    def affinity(self, server: ServerView, ids: Sequence[str], models: Mapping[str, Params]) -> Array:
        """a_kl >= 0, symmetric, zero diagonal."""
        how = self.graph
        planted = None if server.planted is None else np.array([server.planted[id] for id in ids])
        if how.source == "uniform":
            a = np.ones((len(ids), len(ids)))
        elif how.source == "planted":
            a = graph.oracle(planted)
        else:
            wanted = last_layers(server.net.trainable, how.layers)
            start = server.initial if how.vectors == "updates" else None
            vectors = [flat(models[id], wanted, start) for id in ids]
            a = graph.similarity_stage(how.source)(rows(vectors, how.source))
        a = _dense(graph.sparsify_stage(how.sparsify)(a))
        return _dense(graph.control_stage(how.control)(a, planted=planted, seed=server.key("control")))

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["models"].get(id, server.initial))

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        models = server.state["models"]
        mean = weighted_mean(models, dict.fromkeys(models, 1)) if models else server.initial
        offers = {id: Message(params=mean) for id in ids}
        if self.welcome_steps == 0:
            return offers
        replies = yield from Ask("adapt", offers)
        return {**offers, **replies}


def _dense(matrix: Any) -> Array:
    """A stage's matrix as an ndarray: a round's clients are few."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)
