"""What local work amounted to: samples trained on and run over, and floating-point operations."""

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

_LARGEST = 128  # samples to count on


class Operations:
    """Floating-point operations of a job for each of its samples; a multiply-add counts as two.

    Matrix products and convolutions are counted, as is usual, and element-wise work is not: on one step of training,
    or one pass, of the first job of its kind. A kind is a net with a loss, or with what is inferred.
    """

    def __init__(self, net: Net, federation: Mapping[str, Any]) -> None:
        self.net, self.federation = net, federation
        self.modules = Modules(keep=1)
        # The net is held beside its figure, so that its id cannot come to name another one.
        self.known: dict[tuple[Any, ...], tuple[float, Net]] = {}

    def per_sample(self, job: FitJob | InferJob) -> float:
        """Operations for one sample, in a full batch of at most 128 where they depend on it (contrastive losses)."""
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
        # Whose job came first must not matter: a client with fewer samples gives some of them again.
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
    """Equal for the same loss made anew each round: a function's code, else the type."""
    return what if isinstance(what, str) else getattr(what, "__code__", type(what))


@dataclass(eq=False)
class Work:
    """samples: training samples processed, by client; inferred: samples run over; flops: operations of both."""

    operations: Operations
    samples: dict[str, int] = field(default_factory=dict)
    inferred: int = 0
    flops: float = 0.0

    def totals(self) -> tuple[dict[str, int], int, float]:
        """(samples, inferred, flops), for `reset`."""
        return dict(self.samples), self.inferred, self.flops

    def reset(self, samples: Mapping[str, int] | None = None, inferred: int = 0, flops: float = 0.0) -> None:
        """Begin again, or go back to these totals."""
        self.samples, self.inferred, self.flops = dict(samples or {}), inferred, flops

    def add(self, job: FitJob | InferJob, result: Fitted | Tensor) -> None:
        """Count a job that was done."""
        size = result.samples if isinstance(result, Fitted) else len(result)
        if isinstance(result, Fitted):
            self.samples[job.id] = self.samples.get(job.id, 0) + size
        else:
            self.inferred += size
        self.flops += self.operations.per_sample(job) * size
