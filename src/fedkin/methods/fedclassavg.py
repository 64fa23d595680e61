"""FedClassAvg: heads are averaged and held near their average; bodies learn by supervised contrast of two views.

Jang, Ha, Jung, Yoon. FedClassAvg: local representation learning for personalized federated learning on heterogeneous
neural networks. ICPP 2022. `docs/methods/fedclassavg.md` says where MAPL, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.federation import Federation
from fedkin.federation.inputs import joined
from fedkin.flow import Fit, Params
from fedkin.learning.augment import Augment, StackDraws
from fedkin.learning.contrasted import Unit, contrast_bytes, supervised_slope
from fedkin.learning.contrastive import supervised_contrastive
from fedkin.learning.ends import CrossEntropyEnd, End, Given
from fedkin.learning.layers import Now, Sink
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead
from fedkin.learning.written import LossNotWritten, Program
from fedkin.methods.fedsim import ClientState, FedSim
from fedkin.settings import span
from fedkin.views import ClientView

__all__ = ["ContrastedViews", "FedClassAvg"]


@dataclass(frozen=True)
class ContrastedViews:
    """Cross-entropy of the first view + supervised contrast of both views' features + rho / 2 |h - h_t|^2.

    extras["head"]: h_t, the parameters of the averaged head that training began with.
    """

    random: ClassVar[bool] = True
    written_views: ClassVar[int] = 2

    temperature: float
    rho: float
    augment: Augment

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        z = model.features(joined([self.augment(batch.x), self.augment(batch.x)]))
        entropy = F.cross_entropy(model.head(z[: len(batch.y)]), batch.y, reduction="none")
        contrast = supervised_contrastive(z, batch.y.repeat(2), batch.mask.repeat(2), self.temperature)
        away = sum(
            ((model.params[name] - start).square().sum() for name, start in extras["head"].items()), z.new_zeros(())
        )
        return masked_mean(entropy, batch) + contrast + self.rho / 2 * away

    def written_end(self, given: Given) -> End:
        """The loss written out for a stack."""
        if type(self.augment) is not Augment:
            raise LossNotWritten(f"views of the class {type(self.augment).__name__} are not drawn as fedkin's own")
        return _ViewsEnd(self, given)

    def written_bytes(self, program: Program, rows: int) -> int:
        """The bytes of a client in a stack, beside its net, with so many rows in a batch."""
        return contrast_bytes(rows, program.head.weight.dtype)


class _ViewsEnd(End):
    """The end of a net with the loss `ContrastedViews`; each batch has its samples twice."""

    def __init__(self, loss: ContrastedViews, given: Given) -> None:
        super().__init__(given)
        self.loss, masks = loss, given.batches.masks
        count = masks.sum(2, keepdim=True) / 2
        first = masks * (torch.arange(masks.shape[2], device=masks.device) < count)
        self.entropy = CrossEntropyEnd(given, first / count.clamp(min=1))
        heads = [member.extras["head"] for member in given.members]
        self.start = {name: torch.stack([head[name] for head in heads]).to(masks) for name in heads[0]}
        if {*self.start} - {*given.head.names}:
            raise LossNotWritten("the start holds more than the head")

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        self.own = {name: stack[name][:active] for name in self.start}

    def seen(self, x: Tensor, now: Now) -> Tensor:
        counts = [count // 2 for count in now.counts]
        width = max(counts)
        rows, draws = x[:, :width].flatten(0, 1), StackDraws(now.generators, counts)
        views = [self.loss.augment(rows, draws) for _ in range(2)]
        if views[0] is rows:
            return x
        one, other = (view.view(-1, width, *x.shape[2:]) for view in views)
        for own, count, first, second in zip(x, counts, one, other, strict=True):
            own[:count], own[count : 2 * count] = first[:count], second[:count]
        return x

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        active, width = z.shape[:2]
        away = {name: t - self.start[name][:active] for name, t in self.own.items()}
        far = torch.stack([t.flatten(1).square().sum(1) for t in away.values()]).sum(0)
        below = self.entropy.slope(step, z, x, now, sink, needed)
        for name, t in away.items():
            sink.more(name, self.own[name], t.mul_(self.loss.rho))
        y, mask = (t[:active, step, :width] for t in (self.batches.labels, self.batches.masks))
        unit = Unit(z)
        values, slope = supervised_slope(unit.rows, y, mask, self.loss.temperature, "paper")
        self.totals[:active] += (values + self.loss.rho / 2 * far).double()
        return below + unit.back(slope) if needed else below

    def finish(self) -> None:
        self.entropy.finish()


class FedClassAvg(FedSim):
    """FedSim with another local loss; clients predict with the heads that they trained last. States are FedSim's.

    rho: weight of the pull to the averaged head; temperature: of the supervised contrast; augment: the views.
    """

    name: ClassVar[str] = "fedclassavg"
    title: ClassVar[str] = "FedClassAvg"
    paper: ClassVar[str] = "Jang et al., ICPP 2022"
    needs_classes: ClassVar[bool] = True
    weighs_classes: ClassVar[bool] = False

    rho: float = Field(0.1, ge=0, json_schema_extra=span(1e-4, 1))
    temperature: float = Field(0.1, gt=0)
    predict: Literal["shared", "own"] = "own"
    augment: Augment = Augment()

    def check(self, federation: Federation) -> None:
        self.augment.check(federation.task)

    def fit(self, client: ClientView[ClientState], params: Params) -> Fit:
        head = {name: params[name] for name in client.net.trainable if name.startswith("head.")}
        return Fit(params, ContrastedViews(self.temperature, self.rho, self.augment), extras={"head": head})
