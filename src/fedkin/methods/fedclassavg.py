"""FedClassAvg: heads are averaged and held near their average; bodies learn by a contrastive loss of two views.

Jang, Ha, Jung, Yoon. FedClassAvg: local representation learning for personalized federated learning on heterogeneous
neural networks. ICPP 2022. `docs/methods/fedclassavg.md` says where MAPL, released code and this file differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.federation import AnyRoster
from fedkin.federation.inputs import concatenated
from fedkin.flow import ClientFlow, Fit, Params
from fedkin.learning.augment import Augment
from fedkin.learning.contrastive import supervised_contrastive
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead
from fedkin.methods.fedsim import FedSim
from fedkin.settings import span
from fedkin.views import ClientView


@dataclass(frozen=True)
class ContrastedViews:
    """Cross-entropy of the first view + supervised contrastive loss of both views' features + rho / 2 |h - h_t|^2.

    extras["head"]: h_t, the parameters of the averaged head that training began with.
    """

    temperature: float
    rho: float
    augment: Augment

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        z = model.features(concatenated([self.augment(batch.x), self.augment(batch.x)]))
        entropy = F.cross_entropy(model.head(z[: len(batch.y)]), batch.y, reduction="none")
        contrast = supervised_contrastive(z, batch.y.repeat(2), self.temperature)
        squares = ((model.params[name] - start).square().sum() for name, start in extras["head"].items())
        away = sum(squares, z.new_zeros(()))
        return masked_mean(entropy, batch) + contrast + self.rho / 2 * away


class FedClassAvg(FedSim):
    """FedSim with another local loss; clients predict with the heads that they trained last.

    rho: weight of the pull to the averaged head. temperature: of the supervised contrastive loss. augment: makes the
    views.
    """

    name = "fedclassavg"
    title = "FedClassAvg"
    paper = "Jang et al., ICPP 2022"
    needs_classes = True
    weighs_classes = False

    rho: float = Field(0.1, ge=0, json_schema_extra=span(1e-4, 1))
    temperature: float = Field(0.1, gt=0)
    predict: Literal["shared", "own"] = "own"
    augment: Augment = Augment()

    def check(self, federation: AnyRoster) -> None:
        self.augment.check(federation.task)

    def trained(self, client: ClientView, params: Params) -> ClientFlow[Params]:
        """Train both parts, with the head pulled to the averaged head."""
        head = {name: params[name] for name in client.net.trainable if name.startswith("head.")}
        loss = ContrastedViews(self.temperature, self.rho, self.augment)
        fitted = yield from Fit(params, loss, extras={"head": head})
        return fitted.params
