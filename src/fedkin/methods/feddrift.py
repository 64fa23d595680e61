"""FedDrift: clusters split when a client's accuracy drops, and merge when their models fit each other's samples.

Jothimurugesan, Hsieh, Wang, Joshi, Gibbons. Federated learning under distributed concept drift. AISTATS 2023.
`docs/methods/feddrift.md` says where paper and this file differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedkin.flow import Ask, ClientFlow, Infer, Message, ServerFlow, phase
from fedkin.forms import COUNT, Each, Number
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.clusters import Clustered, cluster_means
from fedkin.methods.blocks.vectors import Array
from fedkin.views import ClientView, ServerView


class FedDrift(Clustered):
    """FedAvg inside clusters, which are found again at the beginning of every time step of `every` rounds.

    Algorithm 2: a client joins the cluster whose model is most accurate on its samples; if its accuracy dropped by more
    than delta since the end of the last step, it gets its own cluster with the initial parameters. Clusters i and j
    that both had a model before merge by complete linkage while max(a_ii - a_ij, a_jj - a_ji, 0) is at most delta; a_ij
    is the accuracy of model i on the samples of cluster j. A merged model is the mean weighted by numbers of clients.

    All clients start in one cluster. weights, aggregate: as in FedAvg, inside a cluster.
    """

    name = "feddrift"
    title = "FedDrift"
    paper = "Jothimurugesan et al., AISTATS 2023"
    by_client = ("cluster", "accuracy")
    travels = "once a step: the models of all clusters down, accuracies up; else the cluster's model"
    needs_classes = True

    delta: float = Field(0.1, gt=0, lt=1)
    every: int = Field(10, ge=1)

    @phase(accuracy=Each(Number(0.0)), n=COUNT)
    def judge(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """The accuracy of each model in the message on the client's samples, {cluster: accuracy}."""
        accuracy, labels = {}, client.train.labels()
        for number, params in sorted(message["models"].items()):
            outputs = yield from Infer(params, "logits")
            accuracy[number] = float((outputs[:, : client.task.classes].argmax(1) == labels).double().mean())
        return Message(accuracy=accuracy, n=client.size)

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        models: {cluster: params}. cluster: {client id: cluster}. accuracy: of each client at the end of the last step.
        free: the number of the next new cluster.
        """
        server.state = {"models": {"0": server.initial}, "cluster": {}, "accuracy": {}, "free": 1}

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        if (server.round - 1) % self.every == 0:
            yield from self.regroup(server, sampled)
        asked = {id: Message(params=state["models"][state["cluster"].get(id, "0")]) for id in sampled}
        replies = yield from Ask("train", asked)
        cluster = {id: state["cluster"].get(id, "0") for id in replies}
        state["models"] = cluster_means(state["models"], cluster, replies, self.weights, self.aggregate)
        if server.round % self.every == 0:
            own = {id: state["cluster"].get(id, "0") for id in sampled}
            models = state["models"]
            judged = yield from Ask("judge", {id: Message(models={own[id]: models[own[id]]}) for id in sampled})
            accuracy = {id: float(next(iter(reply["accuracy"].values()))) for id, reply in judged.items()}
            state["accuracy"] = {**state["accuracy"], **accuracy}
        if state["cluster"]:
            self.record(server)

    def regroup(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """Assign clients to clusters, isolate those whose accuracy dropped, and merge clusters."""
        state, known = server.state, server.state["models"]
        replies = yield from Ask("judge", dict.fromkeys(sampled, Message(models=known)))
        cluster, isolated = self.assigned(state, replies)
        members = Counter(cluster.values())
        numbers = [number for number in sorted(known, key=int) if members[number]]
        into = merged(numbers, accuracies(numbers, cluster, replies), self.delta)
        models = {**known, **dict.fromkeys(isolated, server.initial)}
        for number in sorted(set(into.values())):
            parts = {part: known[part] for part in numbers if into[part] == number}
            models[number] = weighted_mean(parts, members) if len(parts) > 1 else known[number]
        state["cluster"] = {id: into.get(number, number) for id, number in cluster.items()}
        state["models"] = {number: models[number] for number in sorted({"0", *state["cluster"].values()}, key=int)}
        state["free"] += len(isolated)

    def assigned(self, state: dict[str, Any], replies: Mapping[str, Message]) -> tuple[dict[str, str], list[str]]:
        """({client id: cluster}, new clusters): a new one for each client whose accuracy dropped, else the best one."""
        cluster, isolated = dict(state["cluster"]), list[str]()
        for id in sorted(replies):
            accuracy = {number: min(float(value), 1.0) for number, value in replies[id]["accuracy"].items()}
            best = max(sorted(accuracy, key=int), key=lambda number: accuracy[number])
            if accuracy[best] < state["accuracy"].get(id, 0.0) - self.delta:
                best = str(state["free"] + len(isolated))
                isolated.append(best)
            cluster[id] = best
        return cluster, isolated

    # -- the model that a client uses ---------------------------------------------------------------------------

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part join the cluster whose model is most accurate on their samples."""
        models, offers = server.state["models"], {id: self.offer(server, id) for id in ids}
        replies = yield from Ask("judge", dict.fromkeys(ids, Message(models=models)))
        for id, reply in replies.items():
            best = max(sorted(reply["accuracy"], key=int), key=lambda number: reply["accuracy"][number])
            offers[id] = Message(params=models[best])
        return offers


def accuracies(numbers: Sequence[str], cluster: Mapping[str, str], replies: Mapping[str, Message]) -> Array:
    """a [m, m]: the accuracy of model i on the samples of cluster j; nan if no client of cluster j answered."""
    table = np.full((len(numbers), len(numbers)), np.nan)
    for j, other in enumerate(numbers):
        members = [reply for id, reply in sorted(replies.items()) if cluster[id] == other]
        n = np.array([float(reply["n"]) for reply in members])
        for i, number in enumerate(numbers if members else ()):
            table[i, j] = float(n @ [float(reply["accuracy"][number]) for reply in members]) / n.sum()
    return table


def merged(numbers: Sequence[str], a: Array, delta: float) -> dict[str, str]:
    """{cluster: smallest number in its merged cluster}, by complete linkage of the losses of accuracy.

    >>> merged(["0", "1", "2"], np.array([[0.9, 0.88, 0.1], [0.87, 0.9, 0.2], [0.1, 0.2, 0.9]]), 0.1)
    {'0': '0', '1': '0', '2': '2'}
    """
    if len(numbers) < 2:
        return {number: number for number in numbers}
    lost = np.diag(a)[:, None] - a  # [i, j]: accuracy that model i loses on the samples of cluster j
    distance = np.nan_to_num(np.maximum(np.maximum(lost, lost.T), 0.0), nan=1.0)
    np.fill_diagonal(distance, 0.0)
    label = fcluster(linkage(squareform(distance, checks=False), "complete"), delta, "distance")
    first: dict[int, str] = {}
    for number, group in zip(numbers, label.tolist(), strict=True):
        first.setdefault(group, number)
    return {number: first[group] for number, group in zip(numbers, label.tolist(), strict=True)}
