"""Frozen first parts of bodies, whose features are computed once for each sample and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from fedkin.federation import Samples
from fedkin.federation.inputs import parts
from fedkin.learning.devices import arranged, autocast

_LOG = logging.getLogger("fedkin")
_PASS = 128  # samples that are read at a time
_LIMIT = 2 << 30  # bytes of kept features in one process, of all modules together


class Frozen(nn.Module):
    """A module [b, ...] -> [b, ...] that never trains: in evaluation mode, without gradients, one sample at a time.

    With one sample at a time, features do not depend on the batch, so that kept and computed features have the same
    bits. If the module is the first part of a body, the features of each sample are kept while the sample's array is
    in use, 4 bytes for each number.

    >>> frozen = Frozen(nn.Linear(3, 2))
    >>> frozen.train()(torch.zeros(4, 3)).shape, any(p.requires_grad for p in frozen.parameters())
    (torch.Size([4, 2]), False)
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.requires_grad_(False).eval()
        self.keep = True  # False: compute whole batches, to count operations
        self.channels_last = False  # until the layout of the net is decided
        self.cache = FeatureCache()
        self.batch: tuple[Any, tuple[int, ...], Tensor] | None = None  # inputs, their versions, cached features

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.net.eval()
        return self

    def forward(self, x: Any) -> Any:
        if self.batch is not None:
            features = self._cached(x)
            if features is not None:
                return features
            self.cache.log_miss()
        x = _float32(x)
        if not self.keep or torch.compiler.is_compiling():
            with torch.no_grad(), autocast(_device(x), on=False):
                return self.net(x)
        return self.computed(x)

    def computed(self, x: Any) -> Tensor:
        """Return the features of a batch, computed one sample at a time."""
        rows = len(pytree.tree_leaves(x)[0])
        with torch.no_grad(), autocast(_device(x), on=False):
            one = [pytree.tree_map(lambda part, row=row: part[row : row + 1], x) for row in range(max(rows, 1))]
            return torch.cat([self.net(arranged(part, self.channels_last)) for part in one])

    def set_batch(self, x: Any, features: Tensor) -> None:
        """Store the features of the batch x, which `forward` will get next."""
        self.batch = x, _versions(x), features

    def _cached(self, x: Any) -> Tensor | None:
        """Return the stored features, if x is the batch of `set_batch`, or several copies of it one after another."""
        assert self.batch is not None
        batch, versions, features = self.batch
        if versions != _versions(batch):
            return None
        if x is batch:
            return features.clone()  # the next layer may change its input in place
        inputs, expected = pytree.tree_leaves(x), pytree.tree_leaves(batch)
        if [(a.shape[1:], a.dtype) for a in inputs] != [(b.shape[1:], b.dtype) for b in expected]:
            return None
        copies = len(inputs[0]) // max(len(expected[0]), 1)
        same = copies and all(torch.equal(a, torch.cat([b] * copies)) for a, b in zip(inputs, expected, strict=True))
        return torch.cat([features] * copies) if same else None


def _float32(x: Any) -> Any:
    """Return inputs in float32: under autocast, layers before this module return bfloat16."""
    if not torch.is_autocast_enabled(_device(x).type):
        return x
    return pytree.tree_map(lambda part: part.float() if part.dtype == torch.bfloat16 else part, x)


def _device(x: Any) -> torch.device:
    device: torch.device = pytree.tree_leaves(x)[0].device
    return device


def _versions(x: Any) -> tuple[int, ...]:
    return tuple(part._version for part in pytree.tree_leaves(x))


@dataclass(eq=False)
class _Entry:
    """Features [N, d] of the rows of arrays; form: how rows become inputs; done [N]: which features are computed."""

    others: tuple[Tensor, ...]
    form: tuple[object, ...]
    features: Tensor
    done: Tensor


class FeatureCache:
    """The features of samples, by the arrays that hold the samples; when an array is freed, its features are too.

    A copy begins empty, since the values of the copied module may change, and so does a pickle, for another process.
    """

    def __init__(self) -> None:
        self.entries: MutableMapping[Tensor, list[_Entry]] = WeakTensorKeyDictionary()
        self.logged: set[str] = set()
        _ALL.add(self)

    def __deepcopy__(self, memo: Mapping[int, object]) -> FeatureCache:
        return FeatureCache()

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[()]]:
        return FeatureCache, ()

    @property
    def nbytes(self) -> int:
        """Bytes of all features that are kept for this module."""
        return sum(entry.features.nbytes for entries in self.entries.values() for entry in entries)

    def of(self, trunk: Frozen, samples: Samples, dtype: torch.dtype) -> Tensor | None:
        """Return the features of these samples; compute missing ones first. None if they would take too much memory."""
        if not len(samples):
            return None
        entry = self._entry_of(trunk, samples, dtype)
        if entry is None:
            return None
        rows = torch.arange(len(samples), device=entry.done.device) if samples.rows is None else samples.rows
        missing = (~entry.done[rows]).nonzero()[:, 0]
        for start in range(0, len(missing), _PASS):
            where = missing[start : start + _PASS]
            entry.features[rows[where]] = trunk.computed(samples.inputs(where, dtype))
        entry.done[rows[missing]] = True
        if len(missing):
            _LOG.info("features of %d samples of a frozen body kept: %.1f MB", len(missing),
                      entry.features[0].nbytes * len(missing) / 1e6)  # fmt: skip
        return entry.features if samples.rows is None else entry.features[rows]

    def _entry_of(self, trunk: Frozen, samples: Samples, dtype: torch.dtype) -> _Entry | None:
        """Return the entry of the arrays that hold these samples; None if there is no room for a new one."""
        first, *others = parts(samples.x).values()
        form = samples.scale, dtype, None if isinstance(samples.x, Tensor) else tuple(samples.x)
        entries = self.entries.setdefault(first, [])
        for entry in entries:
            if entry.form == form and list(map(id, entry.others)) == list(map(id, others)):
                return entry
        z = trunk.computed(samples.inputs(slice(0, 1), dtype))
        size = len(first) * z[0].numel() * z.element_size()
        if sum(cache.nbytes for cache in list(_ALL)) + size > _LIMIT:
            self.log_once(f"{size / 1e6:,.0f} MB of features are not kept, but computed in every step: "
                          f"more than {_LIMIT >> 20} MB would be in memory")  # fmt: skip
            return None
        done = torch.zeros(len(first), dtype=torch.bool, device=first.device)
        entries.append(_Entry(tuple(others), form, z.new_empty(len(first), *z.shape[1:]), done))
        return entries[-1]

    def log_miss(self) -> None:
        """Log that a batch did not equal the samples' inputs."""
        self.log_once(
            "features of the frozen body are computed in every step, not once: the inputs change (random views)"
        )

    def log_once(self, line: str) -> None:
        """Log a line, once."""
        if line not in self.logged:
            self.logged.add(line)
            _LOG.warning("%s", line)


_ALL: WeakSet[FeatureCache] = WeakSet()


def trunk_of(body: nn.Module) -> Frozen | None:
    """Return the frozen part with which this body begins; None if there is none."""
    part: nn.Module | None = body
    while part is not None and not isinstance(part, Frozen):
        part = next(part.children(), None)
    return part


@contextmanager
def cached_features(
    body: nn.Module, samples: Samples, dtype: torch.dtype, changed: bool = False
) -> Iterator[Callable[[Any, Any], None]]:
    """Yield a function (x, rows) that hands the cached features of a batch of these samples, if any, to the body.

    changed: whether batches differ from the samples' inputs, so that cached features cannot be used.
    """
    trunk, features = trunk_of(body), None
    if trunk is not None and trunk.keep:
        if changed:
            trunk.cache.log_miss()
        else:
            features = trunk.cache.of(trunk, samples, dtype)

    def set_batch(x: Any, rows: Any) -> None:
        if trunk is not None and features is not None:
            trunk.set_batch(x, features[rows])

    try:
        yield set_batch
    finally:
        if trunk is not None:
            trunk.batch = None
