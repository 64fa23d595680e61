"""Contrastive losses: between samples, between samples and class prototypes, and between prototypes.

Equations are those of MAPL. `form="released"` is what MAPL's released code computes, where that differs. They are used
with random views, which are not stacked, so that a batch has no padding.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Form = Literal["paper", "released"]


def supervised_contrastive(p: Tensor, y: Tensor, temperature: float = 0.1, form: Form = "paper") -> Tensor:
    """Bring samples of a class together, and others apart: p [n, d] (of any norm), y [n].

    Let l_qr = log softmax over r != q of cos(p_q, p_r) / temperature (Khosla et al. 2020; MAPL, l_cont). The loss is
    the mean over q of minus the mean of l_qr over the other samples r of q's class; with "released" it is the mean over
    q of minus the log of the sum of exp(l_qr) over these r. Samples that are alone in their class are left out.
    """
    unit = F.normalize(p, dim=1)
    pair = ~torch.eye(len(p), dtype=torch.bool, device=p.device)
    least = torch.finfo(p.dtype).min
    logits = (unit @ unit.T / temperature).masked_fill(~pair, least)
    log_share = logits - logits.logsumexp(1, keepdim=True)
    positive = pair & (y[:, None] == y[None, :])
    count = positive.sum(1)
    if form == "released":
        gain = log_share.masked_fill(~positive, least).logsumexp(1)
    else:
        gain = torch.where(positive, log_share, 0.0).sum(1) / count.clamp(min=1)
    anchor = (count > 0).to(p.dtype)
    return -torch.where(count > 0, gain, 0.0).sum() / anchor.sum().clamp(min=1)


def prototype_loss(
    p: Tensor, y: Tensor, prototypes: Tensor, temperature: float = 0.1, form: Form = "paper"
) -> Tensor:  # fmt: skip
    """Bring each sample to its class prototype: p [n, d], y [n], prototypes [K, d] (MAPL, l_proto).

    The loss is the cross-entropy of cos(p_q, xi_k) / temperature; with "released" of <p_q / |p_q|, xi_k>, without a
    temperature.
    """
    unit = F.normalize(p, dim=1)
    logits = unit @ prototypes.T if form == "released" else unit @ F.normalize(prototypes, dim=1).T / temperature
    return F.cross_entropy(logits, y, reduction="none").sum() / len(y)


def uniformity_loss(prototypes: Tensor, temperature: float = 0.1, form: Form = "paper") -> Tensor:
    """Keep prototypes [K, d] apart: the mean over k of the sum over r != k of cos(xi_k, xi_r) (MAPL, Eq. 5).

    With "released" it is the mean of the sums of exp(<xi_k, xi_r> / temperature).
    """
    itself = torch.eye(len(prototypes), dtype=torch.bool, device=prototypes.device)
    if form == "released":
        # Mask the diagonal before the exponential, which may be infinite there; its gradient would be NaN.
        return (prototypes @ prototypes.T / temperature).masked_fill(itself, -torch.inf).exp().sum() / len(prototypes)
    unit = F.normalize(prototypes, dim=1)
    return (unit @ unit.T).masked_fill(itself, 0.0).sum() / len(prototypes)


class Projection(nn.Module):
    """Linear, batch normalisation, ReLU, Linear: from features [n, d] to projections [n, out].

    It is used in training only, so it always normalises by the statistics of the batch, and has no running statistics.
    """

    def __init__(self, features: int, hidden: int, out: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(features, hidden), nn.Linear(hidden, out)
        self.scale, self.shift = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))

    def forward(self, z: Tensor) -> Tensor:
        """Return projections [n, out]."""
        h, share = self.into(z), 1 / len(z)
        centred = h - (share * h).sum(0)
        normal = centred * torch.rsqrt((share * centred.square()).sum(0) + 1e-5)
        projected: Tensor = self.out(F.relu(normal * self.scale + self.shift))
        return projected


def prototypes(classes: int, width: int) -> nn.Linear:
    """Return learnable class prototypes [classes, width]: the weight of a linear layer, with its initialisation."""
    return nn.Linear(width, classes, bias=False)
