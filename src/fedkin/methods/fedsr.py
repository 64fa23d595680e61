"""FedSR: simple representations: Gaussian features of small norm, with little information beyond the class.

Nguyen, Torr, Lim. FedSR: a simple and effective domain generalization method for federated learning. NeurIPS 2022.
`docs/methods/fedsr.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.federation import Task
from fedkin.flow import ClientFlow, Fit, Message, Params, phase
from fedkin.forms import COUNT, Weights
from fedkin.learning.devices import seeded
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import Net
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.views import ClientView, ServerView

_LEAST = 1e-6  # a standard deviation of 0 has no density
_LOCAL = "reference."


class GaussianBody(nn.Module):
    """A body with an extra linear layer, which outputs mean and deviation of a Gaussian feature [b, d].

    `forward` returns the mean. The modules of a sequential body keep their names.
    """

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        parts = _parts(body) if type(body) is nn.Sequential else {"net": body}
        for name, module in {**parts, "gaussian": nn.Linear(width, 2 * width)}.items():
            self.add_module(name, module)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, standard deviation), each [b, d]."""
        for module in _parts(self).values():
            x = module(x)
        mean, raw = x.chunk(2, dim=1)
        return mean, F.softplus(raw) + _LEAST

    def forward(self, x: Tensor) -> Tensor:
        return self.moments(x)[0]


def _parts(body: nn.Module) -> dict[str, nn.Module]:
    """The modules of a body by name; `children` would skip a module that occurs twice."""
    return {name: module for name, module in body._modules.items() if module is not None}


class ClassReference(nn.Module):
    """r(z | y): a Gaussian for each class, N(0, softplus(1)) at first."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, width))
        self.raw = nn.Parameter(torch.ones(classes, width))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, standard deviation) of these classes, each [b, d]."""
        return self.mean[y], F.softplus(self.raw[y]) + _LEAST


def gaussian_kl(mean: Tensor, sd: Tensor, other_mean: Tensor, other_sd: Tensor) -> Tensor:
    """KL(N(mean, sd^2) | N(other_mean, other_sd^2)) of diagonal Gaussians, summed over the last axis.

    >>> gaussian_kl(*torch.tensor([[1.0], [1.0], [0.0], [1.0]]))
    tensor(0.5000)
    """
    ratio = (sd.square() + (mean - other_mean).square()) / (2 * other_sd.square())
    return (torch.log(other_sd / sd) + ratio - 0.5).sum(-1)


@dataclass(frozen=True)
class SimpleRepresentation:
    """Cross-entropy of one drawn feature z + l2r |z|^2 + cmi KL(N(mean, sd) | r(. | y))."""

    l2r: float
    cmi: float
    norm: str
    weighted = True

    def __call__(self, model: Any, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        mean, sd = model.in_body(model.body.moments, batch.x)
        z = mean + sd * torch.randn_like(mean)
        size = z.square().sum(1) if self.norm == "squared" else torch.linalg.vector_norm(z, dim=1)
        value = F.cross_entropy(model.head(z), batch.y, reduction="none") + self.l2r * size
        return masked_mean(value + self.cmi * gaussian_kl(mean, sd, *model.reference(batch.y)), batch)


class FedSr(FedAvg):
    """FedAvg of a net with Gaussian features; class references never leave their client.

    l2r: weight of the feature's norm, "squared" as in the paper or "plain" as in its code. cmi: weight of the
    divergence to the client's class reference. weights: "samples" weighs a client by n_k, "equal" weighs all the same.
    aggregate: as in FedAvg.
    """

    name = "fedsr"
    title = "FedSR"
    paper = "Nguyen et al., NeurIPS 2022"
    travels = "the whole model with its Gaussian layer, down and up; class references stay"
    needs_classes = True

    l2r: float = Field(0.01, ge=0, json_schema_extra=span(1e-4, 0.1))
    cmi: float = Field(0.001, ge=0, json_schema_extra=span(1e-5, 0.01))
    norm: Literal["squared", "plain"] = "squared"

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Add a Gaussian layer after the body, and class references."""
        if isinstance(net.module.body, GaussianBody):
            return net
        width = net.width(task)
        with seeded(key):
            body = GaussianBody(copy.deepcopy(net.module.body), width)
        equipped = Net(body, net.module.head, net.dtype, net.extra, net.precision)
        return equipped.extended(lambda: {"reference": ClassReference(task.classes, width)}, key)

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView) -> None:
        client.state["reference"] = _part(client.initial, local=True)

    @phase(params=Weights(but=_LOCAL), n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train model and class references; send the model."""
        loss = SimpleRepresentation(self.l2r, self.cmi, self.norm)
        fitted = yield from Fit(self.use(client, message), loss)
        client.state["reference"] = _part(fitted.params, local=True)
        return Message(params=_part(fitted.params, local=False), n=client.size)

    # -- at the server ----------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        """Start from all parameters but the class references, which stay at the clients."""
        server.state["params"] = _part(server.initial, local=False)

    def use(self, client: ClientView, message: Message) -> Params:
        return {**message.params, **client.state["reference"]}


def _part(params: Params, *, local: bool) -> dict[str, Tensor]:
    """Return the parameters that stay at the client, or those that travel."""
    return {name: tensor for name, tensor in params.items() if name.startswith(_LOCAL) == local}
