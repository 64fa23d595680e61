"""The Ray engine: simulations larger than one machine. Actors hold shards of the clients; methods do not know."""

from __future__ import annotations

from typing import ClassVar

from fedkin.engines.executors.ray import Shards
from fedkin.engines.local import LocalEngine
from fedkin.errors import ConfigError

__all__ = ["RayEngine"]


class RayEngine(LocalEngine):
    """The local engine with its clients' work and samples on a Ray cluster (or on this machine, if there is none).

    It joins the cluster that RAY_ADDRESS names. `run.workers` actors are started, one per core of the cluster
    if that is 0. States and the server stay in this process and its checkpoints; results are those of the local
    engine, bit for bit.
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
