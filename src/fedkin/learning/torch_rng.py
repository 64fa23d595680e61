"""torch's global generator, from which one thread of a process draws at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

__all__ = ["alone", "seeded"]

# All threads share the generator: one that seeds it between two draws of another changes what the other draws.
alone = RLock()


@contextmanager
def seeded(key: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Let this thread alone draw, from `key` (None: from where the generator is); afterwards it is as before.

    device: a GPU whose generator is meant too.

    >>> def draw() -> torch.Tensor:
    ...     with seeded(3):
    ...         return torch.rand(2)
    >>> torch.equal(draw(), draw())
    True
    """
    with alone, torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        if key is not None:
            torch.manual_seed(key)
        yield
