"""FedRep: the body is shared; a client first trains its own head, then the body.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated learning. ICML
2021. `docs/methods/fedrep.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from fedkin.codec import Tree
from fedkin.flow import ClientFlow, Fit, Params
from fedkin.learning.losses import Batch, masked_mean, per_sample
from fedkin.learning.net import BodyHead, body_of, head_of
from fedkin.methods.fedper import FedPer
from fedkin.tasks import Task
from fedkin.views import ClientView


@dataclass(frozen=True)
class OnePart:
    """The task's loss with gradients for one part only: the "body" or the "head"."""

    task: Task
    part: Literal["body", "head"]
    weighted = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        features = model.features(batch.x)
        if self.part == "head":
            outputs = model.head(features.detach())
        else:
            fixed = {name: p.detach() for name, p in model.head.named_parameters()}
            outputs = functional_call(model.head, fixed, (features,))
        return masked_mean(per_sample(self.task)(outputs, batch.y), batch)


class FedRep(FedPer):
    """v_k <- tau steps on f_k(u, .), then u_k <- steps on f_k(., v_k); u <- sum_k n_k u_k / n, Algorithm 1.

    body_share: share of the R local steps (or epochs) that train the body, at least one. The other steps, at least one,
    come first and train the head. Buffers of the body change only in the steps of the body.
    """

    name = "fedrep"
    title = "FedRep"
    paper = "Collins et al., ICML 2021"
    fits = 2

    body_share: float = Field(0.2, gt=0, lt=1)

    def trained(self, client: ClientView, params: Params) -> ClientFlow[Params]:
        """Train the head, then the body."""
        training = client.training
        body = max(1, round(self.body_share * training.local))
        head = max(1, training.local - body)
        unit = "local_steps" if training.local_steps else "local_epochs"

        fitted = yield from Fit(params, OnePart(client.task, "head"), training=training.model_copy(update={unit: head}))
        params = {**params, **head_of(fitted.params)}
        if all(name.startswith("head.") for name in client.net.trainable):
            return params  # the body is frozen
        fitted = yield from Fit(params, OnePart(client.task, "body"), training=training.model_copy(update={unit: body}))
        return {**params, **body_of(fitted.params)}
