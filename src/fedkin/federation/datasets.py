"""`Federation.from_datasets`: clients from torch Datasets and DataLoaders, each read once into arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from fedkin.errors import DataError
from fedkin.federation.arrays import as_parts, first_not_finite, targets_of
from fedkin.federation.inputs import Inputs, joined, parts, shape_of
from fedkin.federation.samples import Client, Samples, Scale
from fedkin.federation.split import hold_out
from fedkin.tasks import Kind, Task
from fedkin.untrusted import said

__all__ = ["clients_of_datasets", "picture"]

# Names of the target where a sample is a dict, unless another is given.
_TARGETS = ("labels", "label", "target", "y")
_LONE = ""


@dataclass(eq=False)
class _Room:
    """Bytes that may still be taken."""

    most: float
    taken: int = 0

    def take(self, bytes: int, where: str, count: int | None = None) -> None:
        """Count these bytes, and refuse more than there is room for; count: the samples of this size, if known."""
        if self.taken + bytes * (count or 1) > self.most:
            need = f"{(self.taken + bytes * (count or 1)) / 1e9:.2f}"
            raise DataError(
                f"{where}: the samples up to this one take {need} GB, more than limit_gb = {self.most / 1e9:.2f}; give "
                "fewer or smaller samples (resize images in the dataset, keep bytes), or raise limit_gb"
            )
        if count is None:
            self.taken += bytes


@dataclass(eq=False)
class _Collected:
    """Samples of one client: values of each input, by name ("" if it is one alone), and targets."""

    x: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    y: list[npt.NDArray[Any]] = field(default_factory=list)
    rows: int = 0

    def arrays(self) -> tuple[Any, npt.NDArray[Any]]:
        """(x, y) as arrays with a row for each sample."""
        made = {name: np.concatenate(each) for name, each in self.x.items()}
        return made.get(_LONE, made), np.concatenate(self.y)


def clients_of_datasets(
    datasets: Mapping[str, Any], group: Mapping[str, str] | None, target: str | None, test_fraction: float,
    classes: int | None, scale: Scale | None, limit_gb: float | None, seed: int, kind: Kind,
) -> tuple[list[Client], Task]:  # fmt: skip
    """See `Federation.from_datasets`. Raises DataError naming client and sample."""
    if not isinstance(datasets, Mapping) or not datasets:
        raise DataError(
            'datasets: expected {"client": dataset or loader or (train, test), ...} with at least one client'
        )
    room = _Room(_half_of_memory() if limit_gb is None else limit_gb * 1e9)
    inputs: dict[str, Inputs] = {}
    targets, owner, held = [], [], []
    for id, given in datasets.items():
        pair = given if isinstance(given, tuple) and len(given) == 2 else None
        words = [f"client {id!r}: {split}" for split in (("train ", "test ") if pair else ("",))]
        read = [_read(one, where, target, room) for one, where in zip(pair or (given,), words, strict=True)]
        each = [as_parts(x, f"{where}inputs") for (x, _), where in zip(read, words, strict=True)]
        if shape_of(each[0]) != shape_of(each[-1]):
            raise DataError(f"{words[0]}inputs have shape {shape_of(each[0])}, test inputs {shape_of(each[-1])}")
        inputs[id] = joined(each)
        for name, part in parts(inputs[id]).items():
            bad = first_not_finite(part)
            if bad is not None:
                raise DataError(f"client {id!r}: sample {bad}: {name} holds NaN or an infinite value")
        targets += [y for _, y in read]
        count = [len(y) for _, y in read]
        owner += [id] * sum(count)
        names = np.full(sum(count), id)
        held.append(np.arange(sum(count)) >= count[0] if pair else hold_out(names, test_fraction, seed))
    first = shape_of(next(iter(inputs.values())))
    task, y = targets_of(_one(targets, list(datasets)), np.array(owner, np.str_), classes, kind, first)
    made, start = [], 0
    for id, test in zip(datasets, held, strict=True):
        stored, bytes = torch.from_numpy(y[start : start + len(test)]), _bytes_in(inputs[id])
        start += len(test)
        whole = Samples(inputs[id], stored, torch.arange(len(test)), (scale or Scale()) if bytes or scale else None)
        own = (group or {}).get(id)
        made.append(Client(id, whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test)), own))
    return made, task


def picture(image: Any) -> npt.NDArray[Any]:
    """[1 or 3, height, width] of a Pillow image: grey images have one channel, all others three colours.

    Bytes; greys of 16 or 32 bits and floats are float32, as they are.
    """
    if image.mode.startswith(("I", "F")):
        return np.asarray(image).astype(np.float32)[None]
    grey = image.mode in ("1", "L")
    held = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return held[None] if grey else np.ascontiguousarray(held.transpose(2, 0, 1))


def _one(targets: Sequence[npt.NDArray[Any]], ids: Sequence[str]) -> npt.NDArray[Any]:
    shapes = {y.shape[1:] for y in targets}
    if len(shapes) > 1:
        raise DataError(f"datasets: targets of unlike shapes, {sorted(shapes)}, among clients {', '.join(ids[:8])}")
    return np.concatenate(targets)


def _bytes_in(x: Inputs) -> bool:
    return any(part.dtype == torch.uint8 for part in parts(x).values())


def _half_of_memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    except (AttributeError, OSError, ValueError):  # not every system says
        return 8e9


def _read(data: Any, where: str, target: str | None, room: _Room) -> tuple[Any, npt.NDArray[Any]]:
    """(x, y) as arrays, read once and in order."""
    if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        rows = torch.as_tensor(list(data.indices), dtype=torch.int64)
        data = TensorDataset(*(tensor[rows] for tensor in data.dataset.tensors))
    if type(data) is TensorDataset and len(data.tensors) == 2:
        x, y = (tensor.detach().cpu().numpy() for tensor in data.tensors)
        room.take(x.nbytes + y.nbytes, f"{where}sample {len(y) - 1}")
        if not len(y):
            raise DataError(f"{where}no samples")
        return x, y
    held = _Collected()
    try:
        batches = isinstance(data, DataLoader)
        items = iter(_in_order(data)) if batches else _samples(data)
    except TypeError:
        raise DataError(
            f"{where}expected a torch Dataset, a DataLoader, a list of samples, or (train, test); "
            f"got {type(data).__name__}"
        ) from None
    while True:
        place = f"{where}sample {held.rows}"
        try:
            item = next(items)
        except StopIteration:
            break
        except Exception as error:  # the dataset is the user's code
            raise DataError(f"{place}: {type(error).__name__}: {said(error)}") from None
        _add(held, item, place, target, room, batches, None if batches else _length(data))
    if not held.rows:
        raise DataError(f"{where}no samples")
    return held.arrays()


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


def _length(data: Any) -> int | None:
    return len(data) if hasattr(data, "__len__") else None


def _add(
    held: _Collected, item: Any, place: str, target: str | None, room: _Room, batch: bool, count: int | None
) -> None:
    """Add a sample, or a batch of them."""
    x, y = _apart(item, place, target)
    entries = {
        str(name): _array(value, place, batch) for name, value in (x if isinstance(x, Mapping) else {_LONE: x}).items()
    }
    answer = _array(y, place, batch)
    rows = len(answer)
    size = answer.nbytes + sum(entry.nbytes for entry in entries.values())
    if not held.rows and count:
        # The first sample says what all will take.
        room.take(size, place, count)
    room.take(size, place)
    if held.rows and entries.keys() != held.x.keys():
        raise DataError(f"{place}: has {_named(entries)}, the samples before have {_named(held.x)}")
    for name, entry in entries.items():
        known = held.x.setdefault(name, [])
        if len(entry) != rows:
            raise DataError(f"{place}: {len(entry)} inputs and {rows} targets in one batch")
        _alike(entry, known, f"{place}: {name or 'its input'}")
        known.append(entry)
    _alike(answer, held.y, f"{place}: its target")
    held.y.append(answer)
    held.rows += rows


def _named(entries: Mapping[str, Any]) -> str:
    return ", ".join(name or "one array" for name in entries)


def _alike(entry: npt.NDArray[Any], known: Sequence[npt.NDArray[Any]], where: str) -> None:
    if known and entry.shape[1:] != known[0].shape[1:]:
        raise DataError(
            f"{where} has shape {list(entry.shape[1:])}, those before have {list(known[0].shape[1:])}; resize or pad "
            "samples to one shape in the dataset, or in the loader's collate_fn"
        )


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
        raise DataError(f"{place}: expected (input, target), or a dict of inputs and target, got {_what(item)}")
    return item[0], item[1]


def _what(item: Any) -> str:
    return f"{type(item).__name__} of {len(item)}" if isinstance(item, Sequence) else type(item).__name__


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
