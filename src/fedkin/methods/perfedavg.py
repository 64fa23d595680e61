"""Per-FedAvg: one gradient step at a client turns the common model into a good model for it.

Fallah, Mokhtari, Ozdaglar. Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach. NeurIPS 2020. `docs/methods/per-fedavg.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fedkin.codec import Tree
from fedkin.flow import ClientFlow, Fit, Message, Params
from fedkin.learning.losses import Batch, masked_mean, per_sample
from fedkin.learning.net import BodyHead
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.tasks import Task
from fedkin.views import ClientView


@dataclass(frozen=True)
class AfterOneStep:
    """f(w - alpha grad f(w; D1); D2), where D1 has the samples at even places of the batch, D2 the others.

    second_order: also differentiate through the inner gradient; otherwise the gradient is a constant (FO). A batch of
    one sample is both D1 and D2.
    """

    task: Task
    alpha: float
    second_order: bool
    weighted = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        params = model.params
        if self.alpha == 0:
            return self._loss(model, params, batch)
        several = len(batch.y) > 1
        inner, outer = (_rows(batch, slice(0, None, 2)), _rows(batch, slice(1, None, 2))) if several else (batch, batch)
        loss = self._loss(model, params, inner)
        gradients = torch.autograd.grad(loss, list(params.values()), create_graph=self.second_order, allow_unused=True)
        parts = zip(params.items(), gradients, strict=True)
        moved = {name: p if g is None else p - self.alpha * g for (name, p), g in parts}
        return self._loss(model, moved, outer)

    def _loss(self, model: BodyHead, params: dict[str, Tensor], batch: Batch) -> Tensor:
        outputs = functional_call(model, params, (batch.x,))
        return masked_mean(per_sample(self.task)(outputs, batch.y), batch)


def _rows(batch: Batch, rows: slice) -> Batch:
    """Return these rows of a batch."""
    weight = None if batch.weight is None else batch.weight[rows]
    return Batch(pytree.tree_map(lambda x: x[rows], batch.x), batch.y[rows], batch.mask[rows], batch.whole, weight)


class PerFedAvg(FedAvg):
    """min over w of sum_k f_k(w - alpha grad f_k(w)): clients descend it, and the server averages as in FedAvg.

    A client predicts with w after one gradient step of rate alpha on its own training samples.

    alpha: rate of that step; 0 is FedAvg. order: "second" uses the full gradient,
    (I - alpha hessian f(w; D1)) grad f(w - alpha grad f(w; D1); D2), which the paper's HF approximates by differences;
    "first" leaves out the Hessian, FO. weights, aggregate: as in FedAvg.
    """

    name = "per-fedavg"
    title = "Per-FedAvg"
    paper = "Fallah et al., NeurIPS 2020"
    kind = "personalised"

    alpha: float = Field(0.01, ge=0, json_schema_extra=span(1e-3, 0.3))
    order: Literal["first", "second"] = "second"

    def fit(self, client: ClientView, params: Params) -> Fit:
        """Train the common model for use after one gradient step."""
        return Fit(params, AfterOneStep(client.task, self.alpha, self.order == "second"))

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        """w - alpha grad f_k(w), over all training samples of the client."""
        if not self.alpha or not client.size:
            return message.params
        step = client.training.with_steps(1, whole=True, optimiser="sgd", lr=self.alpha, weight_decay=0.0)
        fitted = yield from Fit(message.params, training=step)
        return fitted.params
