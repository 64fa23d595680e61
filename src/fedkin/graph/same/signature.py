"""The second message of a client: its samples in 2 KB, and what privacy noise does to it."""

from __future__ import annotations

from collections.abc import Mapping
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
        classes = np.union1d(self.classes, other.classes)
        width = max(self.means.shape[1], other.means.shape[1])
        weights, squares = np.zeros(len(classes)), np.zeros(len(classes))
        counts, scatter, dof = np.zeros(len(classes)), np.zeros(len(classes)), np.zeros(len(classes))
        means = np.zeros((len(classes), width))
        for one in (self, other):
            at = np.searchsorted(classes, one.classes)
            w = one.counts / one.effect
            weights[at] += w
            squares[at] += w**2 * one.noise
            counts[at] += one.counts
            means[at] += w[:, None] * one.means
            scatter[at] += one.scatter
            dof[at] += one.dof
        traces, free = pool(np.stack([self.traces, other.traces]), np.array([[self.free] * 3, [other.free] * 3]))
        have = max(float(weights.sum()), 1e-300)
        return Cells(
            classes, counts, means / np.maximum(weights, 1e-300)[:, None], scatter, dof,
            traces, float(free[0]), float(counts.sum()) / have if len(classes) else 1.0,
            float((squares / np.maximum(weights, 1e-300)).sum() / have),
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
        if self.plan != other.plan or set(self.blocks) != set(other.blocks):
            raise GraphError("signatures of two plans cannot be merged; sign again with one plan")
        cells = None
        if self.cells is not None and other.cells is not None:
            cells = self.cells.merge(other.cells)
        blocks = {name: m.merge(other.blocks[name]) for name, m in self.blocks.items()}
        return Signature(self.n + other.n, blocks, cells, self.plan, self.flags | other.flags)

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
        except (KeyError, TypeError, ValueError):
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
