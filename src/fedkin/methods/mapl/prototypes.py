"""The mean of class prototypes over MAPL's peers, which trusts in the owners of a class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["mixed_prototypes"]


def mixed_prototypes(
    own: str, sets: Mapping[str, Tensor], owned: Mapping[str, Tensor], weights: Mapping[str, float], absent: float = 0.0
) -> Tensor:
    """Prototypes [K, d] of peer `own` after the exchange (Algorithm 3, line 8, with trust in the owners of a class).

    xi^k <- sum_j w_j t_j^k xi_j^k / sum_j w_j t_j^k, with t_j^k = 1 if peer j has samples of class k, else `absent`.
    A class that no peer with a weight owns keeps the prototype of `own`.
    sets: prototypes [K, d] by peer; owned: bool [K] by peer; weights: row w of `own`, over peers in both.
    absent: in [0, 1]; 1 is the paper's weighted sum, for classes that somebody owns.

    >>> sets = {"a": torch.tensor([[0.0], [0.0]]), "b": torch.tensor([[2.0], [2.0]])}
    >>> owned = {"a": torch.tensor([True, False]), "b": torch.tensor([True, False])}
    >>> mixed_prototypes("a", sets, owned, {"a": 0.5, "b": 0.5})
    tensor([[1.],
            [0.]])
    """
    ids = sorted(weights)
    w = torch.tensor([weights[id] for id in ids], dtype=torch.float64)
    has = torch.stack([owned[id] for id in ids]).double()
    share = w[:, None] * (has + absent * (1 - has))
    total = share.sum(0)
    share = share / torch.where(total > 0, total, 1.0)
    mean = torch.einsum("jk,jkd->kd", share, torch.stack([sets[id] for id in ids]).double())
    known = (w[:, None] * has).sum(0) > 0
    return torch.where(known[:, None], mean.to(sets[own].dtype), sets[own])
