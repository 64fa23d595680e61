"""PCA+kM+HC: clients send k-means centres of principal components once, the server groups clients; FedAvg per group.

The linear baseline of FLT (Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE
TNNLS 2022), after one-shot federated clustering (Dennis, Li, Smith. Heterogeneity for the win. ICML 2021).
`docs/methods/pca-km-hc.md` says what the papers leave open and what is done here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import Federation, Samples
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Shaped, Upto
from fedkin.learning.robust import Rule
from fedkin.methods.blocks.averaging import Weights, mean_model
from fedkin.methods.blocks.clusters import cluster_means, mean_of_clusters, members_graph, numbered_by_size
from fedkin.methods.blocks.signatures import Same, SameStage, SigningMethod, ask_for_count, group_count
from fedkin.views import ClientView, ServerView

__all__ = ["PcaKmHc", "State"]

_CENTRES = Shaped(Upto(lambda at: at.method.centres), lambda at: len(at.asked.get("axes", range(at.size))))


class Signature(TypedDict):
    """What a client sent once: its k-means centres [k, d], and its number of samples."""

    centres: Tensor
    n: int


class State(TypedDict):
    """At the server.

    basis: "mean" [d] and "axes" [r, d] of the shared PCA; empty before it is known, and with basis "own".
    signatures: {client id: signature} of every client that sent one. cluster: {client id: cluster}, empty until the
    groups are made. models: {cluster: params}, empty until then. common: the model of everyone until then; afterwards
    the mean of the groups' models, weighted by their members. same: signatures and groups from the test, or None.
    """

    basis: dict[str, Tensor]
    signatures: dict[str, Signature]
    cluster: dict[str, str]
    models: dict[str, Params]
    common: Params
    same: Same | None


class PcaKmHc(SigningMethod):
    """A client sends its signature once, before it first trains; groups never change after they are made.

    clusters: C; "same[:alpha]" is the number of groups that signatures tell apart (`fedkin.graph.find`); None finds it
    where the merge heights jump the most (choose "gap") or where the mean silhouette is the largest.
    components: dimensions that are kept. centres: k of the clients' k-means.
    basis: "shared" is one PCA of all clients' samples; "own" is each client's, and centres travel in input space.
    rank: rows of the factor that a client sends for the shared basis; "all" makes it the exact PCA.
    distance: between two clients' sets of centres. linkage: of the hierarchy. weights: in means, "samples" or "equal".
    aggregate: as in FedAvg, inside a cluster.
    """

    name: ClassVar[str] = "pca-km-hc"
    title: ClassVar[str] = "PCA+kM+HC"
    paper: ClassVar[str] = "baseline of FLT, TNNLS 2022"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a PCA factor and k centres; then the whole model of the client's cluster"

    clusters: Annotated[int, Field(ge=1)] | SameStage | None = None
    components: int = Field(32, ge=1)
    centres: int = Field(5, ge=1)
    basis: Literal["shared", "own"] = "shared"
    rank: Annotated[int, Field(ge=1)] | Literal["all"] = 64
    distance: Literal["matching", "minimum", "hausdorff"] = "matching"
    linkage: Literal["single", "complete", "average", "weighted", "ward"] = "average"
    choose: Literal["gap", "silhouette"] = "gap"
    weights: Weights = "samples"
    aggregate: Rule = "mean"

    def check(self, federation: Federation) -> None:
        instead = "choose a method that groups clients by their models: method.name = 'ifca' or 'cfl'"
        federation.task.numbers("method.name: 'pca-km-hc'", instead)

    def start(self, server: ServerView[State]) -> None:
        server.state = State(basis={}, signatures={}, cluster={}, models={}, common=server.initial, same=None)

    def sample(self, server: ServerView[State]) -> list[str]:
        """This round's clients, and every client without a signature; only the former train."""
        return sorted({*super().sample(server), *(id for id in server.clients if id not in server.state["signatures"])})

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(mean=Shaped("size"), factor=Shaped(Upto("size"), "size"), n=COUNT)
    def moments(self, client: ClientView, message: Message) -> Message:
        """Mean and factor of the samples: what the server needs for a PCA of all clients' samples."""
        mean, rows = factor(rows_of(client.train), self.rank)
        return Message(mean=mean.to(client.net.dtype), factor=rows.to(client.net.dtype), n=client.size)

    @phase(centres=_CENTRES, n=COUNT)
    def sign(self, client: ClientView, message: Message) -> Message:
        """k-means centres of the samples in the common basis, or of their own components in input space."""
        axes = {name: tensor.double() for name, tensor in message.items()}
        seed = int(client.rng("k-means").integers(2**31))
        found = component_centres(rows_of(client.train), axes, self.components, self.centres, seed)
        return Message(centres=found.to(client.net.dtype), n=client.size)

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model in the message on the client's own samples."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        if self.clusters is not None:
            state["same"] = yield from ask_for_count(server, state["same"], sampled, self.clusters)
        unsigned = [id for id in sampled if id not in state["signatures"]]
        yield from self.take_signatures(server, unsigned)
        known = set(state["cluster"] or state["signatures"]) - (set(unsigned) - set(super().sample(server)))
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled if id in known})
        if replies and state["models"]:
            state["models"] = cluster_means(state["models"], state["cluster"], replies, self.weights, self.aggregate)
            state["common"] = mean_of_clusters(state["models"], state["cluster"])
        elif replies:
            state["common"] = mean_model(replies, self.weights, self.aggregate, state["common"])
        if state["cluster"]:
            server.graph = members_graph(state["cluster"], sorted(state["models"], key=int), server.round)

    def take_signatures(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[None]:
        """Ask these clients for their signatures; make the groups, or add the new clients to the nearest group."""
        state = server.state
        if not ids:
            return
        if self.basis == "shared" and not state["basis"]:
            replies = yield from Ask("moments", {id: Message() for id in ids})
            if not replies:
                return
            came = [reply for _, reply in sorted(replies.items())]
            n, means, factors = ([reply[name] for reply in came] for name in ("n", "mean", "factor"))
            mean, axes = pooled(n, means, factors, self.components)
            state["basis"] = {"mean": mean.to(server.net.dtype), "axes": axes.to(server.net.dtype)}
        replies = yield from Ask("sign", dict.fromkeys(ids, Message(**state["basis"])))
        if not replies:
            return
        new = {id: Signature(centres=reply["centres"], n=reply["n"]) for id, reply in sorted(replies.items())}
        state["signatures"] = {**state["signatures"], **new}
        signed, clusters = len(state["signatures"]), self.wanted(server)
        if state["cluster"]:
            state["cluster"] = {**state["cluster"], **self.nearest_groups(server, list(new))}
        elif clusters != 0 and (signed >= (clusters or 2) or signed == len(server.clients)):
            state["cluster"] = self.groups(state["signatures"], clusters)
            state["models"] = dict.fromkeys(sorted(set(state["cluster"].values()), key=int), state["common"])

    def wanted(self, server: ServerView[State]) -> int | None:
        """C; None: to be found from the centres; 0: not known yet."""
        return None if self.clusters is None else group_count(self.clusters, server.state["same"]) or 0

    def groups(self, signatures: Mapping[str, Signature], clusters: int | None) -> dict[str, str]:
        """{client id: group} by hierarchical clustering of the distances between sets of centres."""
        ids, most = sorted(signatures), clusters and min(clusters, len(signatures))
        between = distances([signatures[id]["centres"] for id in ids], self.distance)
        labels = graph.hierarchical(between, most, linkage=self.linkage, choose=self.choose)
        labels = numbered_by_size(labels, [float(signatures[id]["n"]) for id in ids], between.sum(1))
        return {id: str(label) for id, label in zip(ids, labels.tolist(), strict=True)}

    def nearest_groups(self, server: ServerView[State], new: Sequence[str]) -> dict[str, str]:
        """{client id: group} of these clients: the group whose members are nearest on average."""
        cluster, signatures = server.state["cluster"], server.state["signatures"]
        known = sorted(cluster)
        fresh, old = ([signatures[id]["centres"] for id in ids] for ids in (new, known))
        between = distances(fresh, self.distance, old)
        numbers = sorted(set(cluster.values()), key=int)
        member = np.array([[cluster[id] == number for number in numbers] for id in known], dtype=np.float64)
        nearest = (between @ member / member.sum(0)).argmin(1)
        return {id: numbers[place] for id, place in zip(new, nearest.tolist(), strict=True)}

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        state = server.state
        return Message(params=state["models"][state["cluster"][id]] if id in state["cluster"] else state["common"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send their signature, and get the model of the nearest group."""
        if server.state["cluster"]:
            yield from self.take_signatures(server, ids)
        return {id: self.offer(server, id) for id in ids}


def spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values [r], falling, and right singular vectors [r, d] of rows [n, d].

    Values below 1e-7 of the largest are rounding and left out; at least one stays. Computed from the eigenvectors of
    the smaller of rows rows' and rows'rows, which takes about a fifth of the time of a decomposition of the rows.
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
    """(mean [d], F [r, d]), where F'F is the scatter of x [n, d] around its mean.

    rank: at most this many rows, those of the best approximation of this rank; "all": F'F is exact.
    """
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


def pooled(
    n: Sequence[int], means: Sequence[Tensor], factors: Sequence[Tensor], components: int
) -> tuple[Tensor, Tensor]:
    """(mean [d], axes [r, d]) of the PCA of several clients' samples together, in double precision.

    n, means, factors: of each client its number of samples and what `factor` gives; exact if the factors are.
    """
    counts = torch.tensor(n, dtype=torch.float64)
    centres = torch.stack([mean.double() for mean in means])
    mean = counts @ centres / counts.sum()
    # The scatter around the common mean is each client's around its own, plus that of the means.
    between = counts.sqrt()[:, None] * (centres - mean)
    rows = torch.cat([*(rows.double() for rows in factors), between])
    return mean, principal(rows, components)


def component_centres(x: Tensor, basis: Mapping[str, Tensor], components: int, k: int, seed: int) -> Tensor:
    """k-means centres of x [n, d] in the basis "mean" [d], "axes" [r, d]: [k, r].

    Without a basis: in the first principal components of x itself, and given in input space [k, d].
    """
    if basis:
        return centres_of((x - basis["mean"]) @ basis["axes"].T, k, seed)
    mean = x.mean(0)
    axes = principal(x - mean, components)
    return centres_of((x - mean) @ axes.T, k, seed) @ axes + mean


def rows_of(samples: Samples) -> Tensor:
    """The inputs as rows [n, d], in double precision."""
    x: Tensor = samples.inputs(slice(None), torch.float64)
    return x.flatten(1)


_DISTANCES = {"matching": graph.matching, "minimum": graph.minimum, "hausdorff": graph.hausdorff}


def centres_of(x: Tensor, k: int, seed: int) -> Tensor:
    """k-means centres [k, d] of x [n, d] (k-means++, the best of 4 starts); fewer if there are fewer distinct rows.

    >>> centres_of(torch.tensor([[0.0], [2.0], [10.0]]), 2, seed=0).flatten().sort().values.tolist()
    [1.0, 10.0]
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than k
        labels = KMeans(min(k, len(x)), n_init=4, random_state=seed).fit_predict(x.numpy()).astype(np.int64)
    # Means are taken here: those of scikit-learn's threads differ in the last bits from run to run.
    return torch.stack([x[torch.from_numpy(labels == label)].mean(0) for label in np.unique(labels)])


def distances(sets: Sequence[Tensor], kind: str, others: Sequence[Tensor] | None = None) -> npt.NDArray[np.float64]:
    """Distances between every two sets of centres; with `others`, from each set to each of them.

    kind: "matching", "minimum" or "hausdorff" (`fedkin.graph`).
    """
    several = [sets] if others is None else [sets, others]
    return _DISTANCES[kind](*([np.asarray(one.double().numpy()) for one in each] for each in several))
