"""`Federation.from_datasets`: clients from torch Datasets and DataLoaders, each read once into arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from fedkin.errors import DataError
from fedkin.federation.arrays import as_parts, first_not_finite, hold_out, targets_of
from fedkin.federation.inputs import Inputs, joined, parts, shape_of
from fedkin.federation.samples import Client, Samples, Scale
from fedkin.tasks import Kind, Task
from fedkin.untrusted import said

# Names of the target where a sample is a dict, unless another is given.
_TARGETS = ("labels", "label", "target", "y")
# Names of the arrays of a client where its inputs are one array, and of its targets.
_INPUT, _TARGET = "its input", "its target"
Arrays = dict[str, npt.NDArray[Any]]


def clients_of_datasets(
    datasets: Mapping[str, Any], group: Mapping[str, str] | None, target: str | None, test_fraction: float,
    classes: int | None, scale: Scale | None, limit_gb: float | None, seed: int, kind: Kind,
) -> tuple[list[Client], Task]:  # fmt: skip
    """See `Federation.from_datasets`. Raises DataError naming client and sample."""
    if not isinstance(datasets, Mapping) or not datasets:
        raise DataError(
            'datasets: expected {"client": dataset or loader or (train, test), ...} with at least one client'
        )
    reader = _Reader(target, _half_of_memory() if limit_gb is None else limit_gb * 1e9)
    inputs: dict[str, Inputs] = {}
    targets, held = dict[str, npt.NDArray[Any]](), dict[str, npt.NDArray[np.bool_]]()
    for id, given in datasets.items():
        splits = {"": given}
        if isinstance(given, tuple) and len(given) == 2:
            splits = {"train ": given[0], "test ": given[1]}
        read = [reader.read(data, f"client {id!r}: {split}") for split, data in splits.items()]
        x = [as_parts(each, f"client {id!r}: inputs") for each, _ in read]
        y = [each for _, each in read]
        if shape_of(x[0]) != shape_of(x[-1]):
            raise DataError(f"client {id!r}: train inputs have shape {shape_of(x[0])}, test inputs {shape_of(x[-1])}")
        inputs[id] = joined(x)
        for name, part in parts(inputs[id]).items():
            bad = first_not_finite(part)
            if bad is not None:
                raise DataError(f"client {id!r}: sample {bad}: {name} holds NaN or an infinite value")
        if len({each.shape[1:] for each in (*y, *targets.values())}) > 1:
            raise DataError(f"client {id!r}: targets of unlike shapes, within it or beside the clients before it")
        targets[id] = np.concatenate(y)
        count = len(targets[id])
        held[id] = np.arange(count) >= len(y[0]) if len(y) == 2 else hold_out(np.full(count, id), test_fraction, seed)
    owner = np.repeat(np.array(list(targets), np.str_), [len(y) for y in targets.values()])
    shape = shape_of(next(iter(inputs.values())))
    task, every = targets_of(np.concatenate(list(targets.values())), owner, classes, kind, shape)
    clients, start = [], 0
    for id, test in held.items():
        stored = torch.from_numpy(every[start : start + len(test)])
        start += len(test)
        of_bytes = any(part.dtype == torch.uint8 for part in parts(inputs[id]).values())
        whole = Samples(inputs[id], stored, torch.arange(len(test)), (scale or Scale()) if of_bytes else scale)
        train, tested = whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))
        clients.append(Client(id, train, tested, (group or {}).get(id)))
    return clients, task


def picture(image: Any) -> npt.NDArray[Any]:
    """[1 or 3, height, width] of a Pillow image: grey images have one channel, all others three colours.

    Bytes; greys of 16 or 32 bits and floats are float32, as they are.
    """
    if image.mode.startswith(("I", "F")):
        return np.asarray(image).astype(np.float32)[None]
    grey = image.mode in ("1", "L")
    held = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return held[None] if grey else np.ascontiguousarray(held.transpose(2, 0, 1))


def _half_of_memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    except (AttributeError, OSError, ValueError):  # not every system says
        return 8e9


class _Reader:
    """Reads datasets into arrays. target: its name where samples are dicts. limit: bytes that all may take."""

    def __init__(self, target: str | None, limit: float) -> None:
        self.target, self.limit, self.taken = target, limit, 0

    def read(self, data: Any, where: str) -> tuple[Any, npt.NDArray[Any]]:
        """(x, y) as arrays, read once and in order."""
        if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
            rows = torch.as_tensor(list(data.indices), dtype=torch.int64)
            data = TensorDataset(*(tensor[rows] for tensor in data.dataset.tensors))
        batched = isinstance(data, DataLoader)
        if type(data) is TensorDataset and len(data.tensors) == 2 and len(data):
            # All samples as one batch.
            data, batched = [data.tensors], True
        try:
            items = iter(_in_order(data)) if isinstance(data, DataLoader) else _samples(data)
        except TypeError:
            raise DataError(
                f"{where}expected a torch Dataset, a DataLoader, a list of samples, or (train, test); "
                f"got {type(data).__name__}"
            ) from None
        read = dict[str, list[npt.NDArray[Any]]]()
        rows_read = 0
        while True:
            place = f"{where}sample {rows_read}"
            try:
                item = next(items)
            except StopIteration:
                break
            except Exception as error:  # the dataset is the user's code
                raise DataError(f"{place}: {type(error).__name__}: {said(error)}") from None
            arrays = self._arrays(item, place, batched)
            size = sum(array.nbytes for array in arrays.values())
            # The first sample says what all will take.
            expected = len(data) if not read and not batched and hasattr(data, "__len__") else 1
            self._check_room(size * expected, place)
            self.taken += size
            _add(read, arrays, place)
            rows_read += len(arrays[_TARGET])
        if not rows_read:
            raise DataError(f"{where}no samples")
        made = {name: np.concatenate(values) for name, values in read.items()}
        y = made.pop(_TARGET)
        return made.get(_INPUT, made), y

    def _check_room(self, size: int, place: str) -> None:
        if self.taken + size > self.limit:
            raise DataError(
                f"{place}: the samples up to this one take {(self.taken + size) / 1e9:.2f} GB, more than limit_gb = "
                f"{self.limit / 1e9:.2f}; give fewer or smaller samples (resize images in the dataset, keep bytes), or "
                "raise limit_gb"
            )

    def _arrays(self, item: Any, place: str, batched: bool) -> Arrays:
        """The inputs and the target of a sample, or of a batch of them."""
        x, y = _apart(item, place, self.target)
        entries = {str(name): value for name, value in x.items()} if isinstance(x, Mapping) else {_INPUT: x}
        return {name: _array(value, place, batched) for name, value in {**entries, _TARGET: y}.items()}


def _add(read: dict[str, list[npt.NDArray[Any]]], arrays: Arrays, place: str) -> None:
    """Add a sample, or a batch, whose arrays must be like those before."""
    if read and arrays.keys() != read.keys():
        raise DataError(f"{place}: has {', '.join(arrays)}, the samples before have {', '.join(read)}")
    rows = len(arrays[_TARGET])
    for name, array in arrays.items():
        before = read.setdefault(name, [])
        if len(array) != rows:
            raise DataError(f"{place}: {len(array)} inputs and {rows} targets in one batch")
        if before and array.shape[1:] != before[0].shape[1:]:
            raise DataError(
                f"{place}: {name} has shape {list(array.shape[1:])}, those before have {list(before[0].shape[1:])}; "
                "resize or pad samples to one shape in the dataset, or in the loader's collate_fn"
            )
        before.append(array)


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader without shuffling and without leaving a last batch out, so that every sample comes, in order."""
    if loader.batch_size is None or not (isinstance(loader.sampler, RandomSampler) or loader.drop_last):
        return loader
    if isinstance(loader.sampler, RandomSampler) and loader.sampler.replacement:
        return loader
    sampler = None if isinstance(loader.sampler, RandomSampler) else loader.sampler
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn)


def _samples(data: Any) -> Iterator[Any]:
    """Samples of a dataset, also of one that has only __len__ and __getitem__ and does not end by itself."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str | bytes):
        return (data[row] for row in range(len(data)))
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        raise TypeError
    return iter(data)


def _apart(item: Any, place: str, target: str | None) -> tuple[Any, Any]:
    """(inputs, target) of a sample or batch: a pair, or a dict in which the target has a name."""
    if isinstance(item, Mapping):
        name = target if target is not None else next((name for name in _TARGETS if name in item), None)
        if name is None or name not in item:
            has = ", ".join(map(str, item)) or "nothing"
            raise DataError(
                f"{place}: no {target or ' or '.join(_TARGETS)!r} in it, only {has}; name the target: target=..."
            )
        rest = {key: value for key, value in item.items() if key != name}
        return (next(iter(rest.values())) if len(rest) == 1 else rest), item[name]
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        got = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sequence) else type(item).__name__
        raise DataError(f"{place}: expected (input, target), or a dict of inputs and target, got {got}")
    return item[0], item[1]


def _array(value: Any, place: str, batch: bool) -> npt.NDArray[Any]:
    """[rows, ...] the values of one sample, or of a batch, in their own type: whole numbers stay whole numbers."""
    if isinstance(value, Tensor):
        held: npt.NDArray[Any] = value.detach().cpu().numpy()
    elif hasattr(value, "convert") and hasattr(value, "mode"):
        held = picture(value)
    else:
        try:
            held = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{place}: expected numbers in one array ({said(error)})") from None
    if held.dtype.kind not in "buif":
        raise DataError(f"{place}: expected numbers, a tensor or a picture, got {type(value).__name__}")
    # Python's own numbers are of 64 bits, which nothing here needs.
    if held.dtype == np.float64 and not isinstance(value, Tensor | np.ndarray):
        held = held.astype(np.float32)
    return held if batch else held[None]
