"""kNN-Per: FedAvg's model, mixed at use with a vote of the client's own samples that have the nearest features.

Marfoq, Neglia, Kameni, Vidal. Personalized federated learning through local memorization. ICML 2022.
`docs/methods/knn-per.md` says where released code and this file differ.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.flow import ClientFlow, Fit, Infer, Message, Params, phase
from fedkin.forms import COUNT, Weights
from fedkin.learning.net import Net
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import one_of
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView

_MEMORY = "head.memory."
_FAR = 1e30  # distance of an empty place of the memory
_SHARES = torch.arange(10) / 10  # with 1 a class without a vote would have the probability 0


class Memory(nn.Module):
    """Features [M, d] and labels [M] of a client's samples (-1: an empty place), and the share of their vote."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(places, width))
        self.register_buffer("labels", torch.full((places,), -1))
        self.register_buffer("share", torch.zeros(()))


class MemoryHead(nn.Module):
    """log(share p_knn + (1 - share) softmax(head(z))) of features z [batch, d]; in training the outputs of the head."""

    def __init__(self, part: nn.Module, places: int, width: int, neighbours: int) -> None:
        super().__init__()
        self.part, self.neighbours = part, neighbours
        self.memory = Memory(places, width)

    def forward(self, z: Tensor) -> Tensor:
        outputs: Tensor = self.part(z)
        if self.training:
            return outputs
        memory: Any = self.memory
        distances = squared_distances(z, memory.features).masked_fill(memory.labels < 0, _FAR)
        votes = vote(distances, memory.labels.clamp_min(0), self.neighbours, outputs.shape[1])
        return mixed(memory.share, votes, outputs.log_softmax(1))


def squared_distances(z: Tensor, others: Tensor) -> Tensor:
    """|z_i - z_j|^2 / d, [n, m], of features [n, d] and [m, d]."""
    lengths = z.square().sum(1)[:, None] + others.square().sum(1)
    return (lengths - 2 * z @ others.T).clamp_min(0) / z.shape[1]


def vote(distances: Tensor, labels: Tensor, neighbours: int, classes: int) -> Tensor:
    """p_knn [n, classes]: the nearest samples, in a tie the earlier ones, vote with weights exp(-distance).

    distances [n, m]: scaled squared distances to the samples with these labels [m].

    >>> vote(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([1, 0, 2]), 2, 3)
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    nearest, places = (part[:, :neighbours] for part in distances.sort(stable=True, dim=1))
    # Relative to the nearest one: far from all samples, weights would all be 0.
    weights = (nearest[:, :1] - nearest).exp()
    votes = weights.new_zeros(distances.shape[0], classes).scatter_add(1, labels[places], weights)
    return votes / votes.sum(1, keepdim=True)


def mixed(share: Tensor, votes: Tensor, logs: Tensor) -> Tensor:
    """log(share votes + (1 - share) exp(logs)); exactly `logs` for a share of 0."""
    lowest = torch.finfo(logs.dtype).min
    return torch.logaddexp(share.log() + votes.log(), torch.log1p(-share) + logs).clamp_min(lowest)


class KnnPer(FedAvg):
    """p_k(y | x) = share_k p_knn(y | x) + (1 - share_k) p(y | x): p is FedAvg's model.

    p_knn(y | x) is proportional to the sum of exp(-|z(x) - z(x_i)|^2 / d) over the `neighbours` own training samples
    with the nearest features z [d], as far as y_i = y.

    memory: at most so many samples are stored, evenly spread over the stored order. share: the weight of the vote;
    None: each client chooses it among 0, .1, .., .9, by the mean loss of its stored samples, each judged by the others.
    weights, aggregate: as in FedAvg.
    """

    name = "knn-per"
    title = "kNN-Per"
    paper = "Marfoq et al., ICML 2022"
    kind = "personalised"
    needs_classes = True

    neighbours: int = Field(7, ge=1, json_schema_extra=one_of(3, 5, 7, 10, 15))
    memory: int = Field(1000, ge=1)
    share: float | None = Field(None, ge=0, lt=1)

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Add an empty memory to the head."""
        if isinstance(net.module.head, MemoryHead):
            return net
        head = MemoryHead(net.module.head, self.memory, net.width(task), self.neighbours)
        return Net(net.module.body, head, net.dtype, net.extra, net.precision)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=Weights(but=_MEMORY), n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model; send it without the memory."""
        fitted = yield from Fit(_with_memory(client, message.params))
        return Message(params=_without_memory(fitted.params), n=client.size)

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        """Return the common model with the client's memory and share."""
        params = _with_memory(client, message.params)
        if not client.size:
            return params
        places = torch.linspace(0, client.size - 1, min(self.memory, client.size)).round().long()
        samples = client.train.take(places.tolist())
        labels, features = samples.labels(), (yield from Infer(params, "features", data=samples))
        share = torch.tensor(0.0 if self.share is None else self.share, dtype=features.dtype)
        if self.share is None and len(samples) > 1:
            logs = yield from Infer(params, "logits", data=samples)
            share = best_share(features, labels, logs, self.neighbours)
        empty = self.memory - len(samples)
        return {
            **params, f"{_MEMORY}features": F.pad(features, (0, 0, 0, empty)),
            f"{_MEMORY}labels": F.pad(labels, (0, empty), value=-1), f"{_MEMORY}share": share,
        }  # fmt: skip

    # -- at the server ----------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        """Start from all parameters but the memory, which stays at each client."""
        server.state["params"] = _without_memory(server.initial)


def best_share(features: Tensor, labels: Tensor, logs: Tensor, neighbours: int) -> Tensor:
    """The share with the smallest mean loss of samples [n, d], whose votes come from the others; 0 in a tie.

    logs [n, classes]: log probabilities under the common model.
    """
    distances = squared_distances(features, features).fill_diagonal_(_FAR)
    votes = vote(distances, labels, min(neighbours, len(labels) - 1), logs.shape[1])
    shares = _SHARES.to(logs.dtype)
    losses = torch.stack([F.nll_loss(mixed(share, votes, logs), labels) for share in shares])
    return shares[losses.argmin()]


def _with_memory(client: ClientView, params: Params) -> dict[str, Tensor]:
    """The common model with an empty memory, in the net's order."""
    return {name: params.get(name, tensor) for name, tensor in client.initial.items()}


def _without_memory(params: Params) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in params.items() if not name.startswith(_MEMORY)}
