"""Which classes a client has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.views import ClientView

__all__ = ["owned_classes"]


def owned_classes(client: ClientView[Any]) -> Tensor:
    """Whether the client has training samples of each class, bool [K]."""
    return torch.bincount(client.train.labels(), minlength=client.task.classes) > 0
