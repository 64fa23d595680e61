"""PACFL: clients send the principal directions of each class once; angles between them make groups; FedAvg per group.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin. Efficient distribution similarity identification in clustered
federated learning via principal angles between client data subspaces. AAAI 2023. `docs/methods/pacfl.md` says where
paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedkin.federation import AnyRoster
from fedkin.flow import Ask, Message, ServerFlow, phase
from fedkin.forms import Shaped, Upto
from fedkin.methods.blocks.clusters import Clustered, mean_of_clusters, numbered_by_size
from fedkin.methods.blocks.vectors import Array
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class Pacfl(Clustered):
    """U_k: the first `vectors` left singular vectors of each class's samples [d, n_c] at client k, as one subspace.

    Clients are grouped by agglomerative clustering of the angles between U_k and U_l, cut at `threshold` degrees. A
    client sends U_k before it first trains. A later client joins the group that is nearest on average; if all are
    beyond the threshold, it starts a new group.

    measure: the "smallest" principal angle, or the "sum" of all. linkage: of the hierarchy. weights, aggregate: as in
    FedAvg, inside a group. The server's state: `bases`, {client id: [d, r] orthonormal}; `cluster`, {client id:
    cluster}; `models`, {cluster: params}.
    """

    name = "pacfl"
    title = "PACFL"
    paper = "Vahidian et al., AAAI 2023"
    by_client = ("bases", "cluster")
    travels = "once: a few directions of the samples of each class; then the whole model of the group"
    needs_classes = True

    vectors: int = Field(3, ge=1)
    threshold: float = Field(4.9, gt=0, json_schema_extra=span(1, 60))
    measure: Literal["smallest", "sum"] = "smallest"
    linkage: Literal["average", "single", "complete"] = "average"

    def check(self, federation: AnyRoster) -> None:
        how = "choose a method that groups clients by their models: ifca or cfl"
        federation.task.numbers("method.name: 'pacfl'", how)

    @phase(basis=Shaped("size", Upto(lambda at: at.method.vectors * at.task.classes), dtype=torch.float64))
    def sign(self, client: ClientView, message: Message) -> Message:
        """The client's directions."""
        x = client.train.inputs(slice(None), torch.float64).flatten(1).numpy()
        return Message(basis=torch.from_numpy(directions(x, client.train.labels().numpy(), self.vectors)))

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        yield from self.take(server, [id for id in sampled if id not in state["bases"]])
        yield from self.train_clusters(server, sampled)
        if state["cluster"]:
            self.record(server)

    def take(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[None]:
        """Ask these clients for their directions; make the groups, or add the clients to them."""
        state = server.state
        replies = (yield from Ask("sign", dict.fromkeys(ids, Message()))) if ids else {}
        new = {id: replies[id]["basis"] for id in sorted(replies)}
        if not new:
            return
        bases = {**state["bases"], **new}
        if not state["cluster"]:
            between = angles(list(new.values()), list(new.values()), self.measure)
            labels = np.zeros(1, dtype=np.int64)
            if len(new) > 1:
                np.fill_diagonal(between, 0.0)
                tree = linkage(squareform((between + between.T) / 2, checks=False), method=self.linkage)
                labels = fcluster(tree, self.threshold, criterion="distance").astype(np.int64) - 1
            numbered = numbered_by_size(labels, between.sum(1)).tolist()
            cluster = {id: str(number) for id, number in zip(new, numbered, strict=True)}
            models = dict.fromkeys(sorted(set(cluster.values()), key=int), server.initial)
        else:
            cluster, models = dict(state["cluster"]), dict(state["models"])
            common = mean_of_clusters(models, cluster)
            for id, basis in new.items():
                far = self.distances(state, basis)
                nearest = min(far, key=lambda number: far[number])
                if far[nearest] > self.threshold:
                    nearest = str(max(map(int, models)) + 1)
                    models[nearest] = common
                cluster[id] = nearest
        state.update({"bases": bases, "cluster": cluster, "models": models})

    def distances(self, state: Any, basis: Tensor) -> dict[str, float]:
        """Return {group: mean angle between `basis` and its members}."""
        known = sorted(state["cluster"])
        row = angles([basis], [state["bases"][id] for id in known], self.measure)[0]
        return {
            number: float(np.mean([row[k] for k, id in enumerate(known) if state["cluster"][id] == number]))
            for number in sorted(set(state["cluster"].values()), key=int)
        }

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send their directions, and get the model of the nearest group."""
        offers = {id: self.offer(server, id) for id in ids}
        if not server.state["cluster"]:
            return offers
        replies = yield from Ask("sign", dict.fromkeys(ids, Message()))
        for id, reply in replies.items():
            far = self.distances(server.state, reply["basis"])
            offers[id] = Message(params=server.state["models"][min(far, key=lambda number: far[number])])
        return offers


def directions(x: Array, y: npt.NDArray[np.int64], vectors: int) -> Array:
    """An orthonormal basis [d, r] of the first left singular vectors of each class's samples, x [n, d], y [n]."""
    parts = []
    for label in np.unique(y):
        left, sizes, _ = np.linalg.svd(x[y == label].T, full_matrices=False)
        parts.append(left[:, :vectors][:, sizes[:vectors] > 1e-12 * max(float(sizes[0]), 1e-300)])
    joined = np.concatenate(parts, axis=1)
    left, sizes, _ = np.linalg.svd(joined, full_matrices=False)
    return np.ascontiguousarray(left[:, sizes > 1e-9]) if joined.shape[1] else np.eye(x.shape[1])[:, :1]


def angles(one: Sequence[Tensor], other: Sequence[Tensor], measure: str = "smallest") -> Array:
    """Principal angles in degrees [m, n] between subspaces with orthonormal bases [d, r]: the smallest, or their sum.

    The cosines of the principal angles are the singular values of U'V.
    """
    table = np.zeros((len(one), len(other)))
    for i, u in enumerate(one):
        for j, v in enumerate(other):
            cosines = np.linalg.svd(u.numpy().T @ v.numpy(), compute_uv=False)
            principal = np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))
            table[i, j] = principal[0] if measure == "smallest" else principal.sum()
    return table
