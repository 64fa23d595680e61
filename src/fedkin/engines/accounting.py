"""Accounting of a round: its time, its floating-point operations, and the samples processed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedkin.engines.executors.jobs import FitJob, InferJob, Modules, samples_of
from fedkin.errors import MethodError
from fedkin.flow import Fitted
from fedkin.learning.devices import rng_lock
from fedkin.learning.frozen import trunk_of
from fedkin.learning.net import Net
from fedkin.learning.sgd import fit, infer


class Clock:
    """A sum of seconds for each name."""

    def __init__(self, *names: str) -> None:
        self.seconds = dict.fromkeys(names, 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the time spent in this context to `seconds[name]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


_LARGEST = 128  # largest batch on which operations are counted


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A sum of torch's operation counts, like `FlopCounterMode`, but without its import of the compiler (.9 s)."""

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler, and nothing is compiled here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        self.total += 0 if count is None else count(*args, **kwargs, out_val=out)
        return out


@contextmanager
def counting() -> Iterator[_Counter]:
    """Count the operations in this context in `total`; fused layers, which torch cannot count, are decomposed."""
    # All threads share this setting: if two counted at the same time, one would restore it to "off".
    with rng_lock:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with _Counter() as counter:  # type: ignore[no-untyped-call]
                yield counter
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


class Operations:
    """Floating-point operations of a job for each of its samples; a multiply-add is two operations.

    As usual, matrix products and convolutions are counted, and element-wise operations are not. Operations are counted
    in one step of training, or one pass of inference, of the first job of each kind. A kind is a net with a loss, or
    with the output of an inference.
    """

    def __init__(self, net: Net, federation: Mapping[str, Any]) -> None:
        self.net, self.federation = net, federation
        self.modules = Modules(keep=1)
        self.known: dict[tuple[Net, Any, int], float] = {}

    def per_sample(self, job: FitJob | InferJob) -> float:
        """Return the operations per sample in a full batch, of at most 128: contrastive losses depend on its size."""
        net, what, size = job.net or self.net, job.what if isinstance(job, InferJob) else job.loss, 1
        if isinstance(job, FitJob):
            size = _LARGEST if job.training.batch_size == "all" else min(job.training.batch_size, _LARGEST)
        # A loss may be made anew in each round, so its function's code or its type identifies it.
        kind = what if isinstance(what, str) else getattr(what, "__code__", type(what))
        at = net, kind, size
        if at not in self.known:
            self.known[at] = self._counted(job, net, size) / size
        return self.known[at]

    def _counted(self, job: FitJob | InferJob, net: Net, size: int) -> float:
        samples = samples_of(job, self.federation)
        # The result must not depend on the client that comes first: if it has too few samples, some are repeated.
        samples = samples.take(np.arange(size) % len(samples))
        module = self.modules(net)
        if (trunk := trunk_of(module.body)) is not None:
            # The count must not depend on cached features: count as if every step computed them.
            trunk.keep = False
        with counting() as counter:
            if isinstance(job, InferJob):
                infer(net, module, job.params, job.what, samples)
            else:
                once, draw = job.training.with_steps(1, whole=True, augment=None), np.random.default_rng(0)
                with suppress(MethodError):  # a loss that is not finite has its operations too
                    fit(net, module, job.params, job.loss, samples, once, job.extras, job.carry, draw)
        return float(counter.total)


@dataclass(eq=False)
class Work:
    """The work of a round.

    samples: training samples processed, by client. inferred: samples in inference. flops: operations of both.
    """

    samples: dict[str, int] = field(default_factory=dict)
    inferred: int = 0
    flops: float = 0.0

    def add(self, job: FitJob | InferJob, result: Fitted | Tensor, per_sample: float) -> None:
        """Add a finished job. per_sample: its operations per sample."""
        size = result.samples if isinstance(result, Fitted) else len(result)
        if isinstance(result, Fitted):
            self.samples[job.id] = self.samples.get(job.id, 0) + size
        else:
            self.inferred += size
        self.flops += per_sample * size
