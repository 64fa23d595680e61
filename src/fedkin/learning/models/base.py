"""What every named net states."""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from fedkin.federation import Task
from fedkin.settings import Settings

__all__ = ["Model"]


class Model(Settings):
    """Settings of a net; `name` tells which."""

    name: str

    @abstractmethod
    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """(body, head) for the task; raises ConfigError when its inputs do not fit."""
