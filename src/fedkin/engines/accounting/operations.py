"""The amount of local work: samples in training, samples in inference, and floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedkin.engines.executors.jobs import FitJob, InferJob, Modules, samples_of
from fedkin.flow import Fitted
from fedkin.learning.losses import Batch
from fedkin.learning.net import Net
from fedkin.learning.sgd import arranged, infer, load

__all__ = ["Operations", "Work"]

_LARGEST = 128  # largest batch on which operations are counted


class Operations:
    """Floating-point operations of a job for each of its samples; a multiply-add is two operations.

    As usual, matrix products and convolutions are counted, and element-wise operations are not. Operations are counted
    in one step of training, or one pass of inference, of the first job of each kind. A kind is a net with a loss, or
    with the output of an inference.
    """

    def __init__(self, net: Net, federation: Mapping[str, Any]) -> None:
        self.net, self.federation = net, federation
        self.modules = Modules(keep=1)
        # The net is stored with its figure, so that no other net can get the same id.
        self.known: dict[tuple[Any, ...], tuple[float, Net]] = {}

    def per_sample(self, job: FitJob | InferJob) -> float:
        """Return the operations per sample, in a full batch of at most 128, on which contrastive losses depend."""
        net = job.net or self.net
        kind = _kind(job.loss if isinstance(job, FitJob) else job.what)
        size = 1
        if isinstance(job, FitJob):
            size = _LARGEST if job.training.batch_size == "all" else min(job.training.batch_size, _LARGEST)
        at = (id(net), kind, size)
        if at not in self.known:
            self.known[at] = self._counted(job, net, size) / size, net
        return self.known[at][0]

    def _counted(self, job: FitJob | InferJob, net: Net, size: int) -> float:
        samples = samples_of(job, self.federation)
        # The result must not depend on the client that comes first: if it has too few samples, some are repeated.
        samples = samples.take(np.arange(size) % len(samples))
        module = self.modules(net)
        with FlopCounterMode(display=False) as counter:
            if isinstance(job, InferJob):
                infer(net, module, job.params, job.what, samples)
            else:
                load(module, job.params)
                module.train()
                batch = Batch(
                    arranged(samples.inputs(slice(None), net.dtype)), samples.labels(slice(None)),
                    torch.ones(size, dtype=net.dtype), True,
                )  # fmt: skip
                with torch.random.fork_rng(devices=[]):
                    result = job.loss(module, batch, job.extras, job.carry)
                    value = result[0] if isinstance(result, tuple) else result
                    value.backward()  # type: ignore[no-untyped-call]
        return float(counter.get_total_flops())


def _kind(what: Any) -> Any:
    """Return a key that is equal for a loss that is made again each round: a function's code, else the type."""
    return what if isinstance(what, str) else getattr(what, "__code__", type(what))


@dataclass(eq=False)
class Work:
    """The work of a round.

    samples: training samples processed, by client. inferred: samples in inference. flops: operations of both.
    """

    operations: Operations
    samples: dict[str, int] = field(default_factory=dict)
    inferred: int = 0
    flops: float = 0.0

    def totals(self) -> tuple[dict[str, int], int, float]:
        """Return (samples, inferred, flops), for `reset`."""
        return dict(self.samples), self.inferred, self.flops

    def reset(self, samples: Mapping[str, int] | None = None, inferred: int = 0, flops: float = 0.0) -> None:
        """Start at zero, or go back to these totals."""
        self.samples, self.inferred, self.flops = dict(samples or {}), inferred, flops

    def add(self, job: FitJob | InferJob, result: Fitted | Tensor) -> None:
        """Add a job that was done."""
        size = result.samples if isinstance(result, Fitted) else len(result)
        if isinstance(result, Fitted):
            self.samples[job.id] = self.samples.get(job.id, 0) + size
        else:
            self.inferred += size
        self.flops += self.operations.per_sample(job) * size
