"""Checks of clients before a federation is made of them; errors name the client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedkin.errors import DataError
from fedkin.federation.inputs import codes_in, parts, shape_of
from fedkin.federation.samples import Client, Samples
from fedkin.tasks import Task

__all__ = ["check_changes", "check_id", "check_samples"]


def check_id(id: str) -> None:
    """Raise DataError for a client id that is no printable text without spaces around it."""
    if not isinstance(id, str) or not id or id != id.strip() or not id.isprintable():
        raise DataError(f"a client id must be printable text without spaces around it, got {id!r}")


def check_changes(client: Client) -> None:
    """Raise DataError unless the client joins and changes in rounds that follow each other, with samples in each."""
    if client.joins < 1:
        raise DataError(f"client {client.id!r} joins in round {client.joins}; rounds are numbered from 1")
    rounds = [change.round for change in client.changes]
    if rounds != sorted(set(rounds)) or (rounds and rounds[0] < 1):
        raise DataError(f"client {client.id!r} changes in rounds {rounds}; expected ascending rounds from 1")
    for change in client.changes:
        if len(change.train) == 0 and client.seen:
            raise DataError(f"client {client.id!r} has no training samples from round {change.round} on")


def check_samples(id: str, part: str, samples: Samples, task: Task, checked: set[tuple[int, int]]) -> None:
    """Raise DataError unless these samples of a client fit the task; checked: arrays that are known to be finite."""
    _check_inputs(id, part, samples, task, checked)
    if samples.rows is not None and samples.rows.dtype != torch.int64:
        raise DataError(f"client {id!r}: {part} rows must be int64, got {samples.rows.dtype}")
    if samples.rows is not None and len(samples.rows):
        low, high = int(samples.rows.min()), int(samples.rows.max())
        if low < 0 or high >= len(samples.y):
            raise DataError(f"client {id!r}: {part} rows {low}..{high} are outside 0..{len(samples.y) - 1}")
    _check_targets(f"client {id!r}: {part}", samples.labels(), task)


def _check_inputs(id: str, part: str, samples: Samples, task: Task, checked: set[tuple[int, int]]) -> None:
    where = f"client {id!r}: {part} inputs"
    shape, alone = shape_of(samples.x), isinstance(samples.x, Tensor)
    if isinstance(shape, dict) and isinstance(task.shape, Mapping) and shape.keys() != task.shape.keys():
        raise DataError(f"{where} are {', '.join(shape)}, the task's are {', '.join(task.shape)}")
    if isinstance(shape, dict) != isinstance(task.shape, Mapping) or (alone and shape != task.shape):
        raise DataError(f"{where} have shape {shape}, the task's is {task.shape}")
    codes = codes_in(samples.x, samples.scale is not None)
    for name, array in parts(samples.x).items():
        place = where if alone else f"{where} {name!r}"
        own, wanted = tuple(array.shape[1:]), task.shapes[name]
        if own != wanted:
            raise DataError(f"{place} have shape {own}, the task's is {wanted}")
        if (name in codes) != (name in task.codes):
            expected = "int32 or int64 without a scale" if name in task.codes else "floats or uint8"
            raise DataError(f"{place} are {array.dtype}; expected {expected}, as the task's and other clients' are")
        if samples.scale is not None and (alone or array.dtype == torch.uint8):
            samples.scale.check(wanted[0] if len(wanted) > 1 else 1, f"client {id!r}: the scale of {part} inputs")
        # Clients usually share one array: looking for NaN in it once is enough.
        stored = (array.data_ptr(), array.numel())
        if array.is_floating_point() and stored not in checked:
            checked.add(stored)
            if not bool(torch.isfinite(array).all()):
                raise DataError(f"{place} hold NaN or infinite values")


def _check_targets(where: str, targets: Tensor, task: Task) -> None:
    shape = tuple(targets.shape[1:])
    if shape != task.target_shape:
        raise DataError(f"{where} targets have shape {shape}, those of a {task.kind} task {task.target_shape}")
    if task.kind == "regression":
        if not targets.is_floating_point() or not bool(torch.isfinite(targets).all()):
            raise DataError(f"{where} targets must be finite numbers of a floating type, got {targets.dtype}")
        return
    if targets.dtype != torch.int64:
        raise DataError(f"{where} labels must be int64, got {targets.dtype}")
    if len(targets) and (int(targets.min()) < 0 or int(targets.max()) >= task.classes):
        raise DataError(
            f"{where} labels run from {int(targets.min())} to {int(targets.max())}, expected 0 to {task.classes - 1}"
        )
