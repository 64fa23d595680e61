"""What a client sends for groups by tests: a `Spread`, then a `Signature` (docs/groups.md).

The server makes a `Plan` from the spreads and sends it once; `sign` makes a signature of 2 KB by the plan.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from fedkin.errors import DataError, GraphError
from fedkin.graph._check import Array, Labels, as_vectors
from fedkin.graph.p_values import null_p
from fedkin.keys import rng as keyed
from fedkin.untrusted import error_text

Arrays = dict[str, np.ndarray[Any, Any]]
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


def _floats(arrays: Mapping[str, Any], what: str, *names: str) -> list[Array]:
    """These arrays as float64; raises GraphError if one is missing or holds no numbers."""
    try:
        return [np.asarray(arrays[name], dtype=np.float64) for name in names]
    except (KeyError, TypeError, ValueError):
        raise GraphError(f"{what}: expected arrays {', '.join(names)}; send them again") from None


def _half_precision(values: Array, largest: float) -> np.ndarray[Any, Any]:
    """As float16, or float32 where float16 would overflow."""
    return values.astype(np.float32 if largest > 6e4 else np.float16)


# -- means of features, and how far a mean of so many samples strays ---------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean of n samples of D features, and the traces of their covariance S; 2 D + 9 numbers.

    n: samples. mean [D]. half [D]: half the difference of two halves' means, scaled so that its covariance is that of
    `mean`. traces: tr S, tr S^2, tr S^3, unbiased, NaN for too few samples. free [3]: degrees of freedom behind each.
    effect: variance of the mean over that of n independent samples, at least 1. noise: variance added on purpose to
    each entry of `mean` and `half`.

    >>> import numpy as np
    >>> p = np.random.default_rng(0).normal(size=(600, 4))
    >>> one, two = Moments.of(p[:200]), Moments.of(p[200:])
    >>> both = Moments.total([one, two])
    >>> both.n, bool(np.allclose(both.mean, p.mean(axis=0)))
    (600, True)
    >>> both.traces.round(1)
    array([4. , 4. , 3.9])
    """

    n: int
    mean: Array
    half: Array
    traces: Array
    free: Array
    effect: float = 1.0
    noise: float = 0.0

    @property
    def weight(self) -> float:
        """The number of independent samples whose mean is as precise as this one, without noise."""
        return self.n / self.effect

    @classmethod
    def of(cls, p: Any, *, effect: float = 1.0, seed: int = 0) -> Moments:
        """Return the moments of samples `p` [n, D]; halves and thirds are drawn by `seed` and n."""
        p = as_vectors(p, "p")
        n, width = p.shape
        p = p[keyed(seed, "moments", n).permutation(n)]
        half = np.zeros(width)
        if n > 1:
            k = n // 2
            half = (p[:k].mean(axis=0) - p[k : 2 * k].mean(axis=0)) / 2 * np.sqrt(2 * k / n * effect)
        traces = _traces(p, effect)
        free = np.where(np.isfinite(traces), max(n / effect - 1, 0.0), 0.0)
        return cls(n, p.mean(axis=0), half, traces, free, effect)

    @classmethod
    def empty(cls, width: int) -> Moments:
        """Return the moments of no samples: they have no weight in any test."""
        return cls(0, np.zeros(width), np.zeros(width), np.full(3, np.nan), np.zeros(3))

    @classmethod
    def total(cls, parts: Sequence[Moments]) -> Moments:
        """Return the moments of all clients' samples, if all have one mean."""
        widths = sorted({len(m.mean) for m in parts})
        if len(widths) != 1:
            raise GraphError(f"moments of {widths or 'no'} features cannot be merged; expected one width")
        parts = [m for m in parts if m.n] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        weight, noise = fields_of(parts, "weight", "noise")
        means, halves, traces, free = fields_of(parts, "mean", "half", "traces", "free")
        share, n = weight / weight.sum(), sum(m.n for m in parts)
        effect = float(n / weight.sum())
        return cls(n, share @ means, share @ halves, *pool(traces, free), effect, float(share**2 @ noise))

    def to_arrays(self) -> Arrays:
        """mean and half in float16 (float32 where that would overflow), all else as float32."""
        largest = max(np.abs(self.mean).max(initial=0), np.abs(self.half).max(initial=0))
        numbers = np.array([self.n, self.effect, self.noise, *self.traces, *self.free], dtype=np.float32)
        mean, half = (_half_precision(v, largest) for v in (self.mean, self.half))
        return {"mean": mean, "half": half, "numbers": numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Moments:
        """Read what `to_arrays` wrote."""
        mean, half, numbers = _floats(arrays, "moments", "mean", "half", "numbers")
        finite = np.isfinite(mean).all() and np.isfinite(half).all() and np.isfinite(numbers[:3]).all()
        if mean.ndim != 1 or mean.shape != half.shape or numbers.shape != (9,) or not finite:
            raise GraphError("moments: mean, half or numbers have another shape or are not finite; send them again")
        return cls(round(numbers[0]), mean, half, numbers[3:6], numbers[6:], float(numbers[1]), float(numbers[2]))


def _traces(p: Array, effect: float) -> Array:
    """tr S from all samples; tr S^2 and tr S^3 from products of thirds, whose errors are independent.

    NaN if unknown: tr S of one sample, the others of fewer than six.
    """
    n = len(p)
    if n < 2 or n <= effect:
        return np.full(3, np.nan)
    # Of n samples whose mean varies as S effect / n, squares about the mean sum to (n - effect) S.
    first = float(np.square(p - p.mean(axis=0)).sum() / (n - effect))
    if n < 6:
        return np.array([first, np.nan, np.nan])
    parts = [third - third.mean(axis=0) for third in np.array_split(p, 3)]
    return np.array([first, *cross_traces([q / np.sqrt(len(q) - 1) for q in parts])])


def cross_traces(thirds: list[Array]) -> tuple[float, float]:
    """tr S^2 and tr S^3 from three independent roots A, B, C of S, S = E A'A: tr A'A B'B and so on."""
    a, b, c = thirds
    if len(a) < a.shape[1]:
        ab, bc, ca = a @ b.T, b @ c.T, c @ a.T
        squares = np.square(ab).sum() + np.square(bc).sum() + np.square(ca).sum()
        return float(squares) / 3, float((ab @ bc * ca.T).sum())
    a, b, c = a.T @ a, b.T @ b, c.T @ c
    return float((a * b).sum() + (b * c).sum() + (a * c).sum()) / 3, float((a @ b * c).sum())


def fields_of(parts: Sequence[Any], *names: str) -> list[Any]:
    """These fields of all parts, each as one array with a row for each part."""
    return [np.array([getattr(part, name) for part in parts]) for name in names]


def pool(traces: Array, free: Array) -> tuple[Array, Array]:
    """Traces [k, 3] weighted by degrees of freedom [k, 3], each over the parts that know it; and the total degrees."""
    total = free.sum(axis=0)
    sums: Array = (np.where(free > 0, traces, 0) * free).sum(axis=0)
    return np.where(total > 0, sums / np.maximum(total, 1e-300), np.nan), total


# -- the first message, and the plan -----------------------------------------------------------------------------------


# Up to so many classes each has its own share; more are hashed into so many random signs.
_SHARES = 64
# A numeric target is cut into this many bins, at normal quantiles, where classes are needed.
_BINS = 10


@dataclass(frozen=True, eq=False)
class Spread:
    """The first message of a client: how much its samples vary; one number, or one per feature of a table.

    n: samples. squares [1] or [d]: sum of squares about the client's own mean, over all features or of each.
    dim: numbers per sample. classes: largest label + 1, 0 without. target [3]: count, sum and sum of squares
    of a numeric target.

    >>> import numpy as np
    >>> one = Spread.of([[0.0, 1.0], [2.0, 1.0]], [0, 4])
    >>> one.squares, one.classes
    (array([2.]), 5)
    """

    n: int
    squares: Array
    dim: int
    classes: int = 0
    target: Array = field(default_factory=lambda: np.zeros(3))

    @classmethod
    def of(cls, x: Any, y: Any = None, *, per_feature: bool = False) -> Spread:
        """Return the spread of samples x [n, ...].

        y [n]: targets; whole numbers are classes, floats are one numeric target; None: no targets. per_feature: scale
        each feature by itself, for tables whose columns have different units.
        """
        x = as_samples(x)
        squares = np.square(x - x.mean(axis=0)).sum(axis=0, dtype=np.float64)
        if not per_feature:
            squares = squares.sum(keepdims=True)
        target, classes = np.zeros(3), 0
        if y is not None:
            y = np.asarray(y)
            if y.shape != (len(x),):
                raise GraphError(f"y: expected {len(x)} targets, one per sample, got shape {y.shape}")
            if y.dtype.kind == "f":
                target = np.array([len(y), y.sum(), np.square(y).sum()], dtype=np.float64)
            else:
                classes = int(as_classes(y).max()) + 1
        return cls(len(x), squares, x.shape[1], classes, target)

    def to_arrays(self) -> Arrays:
        """A flat dict of arrays, for a message."""
        return {"counts": np.array([self.n, self.dim, self.classes]), "squares": self.squares, "target": self.target}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Spread:
        """Read what `to_arrays` wrote."""
        n, dim, classes = (int(v) for v in arrays["counts"])
        squares, target = (np.asarray(arrays[k], dtype=np.float64) for k in ("squares", "target"))
        return cls(n, squares, dim, classes, target)


@dataclass(frozen=True, eq=False)
class Plan:
    """What all clients must share to be comparable: a seed and the scale of the data. The server sends it once.

    dim: numbers per sample. var [1] or [d]: variance within clients, over all features together or of each. classes:
    number of classes, 0 without. target: mean and deviation of a numeric target, or None. features: random features of
    the blocks x and xy. projections: of a class's mean. cells: the largest number of classes whose means a client
    sends, its most frequent ones.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> spreads = [Spread.of(rng.normal(size=(50, 3)), rng.integers(4, size=50)) for _ in range(6)]
    >>> plan = Plan.of(spreads, seed=7)
    >>> plan.dim, plan.classes, plan.var.round(1)
    (3, 4, array([2.8]))
    """

    dim: int
    var: Array
    classes: int = 0
    target: tuple[float, float] | None = None
    features: int = 128
    projections: int = 32
    cells: int = 16
    seed: int = 0

    @classmethod
    def of(cls, spreads: Iterable[Spread], *, classes: int | None = None, features: int = 128, seed: int = 0) -> Plan:
        """Make the plan from all clients' first messages. classes: if known, else the largest label seen + 1."""
        parts = list(spreads)
        _check_formats(parts)
        free, (labels,) = max(sum(spread.n for spread in parts) - len(parts), 1), fields_of(parts, "classes")
        squares: Array = sum(spread.squares for spread in parts) / free  # type: ignore[assignment]
        count, first, second = sum(spread.target for spread in parts)  # type: ignore[misc]
        most = int(labels.max())
        classes = most if classes is None else classes
        if (classes and count) or classes < most:
            raise GraphError(
                f"targets: {most} classes and {count:.0f} numbers; expected whole numbers below "
                f"{classes or 'the number of classes'} at every client, or floats at every client"
            )
        target = _mean_and_deviation(count, first, second) if count else None
        return cls(parts[0].dim, squares, classes, target, features, seed=seed)

    def to_arrays(self) -> Arrays:
        """A flat dict of arrays, for a message."""
        sizes = [self.dim, self.classes, self.features, self.projections, self.cells, self.seed]
        return {"sizes": np.array(sizes), "var": self.var, "target": np.array(self.target or [], dtype=np.float64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Plan:
        """Read what `to_arrays` wrote."""
        dim, classes, features, projections, cells, seed = (int(v) for v in arrays["sizes"])
        target = [float(v) for v in arrays["target"]]
        var = np.asarray(arrays["var"], dtype=np.float64)
        mean_and_deviation = (target[0], target[1]) if target else None
        return cls(dim, var, classes, mean_and_deviation, features, projections, cells, seed)

    @cached_property
    def key(self) -> int:
        """A number of 31 bits that signatures carry, so that those of two plans are never compared."""
        arrays = sorted(self.to_arrays().items())
        # As float32, so that a plan that travelled in single precision is the same plan.
        data = b"".join(name.encode() + v.astype("f4" if v.dtype.kind == "f" else "i8").tobytes() for name, v in arrays)
        return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little") >> 1

    @cached_property
    def maps(self) -> tuple[Any, Any, Any, Any]:
        """Weights of the blocks x [d, F] and xy [d, F] and of class means [d, P], and the phases of x [F]."""
        good = self.var > 0
        scale = np.where(good, 1 / np.sqrt(np.where(good, self.var, 1) * max(int(good.sum()), 1)), 0.0)
        if len(self.var) == 1:
            scale = np.full(self.dim, scale[0])

        def weights(what: str, width: int) -> Any:
            return (keyed(self.seed, "same", what).standard_normal((self.dim, width)) * scale[:, None]).astype("f4")

        phases = keyed(self.seed, "same", "phases").uniform(0, 2 * np.pi, self.features).astype("f4")
        return weights("x", self.features), weights("xy", self.features), weights("cells", self.projections), phases

    @property
    def labelled(self) -> bool:
        """Whether samples have targets."""
        return bool(self.classes) or self.target is not None

    def shares(self, y: Any) -> Array:
        """The block y of targets [n]: one column per class, hashed if there are many, or waves of a numeric target."""
        if self.target is None:
            return np.asarray(self._tables[0][y])
        return np.asarray(self._waves("waves", 16, 1.5, y) * np.sqrt(2 / 16))

    def signs(self, y: Any) -> Array:
        """The factors of the features of block xy for targets [n]: a sign per class, or a wave of a numeric target."""
        if self.target is None:
            return np.asarray(self._tables[1][y])
        return np.asarray(self._waves("signs", self.features, 1.0, y) * np.sqrt(2))

    def _waves(self, what: str, width: int, scale: float, y: Any) -> Array:
        """cos(a y + b) of a numeric target, [n, width]."""
        draw = keyed(self.seed, "same", what)
        frequencies, phases = draw.standard_normal(width) * scale, draw.uniform(0, 2 * np.pi, width)
        return np.asarray(np.cos(self._standard(y)[:, None] * frequencies + phases))

    @cached_property
    def _tables(self) -> tuple[Array, Array]:
        """Of each class: its share, hashed if there are many, and its signs."""
        shares: Array = np.eye(self.classes)
        if self.classes > _SHARES:
            draw = keyed(self.seed, "same", "shares")
            shares = (draw.integers(2, size=(self.classes, _SHARES)).astype(np.float64) * 2 - 1) / _SHARES**0.5
        draw = keyed(self.seed, "same", "signs")
        signs = draw.integers(2, size=(self.classes, self.features)).astype(np.float64) * 2 - 1
        return shares, signs

    def _standard(self, y: Any) -> Array:
        """A numeric target, in deviations from the mean of all clients."""
        mean, deviation = self.target or (0.0, 1.0)
        return np.asarray((np.asarray(y, dtype=np.float64) - mean) / deviation)

    def cell(self, y: Any) -> Any:
        """The class of each target; the bin of a numeric one."""
        if self.target is None:
            return y
        return np.searchsorted(special.ndtri(np.arange(1, _BINS) / _BINS), self._standard(y))


def _check_formats(spreads: Sequence[Spread]) -> None:
    if not spreads:
        raise GraphError("a plan needs the spread of at least one client; got none")
    formats = {(spread.dim, len(spread.squares)) for spread in spreads}
    if len(formats) > 1:
        widths = ", ".join(str(dim) for dim, _ in sorted(formats))
        raise GraphError(f"clients have {widths} numbers per sample; expected one format")


def _mean_and_deviation(count: float, first: float, second: float) -> tuple[float, float]:
    """Mean and deviation from sums of powers; a deviation of 0 becomes 1."""
    mean = first / count
    return float(mean), float(np.sqrt(max(second / count - mean**2, 0.0))) or 1.0


def as_samples(x: Any) -> Any:
    """Samples as float32 [n, d], finite; anything beyond the first axis is flattened."""
    try:
        x = np.asarray(x).astype(np.float32)
        x = x.reshape(len(x), -1) if x.size else x
    except (TypeError, ValueError):
        raise GraphError("x: expected numbers, one sample per row") from None
    if not x.size:
        raise GraphError(f"x: expected at least one sample and one number, got shape {x.shape}")
    good = np.isfinite(x).all(axis=1)
    if not good.all():
        raise GraphError(f"x: sample {int(np.argmin(good))} is not all finite; fill in or leave out what is missing")
    return x


def as_classes(y: Any) -> Any:
    """Labels as whole numbers of at least 0."""
    y = np.asarray(y)
    if y.dtype.kind not in "iub" or (y.size and y.min() < 0):
        raise GraphError(f"y: expected classes 0, 1, .. as whole numbers, got {y.dtype}; number them first")
    return y.astype(np.int64)


# -- the second message ------------------------------------------------------------------------------------------------


BLOCKS = ("x", "xy", "y")
_FLAGS = {
    1: "neighbours in stored order are alike",
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
        means = _half_precision(self.means, np.abs(self.means).max(initial=0))
        return arrays | {"classes": self.classes.astype(np.int32), "means": means, "numbers": numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Cells:
        """Read what `to_arrays` wrote."""
        names = ("classes", "counts", "means", "scatter", "dof", "numbers")
        classes, counts, means, scatter, dof, numbers = _floats(arrays, "cells", *names)
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


# -- samples in, signature out -----------------------------------------------------------------------------------------


# A class with fewer samples has no useful mean; leaving it out costs nothing.
_FEWEST_OF_CLASS = 3
# In deviations within clients.
_FAR = 2.0


def sign(plan: Plan, x: Any, y: Any = None, *, ordered: bool = True) -> Signature:
    """Return the signature of a client's samples x [n, ...] and targets y [n], by a plan that all clients share.

    y: classes as whole numbers if the plan has classes, floats if its target is a number, None if neither.
    ordered: the stored order may carry information, so that samples similar to their neighbours count
    less; False if samples are in a random order or sorted by something.

    block x: mean of cos(Wx + b) sqrt(2 / F), random Fourier features (Rahimi and Recht 2007). block xy: the
    covariance of Vx with a random sign per class. block y: shares of classes. cells: means of classes.

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
        blocks["xy"] = _together(features, plan.signs(y), effect, plan)
        blocks["y"] = Moments.of(plan.shares(y), effect=effect, seed=plan.seed)
        cells = _cells((x @ to_cells).astype(np.float64) / np.sqrt(plan.projections), kinds, effect, plan)
    return Signature(len(x), blocks, cells, plan.key, flags)


def samples_of(plan: Plan, x: Any) -> Any:
    """Samples as float32 [n, d]; raises GraphError if the plan was made for others."""
    x = as_samples(x)
    if x.shape[1] != plan.dim:
        raise GraphError(f"x: a sample has {x.shape[1]} numbers; the plan was made for {plan.dim}")
    return x


def targets_of(plan: Plan, y: Any, n: int) -> Any:
    """Return targets [n] in the form of the plan, None without; raises GraphError if they do not fit it."""
    if not plan.labelled:
        return None
    if y is None:
        raise GraphError("y: the plan was made with targets; expected one per sample, or a plan made without")
    y = np.asarray(y)
    if y.shape != (n,):
        raise GraphError(f"y: expected {n} targets, one per sample, got shape {y.shape}")
    if plan.target is not None:
        if y.dtype.kind not in "iuf" or not np.isfinite(y).all():
            raise GraphError("y: expected finite numbers, as the plan's target is a number")
        return y.astype(np.float64)
    y = as_classes(y)
    if y.max() >= plan.classes:
        raise GraphError(f"y: class {y.max()}, but the plan was made for {plan.classes} classes")
    return y


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
