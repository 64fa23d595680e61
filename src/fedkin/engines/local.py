"""The local engine, with the whole federation in this process."""

from __future__ import annotations

import os
from typing import ClassVar

from fedkin.engines.executors.jobs import Executor, Modules, OneByOne
from fedkin.engines.executors.stacked import Fast
from fedkin.engines.executors.workers import Workers
from fedkin.engines.local_site import LocalSite
from fedkin.engines.privacy import keyed
from fedkin.engines.simulation import Simulation
from fedkin.engines.states import States
from fedkin.learning.devices import opened

__all__ = ["LocalEngine"]


class LocalEngine(Simulation):
    """The engine whose clients run in this process, in the order of their ids, each with its own samples and state."""

    name: ClassVar[str] = "local"

    def make_site(self) -> LocalSite:
        setup = self.setup
        return LocalSite(
            setup.plan, setup.federation, self.make_executor(), States(), self.clock, self.adversaries,
            noise=keyed(setup.seed),
        )  # fmt: skip

    def make_executor(self) -> Executor:
        """Return the executor of local work."""
        how, net, federation = self.setup.engine, self.setup.net, self.setup.federation
        if how.mode == "workers":
            return Workers(net, federation, how.workers or cores())
        kind = Fast if how.mode == "fast" else OneByOne
        return kind(net, federation, Modules(opened(how.device)))


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
