"""SFMTL-Graph's means inside communities: of anchors, and of bodies where they are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.flow import Message, Params
from fedkin.learning.aggregate import weighted_mean

__all__ = ["community_anchors", "community_bodies"]

Labels = npt.NDArray[np.int64]


def community_anchors(replies: Sequence[Message], labels: Labels, classes: int) -> list[Tensor]:
    """For each client, the n_k-weighted mean anchor of its owned classes over its community, Eq. (14).

    A class is averaged over the members that own it.
    """
    width = replies[0]["anchors"].shape[1]
    new: list[Tensor] = [reply["anchors"] for reply in replies]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        total = torch.zeros(classes, width, dtype=torch.float64)
        count = torch.zeros(classes, 1, dtype=torch.float64)
        for k in members:
            total[replies[k]["classes"]] += replies[k]["n"] * replies[k]["anchors"].double()
            count[replies[k]["classes"]] += replies[k]["n"]
        for k in members:
            rows = replies[k]["classes"]
            new[k] = (total[rows] / count[rows]).to(replies[k]["anchors"].dtype)
    return new


def community_bodies(replies: Mapping[str, Message], labels: Labels) -> list[Params]:
    """For each client, the n_k-weighted mean body of its community, as Eq. (14) for anchors; ours.

    labels: community of each client [n], in the order of `replies`. A client alone has its own body, bit for bit.
    """
    members: dict[int, list[str]] = {}
    for id, label in zip(replies, labels.tolist(), strict=True):
        members.setdefault(label, []).append(id)
    means = {
        label: weighted_mean({id: replies[id]["body"] for id in ids}, {id: float(replies[id]["n"]) for id in ids})
        for label, ids in members.items()
    }
    return [means[label] for label in labels.tolist()]
