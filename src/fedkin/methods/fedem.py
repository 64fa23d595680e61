"""FedEM: every client's distribution mixes M common ones; clients share the M models and have their own proportions.

Marfoq, Neglia, Bellet, Kameni, Vidal. Federated multi-task learning under a mixture of distributions. NeurIPS 2021.
Equation numbers are the paper's; `docs/methods/fedem.md` says where paper and this file differ.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.flow import ClientFlow, Fit, Infer, Message, Params, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.losses import Batch
from fedkin.learning.net import BodyHead, Net, redrawn
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import one_of
from fedkin.tasks import Task
from fedkin.views import ClientView

_PROPORTIONS = "head.log_proportions"


class Bodies(nn.Module):
    """The features of all components, side by side: [batch, M d]."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Any) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class Heads(nn.Module):
    """log sum_m pi_m softmax(head_m(z_m)) of features [batch, M d].

    The log proportions are a parameter without a gradient: each client sets its own.
    """

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.log_proportions = nn.Parameter(-torch.tensor(float(len(parts))).log().expand(len(parts)).clone())

    def each(self, z: Tensor) -> Tensor:
        """The log probabilities of each component, [batch, M, classes]."""
        logits = [part(own) for part, own in zip(self.parts, z.chunk(len(self.parts), 1), strict=True)]
        logs: Tensor = torch.stack(logits, 1).log_softmax(2)
        return logs

    def forward(self, z: Tensor) -> Tensor:
        return (self.each(z) + self.log_proportions[:, None]).logsumexp(1)


@dataclass(frozen=True)
class Responsible:
    """sum_m mean_i q_im loss_m(x_i, y_i): extras["q"] [n, M] and extras["y"] [n]; a batch's y are rows of them."""

    weighted = False

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        heads: Any = model.head
        logs, labels = heads.each(model.features(batch.x)), extras["y"][batch.y]
        losses = F.nll_loss(logs.transpose(1, 2), labels[:, None].expand(logs.shape[:2]), reduction="none")
        value: Tensor = ((extras["q"][batch.y] * losses).sum(1) * batch.mask).sum() / batch.mask.sum()
        unused: Tensor = 0 * heads.log_proportions.sum()  # gives a gradient of zero instead of none
        return value + unused


class FedEM(FedAvg):
    """p_k(y | x) = sum_m pi_km p(y | x, theta_m), by EM.

    Once a round q_im is proportional to pi_km exp(-loss(theta_m; x_i, y_i)), Eq. (12), and pi_km = mean_i q_im,
    Eq. (13); then local steps on sum_m mean_i q_im loss(theta_m; x_i, y_i), Eq. (14). The server averages each
    component, weighted by samples.

    components: M; 1 is FedAvg. A client that never trained finds its proportions by `unseen_steps` steps of (12) and
    (13) with the common components. weights, aggregate: as in FedAvg.
    """

    name = "fedem"
    title = "FedEM"
    paper = "Marfoq et al., NeurIPS 2021"
    kind = "personalised"
    travels = "M whole models, down and up"
    needs_classes = True
    weighs_classes = False

    components: int = Field(3, ge=1, json_schema_extra=one_of(1, 2, 3, 4, 6))
    unseen_steps: int = Field(20, ge=1)

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Return M copies of the net: the first with its initial values, the others initialised again."""
        parts = [net.module]
        for number in range(1, self.components):
            part = copy.deepcopy(net.module)
            part.load_state_dict(redrawn(net, key + number), strict=False)
            parts.append(part)
        bodies, heads = Bodies([part.body for part in parts]), Heads([part.head for part in parts])
        return Net(bodies, heads, net.dtype, precision=net.precision)

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Do the E-step, update the proportions, and train all components."""
        logs = yield from self.logs(client, message.params)
        before = client.state.get("log_proportions", message.params[_PROPORTIONS])
        q = (before + logs).softmax(1)
        client.state["log_proportions"] = _log_mean(q)
        samples = client.train.own()
        places = replace(samples, y=torch.arange(len(samples)))
        extras = {"q": q, "y": samples.labels()}
        fitted = yield from Fit(message.params, Responsible(), extras=extras, data=places)
        return Message(params=fitted.params, n=client.size)

    def logs(self, client: ClientView, params: Params) -> ClientFlow[Tensor]:
        """log p(y_i | x_i, theta_m) of the client's samples, [n, M]."""
        each = yield from Infer(params, component_logs)
        labels = client.train.labels()
        return each.gather(2, labels[:, None, None].expand(len(labels), each.shape[1], 1))[:, :, 0]

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        """Return the common components with the client's proportions; find these if it never trained."""
        if "log_proportions" in client.state:
            return {**message.params, _PROPORTIONS: client.state["log_proportions"]}
        if not client.size:
            return message.params
        logs = yield from self.logs(client, message.params)
        log_proportions = torch.zeros_like(logs[0])
        for _ in range(self.unseen_steps):
            log_proportions = _log_mean((log_proportions + logs).softmax(1))
        return {**message.params, _PROPORTIONS: log_proportions}


def component_logs(model: BodyHead, batch: Batch) -> Tensor:
    """The log probabilities of each component, [batch, M, classes]."""
    heads: Any = model.head
    logs: Tensor = heads.each(model.features(batch.x))
    return logs


def _log_mean(q: Tensor) -> Tensor:
    """The log of mean responsibilities [n, M], finite even for a component without samples."""
    return q.mean(0).clamp_min(1e-12).log()
