"""PCA+kM+HC: clients send k-means centres of their principal components, the server clusters them; FedAvg per cluster.

The linear baseline of FLT (Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE
TNNLS 2022), after one-shot federated clustering (Dennis, Li, Smith. Heterogeneity for the win. ICML 2021).
`docs/methods/pca-km-hc.md` says what the papers leave open and what is done here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import Federation, Samples
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.methods.blocks.clusters import Array, Labels, Weights, aggregated, centre, members_graph, ordered
from fedkin.views import ClientView, ServerView

__all__ = ["PcaKmHc", "centres_of", "factor", "principal", "spectrum"]


_DISTANCES = {"matching": graph.matching, "minimum": graph.minimum, "hausdorff": graph.hausdorff}


class PcaKmHc(ServerMethod):
    """Signatures are taken once, before a client first trains; groups never change after they are made.

    clusters: C; None finds it where the merge heights jump the most (choose "gap") or where the mean silhouette is the
    largest. components: dimensions that are kept.
    centres: k of the clients' k-means. basis: "shared" is one PCA of all clients' samples; "own" is each client's, and
    centres travel in input space. rank: rows of the factor that a client sends for the shared basis; "all" makes it the
    exact PCA. distance, linkage: between sets of centres, and of the hierarchy.
    """

    name: ClassVar[str] = "pca-km-hc"
    title: ClassVar[str] = "PCA+kM+HC"
    paper: ClassVar[str] = "baseline of FLT, TNNLS 2022"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a PCA factor and k centres; then the whole model of the client's cluster"

    clusters: int | None = Field(None, ge=1)
    components: int = Field(32, ge=1)
    centres: int = Field(5, ge=1)
    basis: Literal["shared", "own"] = "shared"
    rank: Annotated[int, Field(ge=1)] | Literal["all"] = 64
    distance: Literal["matching", "minimum", "hausdorff"] = "matching"
    linkage: Literal["single", "complete", "average", "weighted", "ward"] = "average"
    choose: Literal["gap", "silhouette"] = "gap"
    weights: Weights = "samples"

    def check(self, federation: Federation) -> None:
        federation.task.numbers(
            "method.name: 'pca-km-hc'",
            "choose a method that groups clients by their models: method.name = 'ifca' or 'cfl'",
        )

    def start(self, server: ServerView) -> None:
        server.state.update(basis={}, signatures={}, where={}, models={}, common=server.initial)

    def sample(self, server: ServerView) -> list[str]:
        """This round's clients and everyone who has not signed yet; only the former train."""
        unsigned = [id for id in server.clients if id not in server.state["signatures"]]
        return sorted({*super().sample(server), *unsigned})

    # -- at a client ------------------------------------------------------------------------------------------

    @phase
    def moments(self, client: ClientView, message: Message) -> Message:
        """Mean and factor of the samples: what a PCA of everyone's samples needs."""
        mean, rows = factor(_rows(client.train), self.rank)
        return Message(mean=mean.to(client.net.dtype), factor=rows.to(client.net.dtype), n=client.size)

    @phase
    def sign(self, client: ClientView, message: Message) -> Message:
        """k-means centres of the samples in the common basis, or of their own components in input space."""
        x = _rows(client.train)
        seed = int(client.rng("k-means").integers(2**31))
        if "axes" in message:
            places = (x - message["mean"].double()) @ message["axes"].double().T
            return Message(centres=centres_of(places, self.centres, seed).to(client.net.dtype), n=client.size)
        mean = x.mean(0)
        axes = principal(x - mean, self.components)
        found = centres_of((x - mean) @ axes.T, self.centres, seed) @ axes + mean
        return Message(centres=found.to(client.net.dtype), n=client.size)

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        unsigned = [id for id in sampled if id not in state["signatures"]]
        only_to_sign = set(unsigned) - set(super().sample(server))
        yield from self.signed(server, unsigned)
        known = state["where"] or state["signatures"]
        due = [id for id in sampled if id in known and id not in only_to_sign]
        replies = yield from Ask("train", {id: self.offer(server, id) for id in due})
        if replies:
            if state["models"]:
                state["models"] = aggregated(state["models"], state["where"], replies, self.weights)
                state["common"] = centre(state["models"], state["where"])
            else:
                everyone = aggregated({"0": state["common"]}, dict.fromkeys(replies, "0"), replies, self.weights)
                state["common"] = everyone["0"]
        if state["where"]:
            server.graph = members_graph(state["where"], sorted(state["models"], key=int), server.round)

    def signed(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[None]:
        """Ask these clients for their signatures; make the groups, or attach the new ones to the nearest group."""
        state = server.state
        if self.basis == "shared" and not state["basis"] and ids:
            replies = yield from Ask("moments", {id: Message() for id in ids})
            if not replies:
                return
            state["basis"] = self.common_basis(server, replies)
        replies = (yield from Ask("sign", dict.fromkeys(ids, Message(**state["basis"])))) if ids else {}
        if not replies:
            return
        new = {id: {"centres": reply["centres"], "n": reply["n"]} for id, reply in sorted(replies.items())}
        state["signatures"] = {**state["signatures"], **new}
        if state["where"]:
            state["where"] = {**state["where"], **self.attached(server, {id: new[id]["centres"] for id in new})}
        elif len(state["signatures"]) >= max(self.clusters or 2, 1) or len(state["signatures"]) == len(server.clients):
            state["where"] = self.groups(state["signatures"])
            state["models"] = dict.fromkeys(sorted(set(state["where"].values()), key=int), state["common"])

    def common_basis(self, server: ServerView, replies: Mapping[str, Message]) -> dict[str, Tensor]:
        """mean [d] and axes [r, d] of the PCA of all these clients' samples."""
        came = [reply for _, reply in sorted(replies.items())]
        n = torch.tensor([reply["n"] for reply in came], dtype=torch.float64)
        means = torch.stack([reply["mean"].double() for reply in came])
        mean = n @ means / n.sum()
        # Scatter around the common mean: each client's around its own, and that of the means.
        between = n.sqrt()[:, None] * (means - mean)
        rows = torch.cat([*(reply["factor"].double() for reply in came), between])
        dtype = server.net.dtype
        return {"mean": mean.to(dtype), "axes": principal(rows, self.components).to(dtype)}

    def groups(self, signatures: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
        """{client id: group} by hierarchical clustering of the distances between sets of centres."""
        ids = sorted(signatures)
        between = _DISTANCES[self.distance](_sets(signatures, ids))
        clusters = None if self.clusters is None else min(self.clusters, len(ids))
        labels = graph.hierarchical(between, clusters, linkage=self.linkage, choose=self.choose)
        labels = ordered(labels, [float(signatures[id]["n"]) for id in ids], between.sum(1))
        return {id: str(label) for id, label in zip(ids, labels.tolist(), strict=True)}

    def attached(self, server: ServerView, new: Mapping[str, Tensor]) -> dict[str, str]:
        """The group whose members are nearest on average, for each newly signed client."""
        where, signatures = server.state["where"], server.state["signatures"]
        ids, known = list(new), sorted(where)
        between = _DISTANCES[self.distance](_sets(signatures, ids), _sets(signatures, known))
        numbers = sorted(set(where.values()), key=int)
        member = np.array([[where[id] == number for number in numbers] for id in known], dtype=np.float64)
        nearest = (between @ member / member.sum(0)).argmin(1)
        return {id: numbers[k] for id, k in zip(ids, nearest.tolist(), strict=True)}

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        state = server.state
        return Message(params=state["models"][state["where"][id]] if id in state["where"] else state["common"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part sign, and get the model of the nearest group."""
        if server.state["where"]:
            yield from self.signed(server, ids)
        return {id: self.offer(server, id) for id in ids}


def _rows(samples: Samples) -> Tensor:
    """The inputs as rows [n, d], in double precision."""
    x: Tensor = samples.inputs(slice(None), torch.float64)
    return x.flatten(1)


def _sets(signatures: Mapping[str, Mapping[str, Tensor]], ids: Sequence[str]) -> list[Array]:
    return [np.asarray(signatures[id]["centres"].double().numpy()) for id in ids]


def spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values [r], falling, and right singular vectors [r, d] of rows [n, d], without those that are rounding.

    By the eigenvectors of the smaller of rows rows' and rows'rows: about five times as fast as a decomposition of the
    rows themselves, and as good down to 1e-7 of the largest value.
    """
    wide = len(rows) <= rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    lengths = values.clamp(min=0).sqrt().flip(0)
    kept = max(1, int((lengths > lengths[0] * 1e-7).sum()))
    axes = vectors.flip(1)[:, :kept].T
    if wide:
        axes = axes @ rows
        axes = axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True).clamp(min=1e-300)
    return lengths[:kept], axes


def factor(x: Tensor, rank: int | Literal["all"]) -> tuple[Tensor, Tensor]:
    """(mean [d], F [r, d]) with F'F the scatter of x [n, d] around its mean: the best of rank `rank`, or all of it."""
    mean = x.mean(0)
    values, axes = spectrum(x - mean)
    rows = values[:, None] * axes
    return mean, rows if rank == "all" else rows[:rank]


def principal(rows: Tensor, components: int) -> Tensor:
    """The first principal axes [r, d] of the scatter rows'rows; each axis has its largest entry positive.

    Directions without scatter are left out; at least one axis stays.
    """
    axes = spectrum(rows)[1][:components]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes)


def centres_of(x: Tensor, k: int, seed: int) -> Tensor:
    """k-means centres [k, d] of x [n, d]; fewer when there are fewer distinct samples."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than k
        labels: Labels = KMeans(min(k, len(x)), n_init=4, random_state=seed).fit_predict(x.numpy()).astype(np.int64)
    # Means are taken here: those of scikit-learn's threads differ in the last bits from run to run.
    return torch.stack([x[torch.from_numpy(labels == label)].mean(0) for label in np.unique(labels)])
