"""The choice of the executor of a run."""

from __future__ import annotations

import torch

from fedkin.engines.executors.auto import Auto, cores
from fedkin.engines.executors.jobs import Executor, Modules, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.engines.executors.workers import Workers
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError
from fedkin.learning.devices import CPU

__all__ = ["make_executor"]


def make_executor(setup: Setup, device: torch.device) -> Executor:
    """Return the executor for the mode of a setup."""
    how = setup.engine
    net, federation, workers = setup.net, setup.federation, how.workers or cores()
    if how.mode == "workers":
        if device != CPU:
            raise ConfigError(
                f"run.mode: 'workers' are processes on the processor's cores, but run.device is {how.device!r}; "
                "set run.mode = 'stacked', or 'auto'"
            )
        return Workers(net, federation, workers)
    if how.mode == "stacked":
        return Stacked(net, federation, Modules(device))
    if how.mode == "auto":
        return Auto(net, federation, workers, device)
    return OneByOne(net, federation, Modules(device))
