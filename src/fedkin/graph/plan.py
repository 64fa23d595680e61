"""What all clients need before they sign: a `Spread` of each client's samples, and the server's `Plan`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from fedkin.errors import GraphError
from fedkin.graph._check import Array
from fedkin.graph.moments import Arrays, fields_of
from fedkin.keys import rng as keyed

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
        if not parts:
            raise GraphError("a plan needs the spread of at least one client; got none")
        formats = {(spread.dim, len(spread.squares)) for spread in parts}
        if len(formats) > 1:
            widths = ", ".join(str(dim) for dim, _ in sorted(formats))
            raise GraphError(f"clients have {widths} numbers per sample; expected one format")
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
        target = None
        if count:
            mean = first / count
            target = float(mean), float(np.sqrt(max(second / count - mean**2, 0.0))) or 1.0
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
