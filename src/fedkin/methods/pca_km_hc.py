"""PCA+kM+HC: the linear baseline of FLT; clients send k-means centres once, a hierarchy groups them, FedAvg per group.

The baseline of FLT (Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE TNNLS 2022),
after one-shot federated clustering (Dennis, Li, Smith. Heterogeneity for the win. ICML 2021). Its rounds are FLT's.
`docs/methods/pca-km-hc.md` says what the papers leave open and what is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import AnyRoster, Samples
from fedkin.federation.samples import hash_of
from fedkin.flow import Ask, Message, ServerFlow, phase
from fedkin.forms import COUNT, Shaped, Upto
from fedkin.methods.blocks.signatures import SameStage, SigningMethod, ask_for_count, group_count
from fedkin.methods.blocks.taskonomy import GraphSettings, Related, Sets, Taskonomy, linked_below
from fedkin.methods.blocks.vectors import Array, centres_of
from fedkin.views import ClientView, ServerView

_CENTRES = Shaped(Upto(lambda at: at.method.centres), lambda at: len(at.asked["axes"]))
RANK = 64  # rows of the factor that a client sends


class PcaKmHc(Taskonomy, SigningMethod):
    """Clients send centres of principal components once; a hierarchy groups them; then averages as in FLT.

    clusters: C; "same[:alpha]" is the number of groups found from signatures (`fedkin.graph.find`); None cuts the
    hierarchy at the largest jump of the merge heights. components: the number of components kept, of one PCA of all
    clients' samples. centres: k of the clients' k-means. The hierarchy has average linkage and uses distances of best
    matchings. average, stale, aggregate, regroup_changed, regroup_every: as in FLT.
    """

    name = "pca-km-hc"
    title = "PCA+kM+HC"
    paper = "baseline of FLT, TNNLS 2022"
    by_client = (*Taskonomy.by_client, "same.signatures", "same.group")
    travels = "once: a PCA factor and k centres; then the whole model of the client's group"

    clusters: Annotated[int, Field(ge=1)] | SameStage | None = None
    components: int = Field(32, ge=1)
    centres: int = Field(5, ge=1)
    regroup_changed: int | None = Field(None, ge=1)
    graph: ClassVar[GraphSettings] = GraphSettings()  # type: ignore[misc]

    def check(self, federation: AnyRoster) -> None:
        super().check(federation)
        instead = "choose a method that groups clients by their models: method.name = 'ifca' or 'cfl'"
        federation.task.numbers("method.name: 'pca-km-hc'", instead)

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        As in FLT. signatures: {client id: its k-means centres [k, d]}. basis: "mean" [d] and "axes" [r, d] of the
        shared PCA; empty before it is known. same: signatures and groups from the test, None unless `clusters` is
        "same".
        """
        super().start(server)
        server.state |= {"basis": {}, "same": None}

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(mean=Shaped("size"), factor=Shaped(Upto("size"), "size"), n=COUNT)
    def moments(self, client: ClientView, message: Message) -> Message:
        """Mean and factor of the samples: what the server needs for a PCA of all clients' samples."""
        mean, rows = factor(rows_of(client.train), RANK)
        return Message(mean=mean.to(client.net.dtype), factor=rows.to(client.net.dtype), n=client.size)

    @phase(centres=_CENTRES, n=COUNT)
    def sign(self, client: ClientView, message: Message) -> Message:
        """k-means centres of the samples in the common basis."""
        projected = (rows_of(client.train) - message["mean"].double()) @ message["axes"].double().T
        centres = centres_of(projected, self.centres, int(client.rng("k-means").integers(2**31)), starts=4)
        client.state["signed"] = hash_of(client.train).hex()
        return Message(centres=centres.to(client.net.dtype), n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        state = server.state
        if not ids:
            return {}
        if self.clusters is not None:
            state["same"] = yield from ask_for_count(server, state["same"], ids, self.clusters)
            if group_count(self.clusters, state["same"]) is None:
                return {}
        if not state["basis"]:
            state["basis"] = yield from self.basis(server, ids)
            if not state["basis"]:
                return {}
        replies = yield from Ask("sign", dict.fromkeys(ids, Message(**state["basis"])))
        return {id: Message(signature=reply["centres"], n=reply["n"]) for id, reply in replies.items()}

    def basis(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Tensor]]:
        """Ask these clients for their moments; return mean and axes of the shared PCA, empty if none arrived."""
        replies = yield from Ask("moments", {id: Message() for id in ids})
        if not replies:
            return {}
        in_order = [reply for _, reply in sorted(replies.items())]
        n, means, factors = ([reply[name] for reply in in_order] for name in ("n", "mean", "factor"))
        mean, axes = pooled(n, means, factors, self.components)
        return {"mean": mean.to(server.net.dtype), "axes": axes.to(server.net.dtype)}

    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        """Groups from a hierarchy of the distances between the clients' centres."""
        clusters = None if self.clusters is None else group_count(self.clusters, server.state["same"])
        between = np.asarray(graph.matching(sets))
        labels = graph.hierarchical(between, clusters and min(clusters, len(ids)), linkage="average")
        linked, gamma = linked_below(between, labels, "groups")
        return Related(linked, labels, gamma, between)

    def distances(self, sets: Sets, others: Sets) -> Array:
        return np.asarray(graph.matching(sets, others))


def spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values [r], falling, and right singular vectors [r, d] of rows [n, d].

    Values below 1e-7 of the largest are rounding and left out; at least one stays. Computed from the eigenvectors of
    the smaller of rows rows' and rows'rows, in about a fifth of the time of an SVD of the rows.
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


def factor(x: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(mean [d], F [r, d]), where F'F is the best approximation of rank r of the scatter of x [n, d] around its mean.

    rank: the largest r.
    """
    mean = x.mean(0)
    values, axes = spectrum(x - mean)
    return mean, (values[:, None] * axes)[:rank]


def principal(rows: Tensor, components: int) -> Tensor:
    """The first principal axes [r, d] of the scatter rows'rows; each axis has its largest entry positive.

    Directions without scatter are left out; at least one axis stays.
    """
    axes = spectrum(rows)[1][:components]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes)


def pooled(
    n: Sequence[int], means: Sequence[Tensor], factors: Sequence[Tensor], components: int
) -> tuple[Tensor, Tensor]:
    """(mean [d], axes [r, d]) of the PCA of several clients' samples together, in double precision.

    n, means, factors: each client's number of samples and the results of `factor`; exact if the factors are.
    """
    counts = torch.tensor(n, dtype=torch.float64)
    centres = torch.stack([mean.double() for mean in means])
    mean = counts @ centres / counts.sum()
    # Scatter around the common mean is the clients' scatter around their own means, plus that of these means.
    between = counts.sqrt()[:, None] * (centres - mean)
    rows = torch.cat([*(rows.double() for rows in factors), between])
    return mean, principal(rows, components)


def rows_of(samples: Samples) -> Tensor:
    """The inputs as rows [n, d], in double precision."""
    x: Tensor = samples.inputs(slice(None), torch.float64)
    return x.flatten(1)
