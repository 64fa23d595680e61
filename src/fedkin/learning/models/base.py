"""The base class of named nets."""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from fedkin.federation import Task
from fedkin.settings import Settings

__all__ = ["Model"]


class Model(Settings):
    """Settings of a net, which `name` identifies."""

    name: str

    @abstractmethod
    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) for the task; raises ConfigError if the net cannot take its inputs."""
