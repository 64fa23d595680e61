"""`Federation.from_datasets`: clients from torch Datasets and DataLoaders, each read once into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from fedkin.errors import DataError
from fedkin.federation.arrays import clients_of, hold_out
from fedkin.federation.samples import Client, Scale
from fedkin.tasks import Kind, Task
from fedkin.untrusted import error_text

# Default names of the target in samples that are dicts.
_TARGETS = ("labels", "label", "target", "y")
# Names of a client's array of inputs, if there is only one, and of its array of targets.
_INPUT, _TARGET = "its input", "its target"


def clients_of_datasets(
    datasets: Mapping[str, Any], group: Mapping[str, str] | None, target: str | None, test_fraction: float,
    classes: int | None, scale: Scale | None, seed: int, kind: Kind,
) -> tuple[list[Client], Task]:  # fmt: skip
    """Return the clients and the task of `Federation.from_datasets`.

    Raises DataError naming client and sample.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        expected = '{"client": dataset or loader or (train, test), ...} with at least one client'
        raise DataError(f"datasets: expected {expected}")
    reader = _Reader(target)
    owner, is_test = list[str](), list[npt.NDArray[np.bool_]]()
    for id, dataset in datasets.items():
        is_test.append(_read_client(reader, id, dataset, test_fraction, seed))
        owner += [id] * len(is_test[-1])
    arrays = {name: np.concatenate(values) for name, values in reader.arrays.items()}
    y = arrays.pop(_TARGET)
    if scale is None and any(array.dtype == np.uint8 for array in arrays.values()):
        scale = Scale()
    split = np.where(np.concatenate(is_test), "test", "train")
    clients, task = clients_of(arrays.get(_INPUT, arrays), y, owner, None, split, 0, classes, scale, seed, kind)
    return [replace(client, group=(group or {}).get(client.id)) for client in clients], task


def _read_client(reader: _Reader, id: str, dataset: Any, test_fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Read a client's samples; return which of them are test samples."""
    if isinstance(dataset, tuple) and len(dataset) == 2:
        first = reader.read(dataset[0], f"client {id!r}: train ")
        return np.arange(first + reader.read(dataset[1], f"client {id!r}: test ")) >= first
    return hold_out(np.full(reader.read(dataset, f"client {id!r}: "), id), test_fraction, seed)


def picture(image: Any) -> npt.NDArray[Any]:
    """[1 or 3, height, width] of a Pillow image: grey images have one channel, all others three colours.

    The array is uint8; greys of 16 or 32 bits and floats become float32 with unchanged values.
    """
    if image.mode.startswith(("I", "F")):
        return np.asarray(image).astype(np.float32)[None]
    grey = image.mode in ("1", "L")
    pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


class _Reader:
    """Reads datasets into an array per input and one of targets. target: its name in samples that are dicts."""

    def __init__(self, target: str | None) -> None:
        self.target = target
        self.arrays = dict[str, list[npt.NDArray[Any]]]()

    def read(self, data: Any, where: str) -> int:
        """Add the samples of a dataset, in order; returns their number."""
        batched = isinstance(data, DataLoader)
        if type(data) is TensorDataset and len(data.tensors) == 2 and len(data):
            # All samples as one batch.
            data, batched = [data.tensors], True
        try:
            items = iter(_in_order(data)) if isinstance(data, DataLoader) else _samples(data)
        except TypeError:
            expected = "a torch Dataset, a DataLoader, a list of samples, or (train, test)"
            raise DataError(f"{where}expected {expected}; got {type(data).__name__}") from None
        count = 0
        while True:
            try:
                item = next(items)
            except StopIteration:
                break
            except Exception as error:  # the dataset is the user's code
                raise DataError(f"{where}sample {count}: {type(error).__name__}: {error_text(error)}") from None
            count += self._add(item, where, count, batched)
        if not count:
            raise DataError(f"{where}no samples")
        return count

    def _add(self, item: Any, where: str, row: int, batched: bool) -> int:
        """Add a sample or a batch, which must have the same form as earlier ones; returns its number of samples."""
        place = f"{where}sample {row}"
        x, y = _input_and_target(item, place, self.target)
        entries = {str(name): value for name, value in x.items()} if isinstance(x, Mapping) else {_INPUT: x}
        arrays = {name: _array(value, place, batched) for name, value in {**entries, _TARGET: y}.items()}
        if self.arrays and arrays.keys() != self.arrays.keys():
            raise DataError(f"{place}: has {', '.join(arrays)}, the samples before have {', '.join(self.arrays)}")
        count = len(arrays[_TARGET])
        for name, array in arrays.items():
            before = self.arrays.setdefault(name, [array[:0]])
            if len(array) != count:
                raise DataError(f"{place}: {len(array)} inputs and {count} targets in one batch")
            if array.shape[1:] != before[0].shape[1:]:
                shapes = f"{list(array.shape[1:])}, those before have {list(before[0].shape[1:])}"
                how = "resize or pad samples to one shape in the dataset, or in the loader's collate_fn"
                raise DataError(f"{place}: {name} has shape {shapes}; {how}")
            if not np.isfinite(array).all():
                bad = row + int(np.flatnonzero(~np.isfinite(array.reshape(count, -1)).all(1))[0])
                raise DataError(f"{where}sample {bad}: {name} holds NaN or an infinite value")
            before.append(array)
        return count


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader without shuffling and without dropping the last batch, so that it returns every sample, in order."""
    sampler: Any = loader.sampler
    if isinstance(sampler, RandomSampler):
        if sampler.replacement:
            return loader
        sampler = None
    if loader.batch_size is None or not (sampler is None or loader.drop_last):
        return loader
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn)


def _samples(data: Any) -> Iterator[Any]:
    """Iterate over a dataset; one with __len__ and __getitem__ ends after __len__, since it may not end by itself."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str | bytes):
        return (data[row] for row in range(len(data)))
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        raise TypeError
    return iter(data)


def _input_and_target(item: Any, place: str, target: str | None) -> tuple[Any, Any]:
    """(inputs, target) of a sample or batch: a pair, or a dict in which the target has a name."""
    if isinstance(item, Mapping):
        return _split_dict(item, place, target)
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        got = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sequence) else type(item).__name__
        raise DataError(f"{place}: expected (input, target), or a dict of inputs and target, got {got}")
    return item[0], item[1]


def _split_dict(item: Mapping[Any, Any], place: str, target: str | None) -> tuple[Any, Any]:
    names = [name for name in (_TARGETS if target is None else (target,)) if name in item]
    if not names:
        lacks, has = target or " or ".join(_TARGETS), ", ".join(map(str, item)) or "nothing"
        raise DataError(f"{place}: no {lacks!r} in it, only {has}; name the target: target=...")
    rest = {key: value for key, value in item.items() if key != names[0]}
    return (next(iter(rest.values())) if len(rest) == 1 else rest), item[names[0]]


def _array(value: Any, place: str, batch: bool) -> npt.NDArray[Any]:
    """[rows, ...] the values of one sample, or of a batch, in their own type: whole numbers stay whole numbers."""
    if isinstance(value, Tensor):
        array: npt.NDArray[Any] = value.detach().cpu().numpy()
    elif hasattr(value, "convert") and hasattr(value, "mode"):
        array = picture(value)
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"{place}: expected numbers in one array ({error_text(error)})") from None
    if array.dtype.kind not in "buif":
        raise DataError(f"{place}: expected numbers, a tensor or a picture, got {type(value).__name__}")
    # Python's floats have 64 bits, but 32 are enough here.
    if array.dtype == np.float64 and not isinstance(value, Tensor | np.ndarray):
        array = array.astype(np.float32)
    return array if batch else array[None]
