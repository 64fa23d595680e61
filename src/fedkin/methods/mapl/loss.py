"""MAPL's local objective (PML, Algorithm 1): two views, cross-entropy, and three contrastive terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.federation.inputs import joined
from fedkin.learning.augment import Augment
from fedkin.learning.contrastive import Form, prototype_loss, supervised_contrastive, uniformity_loss
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead

__all__ = ["TwoViews"]


@dataclass(frozen=True)
class TwoViews:
    """ce * l_ce + cont * l_cont + proto * l_proto + uni * l_uni over two random views of each sample (Eq. 2-5).

    The model has a module `projection` and parameters "prototypes.weight" [K, d]. A term of weight 0 is left out.
    """

    augment: Augment
    ce: float
    cont: float
    proto: float
    uni: float
    temperature: float
    spread: float
    form: Form

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        # Line 2: two views of each sample. Lines 3 and 4: their features z and projections p.
        twice = Batch(
            self.augment(joined([batch.x, batch.x])),
            torch.cat([batch.y, batch.y]), torch.cat([batch.mask, batch.mask]), batch.whole,
        )  # fmt: skip
        z = model.features(twice.x)
        xi = model.params["prototypes.weight"]
        # Lines 5 and 6: the local loss l_ce + l_cont, Eq. 3. Line 8: the regulariser l_proto + l_uni, Eq. 4.
        value = self.ce * masked_mean(F.cross_entropy(model.head(z), twice.y, reduction="none"), twice)
        if self.cont or self.proto:
            p = cast(Any, model).projection(z, twice.mask)
            if self.cont:
                value = value + self.cont * supervised_contrastive(p, twice.y, twice.mask, self.temperature, self.form)
            if self.proto:
                value = value + self.proto * prototype_loss(p, twice.y, twice.mask, xi, self.temperature, self.form)
        if self.uni:
            value = value + self.uni * uniformity_loss(xi, self.spread, self.form)
        return value
