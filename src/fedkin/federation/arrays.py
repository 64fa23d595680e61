"""`Federation.from_arrays` and `from_datasets`: clients from users' arrays and torch datasets, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from fedkin.errors import ConfigError, DataError
from fedkin.federation.inputs import Inputs, parts, shape_of
from fedkin.federation.samples import Client, Samples, Scale
from fedkin.keys import rng
from fedkin.tasks import Kind, Shape, Task
from fedkin.untrusted import error_text

Names = npt.NDArray[np.str_]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def clients_of(
    x: Any, y: Any, client: Any, group: Any, split: Any, test_fraction: float, classes: int | None,
    scale: Scale | None, seed: int, kind: Kind, person: Ints | None = None, time: Floats | None = None,
) -> tuple[list[Client], Task]:  # fmt: skip
    """Return the clients and the task of `Federation.from_arrays`, in the order of first samples; x is not copied.

    person, time: [N] as in `Samples`.
    Raises DataError naming the argument, and the client if the error concerns one client.
    """
    inputs = as_parts(x)
    entries = parts(inputs)
    count = len(next(iter(entries.values())))
    owner, rows, groups = owners(client, group, count)
    for name, part in entries.items():
        where = "x" if part is inputs else f"x[{name!r}]"
        need_finite(part, where, owner)
    task, targets = targets_of(y, owner, classes, kind, shape_of(inputs))
    is_test = hold_out(owner, test_fraction, seed) if split is None else which_test(split, "split", count)
    persons, times = (None if each is None else torch.from_numpy(each) for each in (person, time))
    every = Samples(inputs, torch.from_numpy(targets), None, scale, persons, times)
    clients = [
        Client(id, every.take(own[~is_test[own]]), every.take(own[is_test[own]]), groups.get(id))
        for id, own in rows.items()
    ]
    return clients, task


def owners(client: Any, group: Any, count: int) -> tuple[Names, dict[str, Ints], dict[str, str]]:
    """(each sample's client, the rows of each client, each client's planted group or {}); raises DataError."""
    owner = as_names(client, "client", count)
    rows = rows_by_name(owner)
    check_ids(rows, "client")
    return owner, rows, {} if group is None else group_of_each(rows, as_names(group, "group", count), "group")


def group_of_each(rows: Mapping[str, Ints], group: Names, where: str) -> dict[str, str]:
    """The planted group of every client; raises DataError naming a client whose samples state two groups."""
    groups = {}
    for id, client_rows in rows.items():
        groups[id], *others = np.unique(group[client_rows]).tolist()
        if others:
            raise DataError(f"{where}: client {id!r} is in {groups[id]!r} and in {others[0]!r}; expected one group")
    return groups


def which_test(split: Any, where: str, count: int) -> Flags:
    """Which samples are test samples; raises DataError for anything but "train" and "test"."""
    names = as_names(split, where, count)
    if odd := set(names.tolist()) - {"train", "test"}:
        raise DataError(f"{where}: expected 'train' or 'test' for every sample, got {min(odd)!r}")
    return np.asarray(names == "test")


def need_finite(values: Tensor, where: str, owner: Names | None) -> None:
    """Raise DataError for values that are not finite with 32 bits, naming the first such row and its client."""
    if values.is_floating_point() and not is_finite(values):
        row = int(torch.nonzero(~torch.isfinite(values.float()))[0, 0])
        whose = "" if owner is None else f", of client {str(owner[row])!r},"
        what = "NaN or an infinite value (with 32 bits)"
        raise DataError(f"{where}: row {row}{whose} holds {what}; expected finite numbers")


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite with the 32 bits of a net."""
    return bool(torch.isfinite(values.float()).all())


def targets_of(y: Any, owner: Names, classes: int | None, kind: Kind, shape: Shape) -> tuple[Task, npt.NDArray[Any]]:
    """(the task, the targets in its type and shape); owner: [N] the client that errors name. Raises DataError."""
    if kind == "regression":
        if classes is not None:
            raise DataError(f"classes: {classes}, but a regression task has none; leave it out")
        table = _numbers(y, owner)
        return Task.regression(table.shape[1], shape), table
    if kind == "segmentation":
        count, labels = _pixel_labels(y, owner, classes, shape)
        return Task(max(count, 2), shape, kind), labels
    count, labels = _labels(y, owner, 2 if kind == "risk" and classes is None else classes)
    return Task(count, shape, kind), labels


def _numbers(y: Any, owner: Names) -> npt.NDArray[Any]:
    """[N, targets] numbers of a floating type."""
    array, n = as_numpy(y, "y"), len(owner)
    if array.dtype.kind not in "buif" or array.ndim not in (1, 2) or len(array) != n:
        raise DataError(f"y: expected numbers [{n}] or [{n}, targets], got {array.dtype} {list(array.shape)}")
    table = array.reshape(n, -1).astype(np.float64 if array.dtype == np.float64 else np.float32)
    need_finite(torch.from_numpy(table), "y", owner)
    return table


def _pixel_labels(y: Any, owner: Names, classes: int | None, shape: Shape) -> tuple[int, Ints]:
    """(number of classes, [N, height, width] labels below that)."""
    array = as_numpy(y, "y")
    if isinstance(shape, Mapping):
        raise DataError("x: segmentation needs images [N, channels, height, width] in one array, got a dict")
    if array.dtype.kind not in "bui" or array.shape != (len(owner), *shape[1:]) or len(shape) != 3:
        expected = f"whole numbers {[len(owner), *shape[1:]]} for images x [N, channels, height, width]"
        raise DataError(f"y: expected {expected}, got {array.dtype} {list(array.shape)}")
    # The labels of pixels have the same rules as the labels of samples.
    count, labels = _labels(array.reshape(-1), np.repeat(owner, max(array[0].size, 1)), classes)
    return count, labels.reshape(array.shape)


def _labels(y: Any, owner: Names, classes: int | None) -> tuple[int, Ints]:
    """(number of classes, [N] labels below that)."""
    array = as_numpy(y, "y")
    check_count(array, "y", len(owner))
    expected = "whole numbers 0..C-1" if classes is None else f"whole numbers 0..{classes - 1}"
    if array.dtype.kind not in "bui":
        raise DataError(f"y: expected {expected}, got dtype {array.dtype}")
    count = int(array.max()) + 1 if classes is None else classes
    wrong = (array < 0) | (array >= count)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"y: row {row}, of client {str(owner[row])!r}, has label {array[row]}; expected {expected}")
    # The model has one output per label: codes such as 100320 would give a huge head.
    if classes is None and count > 1000 and count > 10 * (values := len(np.unique(array))):
        has = f"labels go up to {count - 1} but take only {values} values; expected {expected}"
        raise DataError(f"y: {has}; if there really are {count} classes, pass classes={count}")
    return count, array.astype(np.int64)


# -- torch Datasets and DataLoaders, each read once into arrays --------------------------------------------------------


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
        location = f"{where}sample {row}"
        x, y = _input_and_target(item, location, self.target)
        entries = {str(name): value for name, value in x.items()} if isinstance(x, Mapping) else {_INPUT: x}
        arrays = {name: _array(value, location, batched) for name, value in {**entries, _TARGET: y}.items()}
        if self.arrays and arrays.keys() != self.arrays.keys():
            raise DataError(f"{location}: has {', '.join(arrays)}, the samples before have {', '.join(self.arrays)}")
        count = len(arrays[_TARGET])
        for name, array in arrays.items():
            before = self.arrays.setdefault(name, [array[:0]])
            if len(array) != count:
                raise DataError(f"{location}: {len(array)} inputs and {count} targets in one batch")
            if array.shape[1:] != before[0].shape[1:]:
                shapes = f"{list(array.shape[1:])}, those before have {list(before[0].shape[1:])}"
                how = "resize or pad samples to one shape in the dataset, or in the loader's collate_fn"
                raise DataError(f"{location}: {name} has shape {shapes}; {how}")
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


def _input_and_target(item: Any, location: str, target: str | None) -> tuple[Any, Any]:
    """(inputs, target) of a sample or batch: a pair, or a dict in which the target has a name."""
    if isinstance(item, Mapping):
        names = [name for name in (_TARGETS if target is None else (target,)) if name in item]
        if not names:
            lacks, has = target or " or ".join(_TARGETS), ", ".join(map(str, item)) or "nothing"
            raise DataError(f"{location}: no {lacks!r} in it, only {has}; name the target: target=...")
        rest = {key: value for key, value in item.items() if key != names[0]}
        return (next(iter(rest.values())) if len(rest) == 1 else rest), item[names[0]]
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        got = f"{type(item).__name__} of {len(item)}" if isinstance(item, Sequence) else type(item).__name__
        raise DataError(f"{location}: expected (input, target), or a dict of inputs and target, got {got}")
    return item[0], item[1]


def _array(value: Any, location: str, batch: bool) -> npt.NDArray[Any]:
    """[rows, ...] the values of one sample, or of a batch, in their own type: whole numbers stay whole numbers."""
    array = picture(value) if hasattr(value, "convert") and hasattr(value, "mode") else as_numpy(value, location)
    if array.dtype.kind not in "buif":
        raise DataError(f"{location}: expected numbers, a tensor or a picture, got {type(value).__name__}")
    # Python's floats have 64 bits, but 32 are enough here.
    if array.dtype == np.float64 and not isinstance(value, Tensor | np.ndarray):
        array = array.astype(np.float32)
    return array if batch else array[None]


# -- checks of arrays; errors name the argument or the file -------------------------------------------------------

_KEPT, _CODES = (np.uint8, np.float32, np.float64), (np.int32, np.int64)


def as_numpy(values: Any, where: str) -> npt.NDArray[Any]:
    """`values` (array, tensor on any device, nested lists) as a numpy array; raises DataError."""
    try:
        if isinstance(values, Tensor):
            return np.asarray(values.detach().cpu().numpy())
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: expected one array, got {type(values).__name__} ({error_text(error)})") from None


def as_inputs(values: Any, where: str, codes: bool = False, least: int = 2) -> Tensor:
    """[N, ...] numbers as a tensor: uint8, float32 and float64 keep their type, other numbers become float32.

    codes: int32 and int64 keep their types, too: they are token ids or category codes. least: the minimum number of
    dimensions.

    The array is copied only if necessary. NaN is not checked here, but by `need_finite`. Raises DataError.
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


def as_parts(values: Any) -> Inputs:
    """[N, ...] numbers, or a dict of such arrays [N] or [N, ...] (booleans stay booleans there). Raises DataError."""
    if not isinstance(values, Mapping):
        return as_inputs(values, "x", codes=True)
    arrays: dict[str, Tensor] = {}
    for name, entry in values.items():
        location = f"x[{name!r}]"
        if not isinstance(name, str):
            raise DataError(f"{location}: the arrays of a dict are named by text")
        array = as_numpy(entry, location)
        arrays[name] = as_inputs(array, location, codes=True, least=1)
        if array.dtype == np.bool_:
            arrays[name] = arrays[name].bool()
    if not arrays:
        raise DataError("x: a dict without a single array; expected at least one")
    first = next(iter(arrays))
    for name, part in arrays.items():
        if len(part) != len(arrays[first]):
            raise DataError(f"x[{name!r}]: {len(part)} rows, x[{first!r}] has {len(arrays[first])}")
    return arrays


def need_no_nul(values: Iterable[Any], where: str) -> None:
    """Raise DataError for a text that ends in NUL, which numpy would cut off, so that two names become one."""
    if odd := next((value for value in values if isinstance(value, str) and value.endswith("\0")), ""):
        raise DataError(f"{where}: {odd!r} ends in NUL, a control character; expected printable text: remove it")


def as_names(values: Any, where: str, count: int) -> Names:
    """[count] texts or whole numbers as texts; raises DataError."""
    array, expected = as_numpy(values, where), f"{where}: expected texts or whole numbers"
    check_count(array, where, count)
    need_no_nul(values if isinstance(values, list | tuple) else array if array.dtype.kind == "O" else (), where)
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{expected}, got bytes that are not UTF-8") from None
    if array.dtype.kind not in "OUiu":
        raise DataError(f"{expected}, got dtype {array.dtype}")
    for item in array if array.dtype.kind == "O" else ():
        if isinstance(item, bool) or not isinstance(item, str | int | np.integer):
            raise DataError(f"{expected}, got {item!r}")
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


# -- holding out test samples ----------------------------------------------------------------------------------------


def rows_by_name(names: Names) -> dict[str, Ints]:
    """The rows of every name, ascending; names in the order in which they first appear.

    >>> rows_by_name(np.array(["b", "a", "b"]))
    {'b': array([0, 2]), 'a': array([1])}
    """
    distinct, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    parts = np.split(order, np.searchsorted(number[order], np.arange(1, len(distinct))))
    return {str(distinct[i]): parts[i] for i in np.argsort(first)}


def hold_out(names: Names, fraction: float, seed: int) -> Flags:
    """Which samples are test samples: `fraction` of every name's samples, drawn with a key of (seed, name).

    A name keeps at least one training sample. It gives at least one test sample if it has two and the
    fraction is not 0. Raises ConfigError unless 0 <= fraction < 1.
    """
    return _hold_out_first(names, fraction, lambda name, rows: rng(seed, "hold-out", name).permutation(rows))


def hold_out_last(names: Names, when: npt.NDArray[np.float64], fraction: float) -> Flags:
    """As `hold_out`, but the latest samples of every name; among samples with equal times, those stored last.

    >>> hold_out_last(np.array(["a", "a", "a", "b"]), np.array([3.0, 1.0, 2.0, 9.0]), 0.4).tolist()
    [True, False, False, False]
    """
    return _hold_out_first(names, fraction, lambda name, rows: rows[np.argsort(when[rows], kind="stable")][::-1])


def _hold_out_first(names: Names, fraction: float, order: Callable[[str, Ints], Ints]) -> Flags:
    """Mark `fraction` of every name's samples: the first ones in the order that `order` returns."""
    if not 0 <= fraction < 1:
        raise ConfigError(f"test_fraction: expected at least 0 and below 1, got {fraction}")
    is_test = np.zeros(len(names), dtype=bool)
    for name, rows in rows_by_name(names).items():
        count = min(max(round(len(rows) * fraction), int(fraction > 0)), len(rows) - 1)
        is_test[order(name, rows)[:count]] = True
    return is_test
