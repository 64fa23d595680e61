"""Checks and conversion of users' arrays; errors name the argument or the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import DataError
from fedkin.federation.inputs import Inputs

__all__ = ["as_inputs", "as_names", "as_numpy", "as_parts", "check_count", "check_ids", "first_not_finite"]

_KEPT = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float64))
_CODES = (np.dtype(np.int32), np.dtype(np.int64))


def as_numpy(values: Any, where: str) -> npt.NDArray[Any]:
    """`values` (array, tensor on any device, nested lists) as a numpy array; raises DataError."""
    try:
        if isinstance(values, Tensor):
            return np.asarray(values.detach().cpu().numpy())
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{where}: expected one array, got {type(values).__name__} ({said})") from None


def as_inputs(values: Any, where: str, codes: bool = False, least: int = 2) -> Tensor:
    """[N, ...] numbers as a tensor: uint8, float32 and float64 keep their type, other numbers become float32.

    codes: int32 and int64 keep theirs, too: they are token ids or category codes. least: number of dimensions.

    The array is copied only if necessary. NaN passes: see `first_not_finite`. Raises DataError.
    """
    array = as_numpy(values, where)
    if array.dtype.kind not in "buif":
        raise DataError(f"{where}: expected numbers, got dtype {array.dtype}")
    if array.ndim < least or 0 in array.shape:
        raise DataError(f"{where}: expected shape [N, ...] with at least one sample, got {list(array.shape)}")
    native = array.dtype.newbyteorder("=")
    # torch refuses negative strides, and warns about memory that is read-only.
    kept = _KEPT + _CODES if codes else _KEPT
    array = np.ascontiguousarray(array.astype(native if native in kept else np.float32, copy=False))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_parts(values: Any, where: str) -> Inputs:
    """[N, ...] numbers, or a dict of such arrays [N] or [N, ...] (booleans stay booleans there). Raises DataError."""
    if not isinstance(values, Mapping):
        return as_inputs(values, where, codes=True)
    made: dict[str, Tensor] = {}
    for name, entry in values.items():
        place = f"{where}[{name!r}]"
        if not isinstance(name, str):
            raise DataError(f"{place}: the arrays of a dict are named by text")
        array = as_numpy(entry, place)
        made[name] = as_inputs(array, place, codes=True, least=1)
        if array.dtype == np.bool_:
            made[name] = made[name].bool()
    if not made:
        raise DataError(f"{where}: a dict without a single array; expected at least one")
    counts = {name: len(part) for name, part in made.items()}
    first = next(iter(counts))
    for name, count in counts.items():
        if count != counts[first]:
            raise DataError(f"{where}[{name!r}]: {count} rows, {where}[{first!r}] has {counts[first]}")
    return made


def as_names(values: Any, where: str, count: int) -> npt.NDArray[np.str_]:
    """[count] texts or whole numbers as texts; raises DataError."""
    array = as_numpy(values, where)
    check_count(array, where, count)
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{where}: expected texts or whole numbers, got bytes that are not UTF-8") from None
    if array.dtype.kind == "O":
        for item in array:
            if isinstance(item, bool) or not isinstance(item, str | int | np.integer):
                raise DataError(f"{where}: expected texts or whole numbers, got {item!r}")
    elif array.dtype.kind not in "Uiu":
        raise DataError(f"{where}: expected texts or whole numbers, got dtype {array.dtype}")
    return array.astype(np.str_)


def check_count(array: npt.NDArray[Any], where: str, count: int) -> None:
    """Raise DataError unless the array is [count]."""
    if array.shape != (count,):
        raise DataError(f"{where}: expected shape [{count}], one value per sample, got {list(array.shape)}")


def check_ids(ids: Iterable[str], where: str) -> None:
    """Raise DataError for a client id that is empty, not printable, or has spaces around it."""
    for id in ids:
        if not id or id != id.strip() or not id.isprintable():
            raise DataError(f"{where}: expected printable ids without spaces around them, got {id!r}")


def first_not_finite(x: Tensor) -> int | None:
    """The first row that holds NaN or an infinite value, or None."""
    if not x.is_floating_point() or bool(torch.isfinite(x).all()):
        return None
    return int(torch.nonzero(~torch.isfinite(x))[0, 0])
