"""The signature of a client's samples, by the plan that all clients share (docs/groups.md): a message of 2 KB."""

from __future__ import annotations

import io
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.errors import DataError, GraphError
from fedkin.graph._check import Array, Labels
from fedkin.graph.moments import Arrays, Moments, cross_traces, fields_of, floats_in, half_precision, pool
from fedkin.graph.p_values import null_p
from fedkin.graph.plan import Plan, samples_of, targets_of
from fedkin.keys import rng as keyed
from fedkin.untrusted import error_text

BLOCKS = ("x", "xy", "y")
_FLAGS = {
    1: "neighbours in stored order are similar",
    2: "samples occur more than once",
}


@dataclass(frozen=True, eq=False)
class Cells:
    """Means of one client's classes in a few random projections.

    classes [q], counts [q], means [q, P]. scatter, dof [q]: sum of squares about each mean, and its degrees of freedom.
    traces [3]: of the covariance within classes, or NaN; free: degrees of freedom behind them. effect: as in Moments.

    >>> import numpy as np
    >>> one = Cells(np.array([3]), np.array([9.0]), np.zeros((1, 2)), np.ones(1), np.full(1, 8.0), np.ones(3), 8.0)
    >>> Cells.total([one, one]).counts
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

    @classmethod
    def total(cls, parts: Sequence[Cells]) -> Cells:
        """Return the cells of all clients' samples, if a class has the same mean at all clients."""
        classes, at = np.unique(np.concatenate([part.classes for part in parts]), return_inverse=True)
        of = np.repeat(np.arange(len(parts)), [len(part.classes) for part in parts])
        if not len(classes):
            return parts[0]
        fields = ("counts", "scatter", "dof", "means")
        counts, scatter, dof, means = (np.concatenate([getattr(part, name) for part in parts]) for name in fields)
        effects, free, traces = fields_of(parts, "effect", "free", "traces")
        weight = counts / effects[of]
        sums = np.zeros((len(classes), means.shape[1]))
        np.add.at(sums, at, weight[:, None] * means)
        traces, total = pool(traces, np.repeat(free[:, None], 3, axis=1))
        of_cells = (weight, counts, scatter, dof)
        weights, counts, scatter, dof = (np.bincount(at, values).astype(np.float64) for values in of_cells)
        effect = float(counts.sum() / weights.sum())
        return cls(classes, counts, sums / weights[:, None], scatter, dof, traces, float(total[0]), effect)

    def to_arrays(self) -> Arrays:
        """means in float16 (float32 where that would overflow), all else as float32 and int32."""
        # The second number is 0: no command adds noise to the means of classes.
        numbers = np.array([self.effect, 0.0, self.free, *self.traces], dtype=np.float32)
        arrays = {name: getattr(self, name).astype(np.float32) for name in ("counts", "scatter", "dof")}
        means = half_precision(self.means, np.abs(self.means).max(initial=0))
        return arrays | {"classes": self.classes.astype(np.int32), "means": means, "numbers": numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Cells:
        """Read what `to_arrays` wrote."""
        names = ("classes", "counts", "means", "scatter", "dof", "numbers")
        classes, counts, means, scatter, dof, numbers = floats_in(arrays, "cells", *names)
        lengths = {array.shape for array in (classes, counts, scatter, dof)}
        if means.ndim != 2 or lengths != {means.shape[:1]} or numbers.shape != (6,) or not np.isfinite(classes).all():
            raise GraphError("cells: arrays of unlike lengths; send them again")
        effect, noise, free = (float(v) for v in numbers[:3])
        if noise:
            raise GraphError(f"cells: means of classes with noise of variance {noise:g}; send them without")
        return cls(classes.astype(np.int64), counts, means, scatter, dof, numbers[3:], free, effect)


@dataclass(frozen=True, eq=False)
class Signature:
    """What one client sends: moments of its blocks of features, and means of its classes.

    n: samples. blocks: "x" (inputs), "xy" (how inputs go with targets), "y" (targets); only "x" without
    targets. plan: the `Plan.key` that it was made with. flags: bits of unusual properties; `warnings` has their texts.

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
        """What was unusual about the samples, in words."""
        return tuple(text for bit, text in _FLAGS.items() if self.flags & bit)

    @property
    def effect(self) -> float:
        """Samples per effective, independent sample; 1 if they are independent."""
        return max((m.effect for m in self.blocks.values()), default=1.0)

    @classmethod
    def total(cls, parts: Sequence[Signature]) -> Signature:
        """Return the signature of all clients' samples, if all have one distribution."""
        first = parts[0]
        if len({(part.plan, frozenset(part.blocks)) for part in parts}) > 1:
            raise GraphError("signatures of two plans cannot be merged; sign again with one plan")
        blocks = {name: Moments.total([part.blocks[name] for part in parts]) for name in first.blocks}
        cells = [part.cells for part in parts if part.cells is not None]
        flags = int(np.bitwise_or.reduce([part.flags for part in parts]))
        merged = Cells.total(cells) if len(cells) == len(parts) else None
        return cls(sum(part.n for part in parts), blocks, merged, first.plan, flags)

    def to_arrays(self) -> Arrays:
        """A flat dict of arrays, "x.mean" and so on, for a message."""
        parts: dict[str, Moments | Cells] = dict(self.blocks)
        if self.cells is not None:
            parts["cells"] = self.cells
        arrays = {"head": np.array([self.n, self.plan, self.flags], dtype=np.int64)}
        for name, part in parts.items():
            arrays |= {f"{name}.{key}": value for key, value in part.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Signature:
        """Read what `to_arrays` wrote."""
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

    def to_bytes(self) -> bytes:
        """Pack `to_arrays` into bytes."""
        return pack(self.to_arrays())

    @classmethod
    def from_bytes(cls, data: bytes) -> Signature:
        """Read what `to_bytes` wrote."""
        return cls.from_arrays(unpack(data))


# -- samples in, signature out -----------------------------------------------------------------------------------------


# A class with fewer samples has no useful mean; leaving it out costs nothing.
_FEWEST_OF_CLASS = 3
# With fewer samples of other classes than the most common one, products with a class have too long tails.
_FEWEST_OTHERS = 10
# In deviations within clients.
_FAR = 2.0


def sign(plan: Plan, x: Any, y: Any = None, *, ordered: bool = True) -> Signature:
    """Return the signature of a client's samples x [n, ...] and targets y [n], by a plan that all clients share.

    y: classes as whole numbers if the plan has classes, floats if its target is a number, None if neither.
    ordered: the stored order may carry information, so that samples similar to their neighbours count
    less; False if samples are in a random order or sorted by something.

    block x: mean of cos(Wx + b) sqrt(2 / F), random Fourier features (Rahimi and Recht 2007). block xy: the
    covariance of Vx with a random sign per class (empty if fewer than 10 samples, and less than a quarter, are of other
    classes than the most common one). block y: shares of classes. cells: means of classes.

    >>> import numpy as np
    >>> from fedkin.graph import Spread
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(100, 20)), rng.integers(10, size=100)
    >>> plan = Plan.of([Spread.of(x, y)])
    >>> one = sign(plan, x, y)
    >>> list(one.blocks), one.cells.means.shape, len(one.to_bytes()) < 4096
    (['x', 'xy', 'y'], (10, 32), True)
    """
    x = samples_of(plan, x)
    y = targets_of(plan, y, len(x))
    to_x, to_xy, to_cells, phases = plan.maps
    cosines = (np.cos(x @ to_x + phases) * np.sqrt(2 / plan.features)).astype(np.float64)
    kinds = None if y is None else plan.cell(y)
    effect, flags = _effect(x, cosines, kinds, ordered)
    blocks = {"x": Moments.of(cosines, effect=effect, seed=plan.seed)}
    cells = None
    if y is not None:
        features = (x @ to_xy).astype(np.float64) * np.sqrt(2 / plan.features)
        others = len(y) - np.bincount(y).max(initial=0) if plan.target is None else len(y)
        rare = others < min(_FEWEST_OTHERS, len(y) / 4)
        blocks["xy"] = Moments.empty(to_xy.shape[1]) if rare else _together(features, plan.signs(y), effect, plan)
        blocks["y"] = Moments.of(plan.shares(y), effect=effect, seed=plan.seed)
        cells = _cells((x @ to_cells).astype(np.float64) / np.sqrt(plan.projections), kinds, effect, plan)
    return Signature(len(x), blocks, cells, plan.key, flags)


def _effect(x: Any, p: Array, kinds: Any, ordered: bool) -> tuple[float, int]:
    """Samples per effective sample, and the flags that say why."""
    effect, dependent = serial(_within(p, kinds)) if ordered else (1.0, False)
    repeated = repeats(x)
    return max(effect, repeated), int(dependent) | 2 * (repeated > 1)


def _within(p: Array, kinds: Any) -> Array:
    """Features about their class's mean, so that samples sorted by class do not look dependent."""
    if kinds is None:
        return np.asarray(p - p.mean(axis=0))
    classes, of = np.unique(kinds, return_inverse=True)
    sums = np.zeros((len(classes), p.shape[1]))
    np.add.at(sums, of, p)
    centred: Array = p - (sums / np.bincount(of)[:, None])[of]
    return centred


def _together(p: Array, e: Array, effect: float, plan: Plan) -> Moments:
    """The covariance of two features, column by column, as a mean of products; unbiased; empty below three samples."""
    n = len(p)
    if n < 3:
        return Moments.empty(p.shape[1])
    # Both means are the client's own: of independent p and e, their covariance varies as S / (n - 1) while the
    # products about their means show S (n - 2) / (n - 1)^2.
    effect *= (n - 1) / (n - 2)
    p = p - p.mean(axis=0)
    # Long samples are shrunk towards length 2 (1 is usual): one far sample must not make a client an outlier.
    p = p / np.sqrt(1 + np.square(p).sum(axis=1, keepdims=True) / 2 / _FAR**2)
    p = p - p.mean(axis=0)
    return Moments.of(p * (e - e.mean(axis=0)) * (n / (n - 1)), effect=effect, seed=plan.seed)


def _cells(p: Array, kinds: Any, effect: float, plan: Plan) -> Cells:
    classes, of, every = np.unique(kinds, return_inverse=True, return_counts=True)
    often = np.lexsort((classes, -every))[: plan.cells]
    used = np.sort(often[every[often] >= _FEWEST_OF_CLASS])
    samples = [p[of == kind] for kind in used]
    means = np.array([rows.mean(axis=0) for rows in samples]).reshape(len(used), p.shape[1])
    rest = [rows - mean for rows, mean in zip(samples, means, strict=True)]
    scatter = np.array([np.square(rows).sum() for rows in rest])
    counts = every[used].astype(np.float64)
    dof = np.maximum(counts - effect, 0)
    traces, free = _residual_traces(rest, float(dof.sum()), effect, plan.seed)
    return Cells(classes[used].astype(np.int64), counts, means, scatter, dof, traces, free, effect)


def _residual_traces(rest: list[Array], dof: float, effect: float, seed: int) -> tuple[Array, float]:
    """Traces as in Moments, of samples about their class's mean, and the degrees of freedom behind them."""
    n = sum(len(rows) for rows in rest)
    if n < 6 or dof < 3:
        return np.full(3, np.nan), 0.0
    q = np.concatenate(rest)[keyed(seed, "cells", n).permutation(n)]
    thirds = [third * np.sqrt(n / dof / len(third)) for third in np.array_split(q, 3)]
    return np.array([float(np.square(q).sum() / dof), *cross_traces(thirds)]), dof / effect


# -- samples that are not independent: how many samples are behind each independent one --------------------------------


# Fewer samples cannot tell dependence from chance.
_FEWEST_SERIAL = 12
_EFFECT_LEVEL, _WARNING_LEVEL = 0.05, 0.001


def serial(p: Array) -> tuple[float, bool]:
    """The design effect of centred features p [n, D] in stored order, and whether it is significant.

    Means of contiguous blocks (2, 4, 8, .. blocks, up to pairs of samples) vary as S / length if samples are
    independent. If they vary more (p < .05 over all block lengths), the effect is the largest ratio plus one deviation.
    """
    n = len(p)
    if n < _FEWEST_SERIAL:
        return 1.0, False
    traces = Moments.of(p).traces
    if traces[0] <= 1e-12:
        return 1.0, False
    sums = np.vstack([np.zeros(p.shape[1]), np.cumsum(p - p.mean(axis=0), axis=0)])
    counts = [2**j for j in range(1, int(np.log2(n)))]
    best, smallest_p = 1.0, 1.0
    for count in counts:
        edges = np.linspace(0, n, count + 1).round().astype(int)
        q = float((np.square(sums[edges[1:]] - sums[edges[:-1]]).sum(axis=1) / np.diff(edges)).sum())
        chance = float(null_p(q, count - 1, traces, n - 1)) * len(counts)
        smallest_p = min(smallest_p, chance)
        if chance < _EFFECT_LEVEL:
            # Plus one deviation: too small an effect makes a client an outlier, too large an effect only loses power.
            doubt = np.sqrt(2 * min(max(traces[1], 0.0) / traces[0] ** 2, 1.0) / (count - 1))
            best = max(best, q / (count - 1) / traces[0] * (1 + doubt))
    return min(best, n / 2), smallest_p < _WARNING_LEVEL


def repeats(x: Any) -> float:
    """Return the sum of squared multiplicities of rows / n; 1 if rows may be equal by chance.

    Rows of a few categories are often equal although they are independent. Equal rows count as repeats if columns that
    are drawn independently of each other would give fewer than .01 pairs of equal rows.
    """
    n = len(x)
    seen = Counter(row.tobytes() for row in x)
    counts = np.array(list(seen.values()))
    m = len(counts)
    if m == n:
        return 1.0
    # How often a column has equal values in two different rows.
    distinct = np.stack([np.frombuffer(row, dtype=x.dtype) for row in seen])
    pairs = [np.square(np.unique(column, return_counts=True)[1]).sum() - m for column in distinct.T]
    chance = np.log(np.maximum(np.array(pairs) / max(m * (m - 1), 1), 1 / m**2)).sum()
    return float(np.square(counts).sum() / n) if np.log(n * n / 2) + chance < np.log(0.01) else 1.0


# -- a signature as bytes ----------------------------------------------------------------------------------------------


_MAGIC = b"fks1"
_KINDS = ("b1", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Little-endian: magic, then per array name, dtype, shape and values, in the order of names."""
    parts = [_MAGIC, struct.pack("<H", len(arrays))]
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        text, kind = name.encode(), value.dtype.str[1:].encode()
        parts += [struct.pack("<BBB", len(text), len(kind), value.ndim), text, kind]
        parts += [struct.pack(f"<{value.ndim}I", *value.shape), value.tobytes()]
    return b"".join(parts)


def unpack(data: bytes) -> Arrays:
    """Read the arrays that `pack` wrote; raises DataError for other bytes."""
    stream = io.BytesIO(data)

    def read(size: int) -> bytes:
        if size > len(data) - stream.tell():
            raise ValueError("cut short")
        return stream.read(size)

    try:
        if read(4) != _MAGIC:
            raise ValueError("other magic")
        (count,) = struct.unpack("<H", read(2))
        arrays = {}
        for _ in range(count):
            name_length, kind_length, ndim = read(3)
            name, kind = read(name_length).decode(), read(kind_length).decode()
            if kind not in _KINDS:
                raise ValueError(f"an array of {kind!r}")
            dtype, shape = np.dtype("<" + kind), struct.unpack(f"<{ndim}I", read(4 * ndim))
            values = np.frombuffer(read(math.prod(shape) * dtype.itemsize), dtype)
            arrays[name] = values.reshape(shape).astype(dtype.newbyteorder("="))
        if stream.read(1):
            raise ValueError("bytes left over")
    except ValueError as error:
        what = f"{len(data)} bytes that are not a signature of fedkin ({error_text(error)})"
        raise DataError(f"signature: {what}; send it again") from None
    return arrays
