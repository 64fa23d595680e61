"""Inner loops of convolutions for numba, on vectors that have a lane for each of LANES samples.

They are written in LLVM's code, so that sums stay in registers. Arrays are flat; places in them count vectors, but
those in weights and biases count numbers. Only `learning.convolving` imports this; numba is an optional package.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "SUMS", "outer", "pool", "spread", "taps"]

_I: Any = types.int64
_TOOLS: Any = cgutils
_INNER: Any = intrinsic(prefer_literal=True)


def _host() -> tuple[int, int]:
    """Return the float32 numbers in a vector of this processor, and how many vectors a loop may sum in registers."""
    has = llvm.get_host_cpu_features()
    if has.get("avx512f"):
        return 16, 24
    return (8, 12) if has.get("avx") else (4, 12 if has.get("sse2") else 24)


LANES, SUMS = _host()
_FLOAT, _LONG, _BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(8)
_VECTOR, _BYTES = ir.VectorType(_FLOAT, LANES), ir.VectorType(_BYTE, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _bytes(number: int) -> ir.Constant:
    return ir.Constant(_BYTES, [number] * LANES)


class _Code:
    """What the kernels below need of a builder of LLVM's code; places count vectors."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> None:
        self.context, self.b, self.kinds, self.given = context, builder, signature.args, given

    def array(self, place: int) -> Any:
        """Return a pointer to the numbers of an argument."""
        return self.context.make_array(self.kinds[place])(self.context, self.b, self.given[place]).data

    def at(self, start: Any, *steps: tuple[Any, Any]) -> Any:
        """Return start + the sum of number * step."""
        for number, step in steps:
            start = self.b.add(_long(start), self.b.mul(_long(number), _long(step)))
        return start

    def _there(self, data: Any, place: Any, kind: Any) -> Any:
        return self.b.bitcast(self.b.gep(data, [self.b.mul(place, _long(LANES))]), kind.as_pointer())

    def load(self, data: Any, place: Any, kind: Any = _VECTOR) -> Any:
        return self.b.load(self._there(data, place, kind), align=1 if kind is _BYTES else 4)

    def store(self, value: Any, data: Any, place: Any) -> None:
        bytes = value.type == _BYTES
        self.b.store(value, self._there(data, place, value.type), align=1 if bytes else 4)

    def number(self, data: Any, place: Any) -> Any:
        """Return a vector of copies of one number."""
        none = ir.Constant(_VECTOR, ir.Undefined)
        one = self.b.load(self.b.gep(data, [place]), align=4)
        one = self.b.insert_element(none, one, ir.Constant(ir.IntType(32), 0))
        return self.b.shuffle_vector(one, none, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    def held(self, values: list[Any]) -> list[Any]:
        """Return places for these vectors, which the compiler turns into registers."""
        made = [_TOOLS.alloca_once(self.b, _VECTOR) for _ in values]
        for value, place in zip(values, made, strict=True):
            self.b.store(value, place)
        return made

    def add(self, place: Any, a: Any, b: Any) -> None:
        """Add a * b to what is held there."""
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fma = _TOOLS.get_or_insert_function(self.b.module, kind, f"llvm.fmuladd.v{LANES}f32")
        self.b.store(self.b.call(fma, [a, b, self.b.load(place)]), place)


def _long(number: Any) -> Any:
    return ir.Constant(_LONG, number) if isinstance(number, int) else number


def _constants(*kinds: Any) -> list[int] | None:
    return [kind.literal_value for kind in kinds] if all(isinstance(k, types.IntegerLiteral) for k in kinds) else None


@_INNER
def taps(typing, n, high, wide, k, x, xo, xc, xr, inside, first, end, w, out, oo, oc):  # type: ignore[no-untyped-def]
    """out[oo + r oc + p] = sum of w[c, ky, kx, r] * (pixel p of the window at x[xo + c xc + ky xr + kx]).

    Summed over c < inside, first <= ky < end and kx < k; r < n. A window has high x wide pixels, and rows xr apart.
    """
    fixed = _constants(n, high, wide, k)
    if fixed is None:
        return None
    signature = types.void(n, high, wide, k, x, _I, _I, _I, _I, _I, _I, w, out, _I, _I)
    channels, rows, columns, size = fixed

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        c = _Code(context, builder, signature, given)
        _, _, _, _, _, xo, xc, xr, inside, first, end, _, _, oo, oc = given
        pixels, weights, sums = c.array(4), c.array(11), c.held([_ZERO] * (channels * rows * columns))
        each = rows * columns
        with (
            _TOOLS.for_range(builder, inside, intp=_LONG) as i,
            _TOOLS.for_range_slice(builder, first, end, _long(1), _LONG) as (ky, _),
        ):
            row, weight = c.at(xo, (i.index, xc), (ky, xr)), c.at(0, (c.at(ky, (i.index, size)), size * channels))
            for kx in range(size):
                window = [c.load(pixels, c.at(row, (y, xr), (kx + p, 1))) for y in range(rows) for p in range(columns)]
                for r in range(channels):
                    one = c.number(weights, c.at(weight, (kx * channels + r, 1)))
                    for p, pixel in enumerate(window):
                        c.add(sums[r * each + p], one, pixel)
        out = c.array(12)
        for r in range(channels):
            for p in range(each):
                c.store(builder.load(sums[r * each + p]), out, c.at(oo, (r, oc), (p, 1)))
        return context.get_dummy_value()

    return signature, code


@_INNER
def pool(typing, sums, so, bias, o, out, oo, which, wo):  # type: ignore[no-untyped-def]
    """out[oo] = ReLU(max(sums[so : so + 4]) + bias[o]); which[wo]: of which of them it is, or 4 if ReLU gives 0."""
    signature = types.void(sums, _I, bias, _I, out, _I, which, _I)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        c = _Code(context, builder, signature, given)
        _, so, _, o, _, oo, _, wo = given
        best, place = c.load(c.array(0), so), _bytes(0)
        for p in range(1, 4):
            value = c.load(c.array(0), c.at(so, (p, 1)))
            # As torch's, it takes the first of equal values, and NaN before all.
            more = builder.or_(builder.fcmp_ordered(">", value, best), builder.fcmp_unordered("uno", value, value))
            best, place = builder.select(more, value, best), builder.select(more, _bytes(p), place)
        best = builder.fadd(best, c.number(c.array(2), o))
        dead = builder.fcmp_ordered("<=", best, _ZERO)
        c.store(builder.select(dead, _ZERO, best), c.array(4), oo)
        c.store(builder.select(dead, _bytes(4), place), c.array(6), wo)
        return context.get_dummy_value()

    return signature, code


@_INNER
def spread(typing, given, go, which, wo, out, oo, row, sums, so):  # type: ignore[no-untyped-def]
    """Undo `pool`: put given[go] to one of out[oo], out[oo + 1], out[oo + row], out[oo + row + 1], and 0 to the rest.

    sums[so] += given[go] where ReLU gave more than 0.
    """
    signature = types.void(given, _I, which, _I, out, _I, _I, sums, _I)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        c = _Code(context, builder, signature, given)
        _, go, _, wo, _, oo, row, _, so = given
        value, place = c.load(c.array(0), go), c.load(c.array(2), wo, _BYTES)
        for p in range(4):
            here = builder.icmp_signed("==", place, _bytes(p))
            c.store(builder.select(here, value, _ZERO), c.array(4), c.at(oo, (p // 2, row), (p % 2, 1)))
        alive = builder.select(builder.icmp_signed("==", place, _bytes(4)), _ZERO, value)
        c.store(builder.fadd(c.load(c.array(7), so), alive), c.array(7), so)
        return context.get_dummy_value()

    return signature, code


@_INNER
def outer(typing, n, k, g, go, gc, gr, x, xo, xr, rows, columns, sums, so):  # type: ignore[no-untyped-def]
    """sums[so + r k + p] += sum over y < rows, i < columns of g[go + r gc + y gr + i] x[xo + y xr + i + p], p < k."""
    fixed = _constants(n, k)
    if fixed is None:
        return None
    signature = types.void(n, k, g, _I, _I, _I, x, _I, _I, _I, _I, sums, _I)
    channels, size = fixed

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        c = _Code(context, builder, signature, given)
        _, _, _, go, gc, gr, _, xo, xr, rows, columns, _, so = given
        gradients, pixels, kept = c.array(2), c.array(6), c.array(11)
        places = [c.at(so, (p, 1)) for p in range(channels * size)]
        sums = c.held([c.load(kept, place) for place in places])
        with (
            _TOOLS.for_range(builder, rows, intp=_LONG) as y,
            _TOOLS.for_range(builder, columns, intp=_LONG) as i,
        ):
            start = c.at(xo, (y.index, xr), (i.index, 1))
            window = [c.load(pixels, c.at(start, (p, 1))) for p in range(size)]
            for r in range(channels):
                one = c.load(gradients, c.at(go, (y.index, gr), (i.index, 1), (r, gc)))
                for p, pixel in enumerate(window):
                    c.add(sums[r * size + p], one, pixel)
        for total, place in zip(sums, places, strict=True):
            c.store(builder.load(total), kept, place)
        return context.get_dummy_value()

    return signature, code
