"""Convolutions with pooling and ReLU, forward and backward, compiled by numba: a lane of a vector for each sample.

A block is LANES samples with one number of each beside the other in memory: arrays [blocks, channels, height, width,
LANES] in float32. So vectors are full whatever the number of channels. What is summed over samples is summed lane by
lane first; its bits depend on LANES, and so on the kind of processor. Only `learning.kernels` imports this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np

from fedkin.learning.lanes import LANES, SUMS, outer, pool, spread, taps

__all__ = ["LANES", "Kernels", "enter", "kernels", "leave"]

_CACHED = 6144  # numbers of gradients that stay in the first cache


class Kernels(NamedTuple):
    """The steps of a convolution, 2x2 max pooling and ReLU: see `kernels`."""

    forward: Callable[..., None]
    weights: Callable[..., None]
    inputs: Callable[..., None]


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile when it is called."""
    # Not kept on disk: numba's cache mixes up kernels of different shapes that two processes write at once.
    made: Callable[..., None] = numba.njit(nogil=True)(function)
    return made


def _together(channels: int, places: int) -> int:
    """Return how many channels are computed at a time: a divisor of their number."""
    return max(r for r in range(1, 9) if channels % r == 0 and (r == 1 or r * places <= SUMS))


@cache
def kernels(inside: int, outside: int, size: int) -> Kernels:
    """Return the kernels for these numbers of channels and this width of the weights.

    forward(x, w, b, border, out, which): x [.., inside, height, width, L], zeros around it included; w [outside,
    inside, size, size]; out [.., outside, .., .., L] has `border` pixels around it that are left alone.
    weights(g, which, x, border, dy, dw, db): gradients, from g, the gradient of `out` without its border. It writes the
    gradient before pooling to dy [.., outside, twice the height of g, columns before pooling + 2 border, L], and leaves
    the border and a column that pooling leaves out alone, which are 0.
    inputs(dy, w, padding, dx): the gradient of x without its padding; the border of dy is size - 1 - padding.
    """
    made = (_forward(inside, outside, size), _weights(inside, outside, size), _inputs(inside, outside, size))
    return Kernels(*(_compiled(function) for function in made))


def _forward(inside: int, outside: int, k: int) -> Callable[..., None]:
    apart, lanes = _together(outside, 4), LANES

    def forward(x: Any, w: Any, b: Any, border: int, out: Any, which: Any) -> None:
        rows, columns = x.shape[2], x.shape[3]
        high, wide = which.shape[2], which.shape[3]
        across = wide + 2 * border
        plane = (high + 2 * border) * across
        pixels, made, places = x.reshape(-1), out.reshape(-1), which.reshape(-1)
        weights = np.empty(inside * k * k * apart, np.float32)
        sums = np.empty(apart * 4 * lanes, np.float32)
        taken = w.reshape(outside, inside * k * k)
        for o in range(0, outside, apart):
            for t in range(inside * k * k):
                for r in range(apart):
                    weights[t * apart + r] = taken[o + r, t]
            for block in range(x.shape[0]):
                for y in range(high):
                    for i in range(wide):
                        start = (block * inside * rows + 2 * y) * columns + 2 * i
                        taps(apart, 2, 2, k, pixels, start, rows * columns, columns, inside, 0, k, weights, sums, 0, 4)
                        for r in range(apart):
                            c = block * outside + o + r
                            pool(sums, 4 * r, b, o + r, made, c * plane + (y + border) * across + i + border,
                                 places, (c * high + y) * wide + i)  # fmt: skip

    return forward


def _weights(inside: int, outside: int, k: int) -> Callable[..., None]:
    few, lanes = _together(outside, k), LANES

    def weights(g: Any, which: Any, x: Any, border: int, dy: Any, dw: Any, db: Any) -> None:
        rows, columns = x.shape[2], x.shape[3]
        high, wide = which.shape[2], which.shape[3]
        across = dy.shape[3]
        given, places, full, pixels = g.reshape(-1), which.reshape(-1), dy.reshape(-1), x.reshape(-1)
        sums, totals = np.zeros(outside * inside * k * k * lanes, np.float32), np.zeros(outside * lanes, np.float32)
        part = max(1, _CACHED // (few * 2 * wide * lanes))
        for block in range(x.shape[0]):
            for o in range(outside):
                c = block * outside + o
                for y in range(high):
                    for i in range(wide):
                        at = (c * high + y) * wide + i
                        spread(given, at, places, at, full, (c * high + y) * 2 * across + border + 2 * i, across,
                               totals, o)  # fmt: skip
            for o in range(0, outside, few):
                for y in range(0, 2 * high, part):
                    here = min(part, 2 * high - y)
                    for c in range(inside):
                        for ky in range(k):
                            outer(few, k, full, ((block * outside + o) * 2 * high + y) * across + border,
                                  2 * high * across, across, pixels, ((block * inside + c) * rows + y + ky) * columns,
                                  columns, here, 2 * wide, sums, (o // few * inside + c) * k * few * k + ky * few * k,
                                  )  # fmt: skip
        for o in range(outside):
            db[o] = totals[o * lanes : (o + 1) * lanes].sum()
            for c in range(inside):
                for ky in range(k):
                    for kx in range(k):
                        at = ((((o // few) * inside + c) * k + ky) * few + o % few) * k + kx
                        dw[o, c, ky, kx] = sums[at * lanes : (at + 1) * lanes].sum()

    return weights


def _inputs(inside: int, outside: int, k: int) -> Callable[..., None]:
    back = _together(inside, 4)

    def inputs(dy: Any, w: Any, padding: int, dx: Any) -> None:
        high, across = dy.shape[2], dy.shape[3]
        rows, columns = dx.shape[2], dx.shape[3]
        plane = rows * columns
        full, made = dy.reshape(-1), dx.reshape(-1)
        weights = np.empty(outside * k * k * back, np.float32)
        for c in range(0, inside, back):
            for o in range(outside):
                for ky in range(k):
                    for kx in range(k):
                        for r in range(back):
                            weights[((o * k + ky) * k + k - 1 - kx) * back + r] = w[o, c + r, ky, kx]
            for block in range(dx.shape[0]):
                for y in range(rows):
                    there = y + padding
                    first, end = max(0, there - high + 1), min(k, there + 1)
                    start = (block * outside * high + there) * across
                    to = ((block * inside + c) * rows + y) * columns
                    i = 0
                    while i + 4 <= columns:
                        taps(back, 1, 4, k, full, start + i, high * across, -across, outside, first, end, weights,
                              made, to + i, plane)  # fmt: skip
                        i += 4
                    while i < columns:
                        taps(back, 1, 1, k, full, start + i, high * across, -across, outside, first, end, weights,
                              made, to + i, plane)  # fmt: skip
                        i += 1

    return inputs


def _enter(x: Any, padding: int, out: Any) -> None:
    """Lay samples [n, channels, height, width] out in blocks, inside a border that is left alone."""
    samples, channels, rows, columns = x.shape
    for block in range(out.shape[0]):
        for c in range(channels):
            for y in range(rows):
                for lane in range(LANES):
                    sample = block * LANES + lane
                    for i in range(columns):
                        value = x[sample, c, y, i] if sample < samples else np.float32(0)
                        out[block, c, y + padding, i + padding, lane] = value


def _leave(x: Any, out: Any) -> None:
    """Undo `enter`: out [n, channels, height, width] from blocks without borders."""
    samples, channels, rows, columns = out.shape
    for sample in range(samples):
        for c in range(channels):
            for y in range(rows):
                for i in range(columns):
                    out[sample, c, y, i] = x[sample // LANES, c, y, i, sample % LANES]


enter, leave = _compiled(_enter), _compiled(_leave)
