"""The Ray engine, for simulations on several machines; actors hold shards of the clients, and methods stay the same."""

from __future__ import annotations

from typing import ClassVar

from fedkin.engines.executors.ray import Shards
from fedkin.engines.local import LocalEngine
from fedkin.errors import ConfigError

__all__ = ["RayEngine"]


class RayEngine(LocalEngine):
    """The local engine with its clients' work and samples on a Ray cluster (or on this machine, if there is none).

    It joins the cluster at RAY_ADDRESS, and starts `run.workers` actors (0: one per core of the cluster). States and
    the server stay in this process and its checkpoints. The results equal those of the local engine bit for bit.
    """

    name: ClassVar[str] = "ray"

    def make_executor(self) -> Shards:
        device = self.setup.engine.device
        if device != "cpu":
            raise ConfigError(
                f"run.device: {device!r}, but the actors of run.engine = 'ray' work on processors; "
                "set run.device = 'cpu', or run.engine = 'local'"
            )
        return Shards(self.setup.net, self.setup.federation, self.setup.engine.workers)
