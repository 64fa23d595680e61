"""The second message of a client: its samples in 2 KB, and what privacy noise does to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels
from fedkin.graph.same._pack import Arrays, pack, unpack
from fedkin.graph.same.moments import Moments, pool

__all__ = ["Cells", "Signature"]

BLOCKS = ("x", "xy", "y")
_FLAGS = {
    1: "neighbours in stored order are alike (repeats, a time series, or samples sorted by something)",
    2: "samples occur more than once",
}


@dataclass(frozen=True, eq=False)
class Cells:
    """Means of one client's classes in a few random projections.

    classes [q], counts [q], means [q, P]. scatter, dof [q]: sum of squares about each mean, and its degrees of
    freedom. traces [3]: of the covariance within classes, or NaN; free: behind them. effect, noise: as in Moments.

    >>> import numpy as np
    >>> one = Cells(np.array([3]), np.array([9.0]), np.zeros((1, 2)), np.ones(1), np.full(1, 8.0), np.ones(3), 8.0)
    >>> one.merge(one).counts
    array([18.])
    """

    classes: Labels
    counts: Array
    means: Array
    scatter: Array
    dof: Array
    traces: Array
    free: float
    effect: float = 1.0
    noise: float = 0.0

    def merge(self, other: Cells) -> Cells:
        """Of both clients' samples, if a class has one mean at both."""
        return Cells.total([self, other])

    @classmethod
    def total(cls, parts: Sequence[Cells]) -> Cells:
        """Of all clients' samples, if a class has one mean at all; noise is that of the average cell."""
        classes, at = np.unique(np.concatenate([one.classes for one in parts]), return_inverse=True)
        of = np.repeat(np.arange(len(parts)), [len(one.classes) for one in parts])
        counts, scatter, dof = (
            np.concatenate([getattr(one, k) for one in parts]) for k in ("counts", "scatter", "dof")
        )
        weight = counts / np.array([one.effect for one in parts])[of]
        sums = np.zeros((len(classes), parts[0].means.shape[1]))
        np.add.at(sums, at, weight[:, None] * np.concatenate([one.means for one in parts]))
        free = np.array([one.free for one in parts])
        traces, total = pool(np.stack([one.traces for one in parts]), np.repeat(free[:, None], 3, axis=1))
        if not len(classes):
            return parts[0]
        stated = weight**2 * np.array([one.noise for one in parts])[of]
        weights, squares, counts, scatter, dof = (
            np.bincount(at, v).astype(np.float64) for v in (weight, stated, counts, scatter, dof)
        )  # fmt: skip
        effect, noise = float(counts.sum() / weights.sum()), float((squares / weights).sum() / weights.sum())
        return cls(
            classes, counts, sums / weights[:, None], scatter, dof, traces, float(total[0]), effect, noise,
        )  # fmt: skip

    def noised(self, sigma: float, rng: np.random.Generator) -> Cells:
        """With normal noise of deviation `sigma` on each entry of the means, and its variance stated."""
        if not sigma or not len(self.classes):
            return self
        noisy = self.means + sigma * rng.standard_normal(self.means.shape)
        return replace(self, means=noisy, noise=self.noise + sigma**2)

    def to_arrays(self, dtype: Any = np.float16) -> Arrays:
        """means as `dtype`, all else as float32 and int32."""
        kind = np.float32 if np.abs(self.means).max(initial=0) > 6e4 else dtype
        numbers = np.array([self.effect, self.noise, self.free, *self.traces], dtype=np.float32)
        rest = {name: getattr(self, name).astype(np.float32) for name in ("counts", "scatter", "dof")}
        whole = self.classes.astype(np.int32)
        return {"classes": whole, "means": self.means.astype(kind), "numbers": numbers} | rest

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Cells:
        """What `to_arrays` wrote."""
        names = ("counts", "means", "scatter", "dof", "numbers")
        try:
            counts, means, scatter, dof, numbers = (np.asarray(arrays[k], dtype=np.float64) for k in names)
            classes = np.asarray(arrays["classes"]).astype(np.int64)
            fits = means.ndim == 2 and len(classes) == len(counts) == len(means) == len(scatter) == len(dof)
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits or numbers.shape != (6,):
            raise GraphError(f"cells: expected arrays classes, {', '.join(names)}, as Cells.to_arrays gives")
        effect, noise, free = (float(v) for v in numbers[:3])
        return cls(classes, counts, means, scatter, dof, numbers[3:], free, effect, noise)


@dataclass(frozen=True, eq=False)
class Signature:
    """What one client sends: moments of its blocks of features, and means of its classes.

    n: samples. blocks: "x" (inputs), "xy" (how inputs go with targets), "y" (targets); only "x" without
    targets. plan: the `Plan.key` that it was made with. flags: bits of what was odd, in words in `warnings`.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Signature, Spread, sign
    >>> x = np.random.default_rng(0).normal(size=(60, 5))
    >>> plan = Plan.of([Spread.of(x)])
    >>> one = sign(plan, x)
    >>> list(one.blocks), Signature.from_bytes(one.to_bytes()).n, len(one.to_bytes()) < 1024
    (['x'], 60, True)
    """

    n: int
    blocks: Mapping[str, Moments]
    cells: Cells | None = None
    plan: int = 0
    flags: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the samples, in words."""
        return tuple(text for bit, text in _FLAGS.items() if self.flags & bit)

    @property
    def effect(self) -> float:
        """Samples per effective, independent sample; 1 if they are independent."""
        return max((m.effect for m in self.blocks.values()), default=1.0)

    def merge(self, other: Signature) -> Signature:
        """Of both clients' samples, if both are of one distribution."""
        return Signature.total([self, other])

    @classmethod
    def total(cls, parts: Sequence[Signature]) -> Signature:
        """Of all clients' samples, if all are of one distribution."""
        first = parts[0]
        if any(one.plan != first.plan or set(one.blocks) != set(first.blocks) for one in parts):
            raise GraphError("signatures of two plans cannot be merged; sign again with one plan")
        blocks = {name: Moments.total([one.blocks[name] for one in parts]) for name in first.blocks}
        cells = [one.cells for one in parts if one.cells is not None]
        flags = int(np.bitwise_or.reduce([one.flags for one in parts]))
        merged = Cells.total(cells) if len(cells) == len(parts) else None
        return cls(sum(one.n for one in parts), blocks, merged, first.plan, flags)

    def noised(self, sigma: float, rng: np.random.Generator) -> Signature:
        """With normal noise of deviation `sigma` on every mean that is sent; tests account for it.

        Counts, traces and scatter stay as they are: whoever needs them private must add noise to them too,
        which no test knows of.
        """
        blocks = {name: m.noised(sigma, rng) for name, m in self.blocks.items()}
        return replace(self, blocks=blocks, cells=None if self.cells is None else self.cells.noised(sigma, rng))

    def to_arrays(self, dtype: Any = np.float16) -> Arrays:
        """A flat dict of arrays, "x.mean" and so on, for a message; means as `dtype`."""
        found = {"head": np.array([self.n, self.plan, self.flags], dtype=np.int64)}
        for name, moments in self.blocks.items():
            found |= {f"{name}.{key}": value for key, value in moments.to_arrays(dtype).items()}
        if self.cells is not None:
            found |= {f"cells.{key}": value for key, value in self.cells.to_arrays(dtype).items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Signature:
        """What `to_arrays` wrote."""
        parts: dict[str, dict[str, Any]] = {}
        for key, value in arrays.items():
            part, _, rest = key.partition(".")
            parts.setdefault(part, {})[rest] = value
        try:
            n, plan, flags = (int(v) for v in np.asarray(arrays["head"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise GraphError("signature: expected an array 'head' of three numbers; sign again") from None
        blocks = {name: Moments.from_arrays(parts[name]) for name in BLOCKS if name in parts}
        return cls(n, blocks, Cells.from_arrays(parts["cells"]) if "cells" in parts else None, plan, flags)

    def to_bytes(self, dtype: Any = np.float16) -> bytes:
        """`to_arrays` in one piece."""
        return pack(self.to_arrays(dtype))

    @classmethod
    def from_bytes(cls, data: bytes) -> Signature:
        """What `to_bytes` wrote."""
        return cls.from_arrays(unpack(data))
