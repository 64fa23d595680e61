"""Samples as rows of numbers, whatever their inputs are; token ids and category codes are hashed into columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedkin.federation import Samples
from fedkin.federation.inputs import parts
from fedkin.keys import key
from fedkin.tasks import Task

_WIDTH = 128  # hashed columns for codes at any place, and as many for codes with their place


def arrays_of(samples: Samples, task: Task) -> tuple[Any, Any]:
    """(x [n, d], y [n] or None) as numpy arrays: the inputs as numbers, and class labels or the sum of the targets."""
    x, y = numeric_rows(samples, task), samples.labels()
    if task.labels:
        return x, y.numpy()
    return x, y.double().sum(1).numpy() if task.kind == "regression" else None


def width_of(task: Task) -> int:
    """Numbers per sample in `numeric_rows`.

    >>> width_of(Task(2, (1, 28, 28))), width_of(Task(2, (30,), codes=("x",)))
    (784, 256)
    """
    return sum(2 * _WIDTH if name in task.codes else math.prod(shape) for name, shape in task.shapes.items())


def numeric_rows(samples: Samples, task: Task) -> npt.NDArray[np.float32]:
    """The scaled inputs of all samples as numbers [n, width_of(task)], arrays in the order of their names."""
    inputs = parts(samples.inputs(slice(None)))
    return np.concatenate([_numbers(name, inputs[name], task) for name in sorted(inputs)], axis=1)


def _numbers(name: str, values: Tensor, task: Task) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[Any] = values.numpy().reshape(len(values), -1)
    if name not in task.codes:
        return np.asarray(flat, dtype=np.float32)
    # A code counts by itself (a bag of tokens) and with its position (a column of categories).
    positions = np.arange(1, flat.shape[1] + 1)
    counts = np.concatenate([_hashed(flat, 0 * positions, name), _hashed(flat, positions, name)], axis=1)
    return np.asarray(counts / flat.shape[1] ** 0.5, dtype=np.float32)


def _hashed(codes: npt.NDArray[Any], positions: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.float32]:
    """Counts of codes in hashed columns with random signs, [n, _WIDTH]."""
    seed = np.uint64(key(0, name, "codes"))
    # splitmix64 of code and position.
    z = codes.astype(np.int64).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = z ^ (positions.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z = z ^ (z >> np.uint64(31))
    sign = np.where(z & np.uint64(1), 1.0, -1.0).astype(np.float32)
    counts = np.zeros((len(codes), _WIDTH), dtype=np.float32)
    row = np.broadcast_to(np.arange(len(codes))[:, None], codes.shape)
    np.add.at(counts, (row, ((z >> np.uint64(1)) % np.uint64(_WIDTH)).astype(np.int64)), sign)
    return counts


def has_columns(task: Task) -> bool:
    """Whether inputs have columns of different units: a table, or several arrays."""
    return isinstance(task.shape, Mapping) or len(task.shape) == 1
