"""`Federation.from_datasets`: torch Datasets and DataLoaders, read once, in order, in their own types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedkin.errors import DataError
from fedkin.federation import Federation, Scale


class Sites(Dataset[Any]):
    """Samples one after another, as a user's own dataset has them; ends by __len__ alone."""

    def __init__(self, seed: int, count: int = 20, **changes: Any) -> None:
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 3, count)
        self.x = (rng.normal(size=(count, 4)) + self.y[:, None]).astype(np.float32)
        self.changes = changes

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        if row in self.changes.get("broken", ()):
            raise OSError("no such picture")
        x = self.x[row][:3] if row in self.changes.get("short", ()) else self.x[row]
        return torch.from_numpy(x), int(self.y[row])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((np.full(4, number, np.float32), number % 2) for number in range(10))


def stored(federation: Federation, id: str) -> tuple[Tensor, Tensor]:
    samples = federation[id].train
    return samples.inputs(slice(None)), samples.labels()


def test_datasets_loaders_and_lists_give_the_same_arrays() -> None:
    one = Sites(0)
    ways: dict[str, Any] = {
        "dataset": one, "subset": Subset(one, list(range(20))), "list": [one[row] for row in range(20)],
        "tensors": TensorDataset(torch.from_numpy(one.x), torch.from_numpy(one.y)),
        "some tensors": Subset(TensorDataset(torch.from_numpy(one.x), torch.from_numpy(one.y)), range(20)),
        "loader": DataLoader(one, 7), "shuffled": DataLoader(one, 7, shuffle=True, drop_last=True),
        "dicts": [{"x": one.x[row], "label": one.y[row]} for row in range(20)],
    }  # fmt: skip
    federation = Federation.from_datasets(ways, test_fraction=0)
    assert federation.task.classes == 3
    for id in ways:
        x, y = stored(federation, id)
        torch.testing.assert_close(x, torch.from_numpy(one.x), rtol=0, atol=0)
        assert y.tolist() == one.y.tolist()


def test_the_split_is_that_of_arrays_and_a_pair_has_its_own() -> None:
    sites = {"a": Sites(0), "b": Sites(1, 30)}
    federation = Federation.from_datasets(sites, seed=3)
    x, y = (np.concatenate([getattr(site, part) for site in sites.values()]) for part in ("x", "y"))
    arrays = Federation.from_arrays(x, y, np.repeat(["a", "b"], [20, 30]), seed=3)
    assert federation.fingerprint() == arrays.fingerprint()
    pair = Federation.from_datasets({"a": (Sites(0), Sites(5, 8)), "b": (DataLoader(Sites(1), 4), Stream())})
    assert {id: (len(client.train), len(client.test)) for id, client in pair.items()} == {"a": (20, 8), "b": (20, 10)}
    assert pair["a"].test.labels().tolist() == Sites(5, 8).y.tolist()


def test_token_ids_stay_whole_numbers() -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"input_ids": [row, 7, 0], "attention_mask": [1] * 3, "labels": row % 2} for row in range(count)]

    federation = Federation.from_datasets({"a": rows(20), "b": rows(24)}, group={"a": "g", "b": "h"})
    assert federation.task.codes == ("input_ids", "attention_mask")
    assert federation["a"].train.inputs(slice(None))["input_ids"].dtype == torch.int64
    assert federation.planted == {"a": "g", "b": "h"}


def test_pictures_are_bytes_channels_first() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install fedkin[images]")
    grey = [(image.new("L", (5, 3), 40 + row), row % 2) for row in range(4)]
    federation = Federation.from_datasets({"a": grey, "b": grey}, test_fraction=0)
    assert federation.task.shape == (1, 3, 5)
    assert federation["a"].train.scale == Scale()
    assert stored(federation, "a")[0][1].flatten().tolist() == pytest.approx([41 / 255] * 15)
    colour = [(image.new("P", (5, 3)), 0), (image.new("RGB", (5, 3), (1, 2, 3)), 1)]
    made = Federation.from_datasets({"a": colour}, test_fraction=0, scale=Scale(divide=1.0))
    assert stored(made, "a")[0][1, :, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("given", "words"), [
    ({}, "expected {.client.: dataset or loader or"),
    ({"a": 3}, "client 'a': expected a torch Dataset, a DataLoader, a list of samples, or .train, test.; got int"),
    ({"a": "text"}, "got str"), ({"a": []}, "client 'a': no samples"),
    ({"a": TensorDataset(torch.zeros(0, 2), torch.zeros(0))}, "client 'a': no samples"),
    ({"a": Sites(0), "b": Sites(0, broken=[7])}, "client 'b': sample 7: OSError: no such picture"),
    ({"a": (Sites(0), Sites(0, broken=[2]))}, "client 'a': test sample 2: OSError"),
    ({"a": Sites(0, short=[4])}, r"client 'a': sample 4: its input has shape \[3\], those before have \[4\]; resize"),
    ({"a": Sites(0), "b": [(np.zeros(5), 0)] * 5}, r"client .b.: sample 0: its input has shape \[5\], those"),
    ({"a": (Sites(0), [(np.zeros(5), 0)] * 5)}, r"client 'a': test sample 0: its input has shape \[5\], those"),
    ({"a": [(1.0, 2.0, 3.0)]}, "client 'a': sample 0: expected .input, target., or a dict .*, got tuple of 3"),
    ({"a": [{"x": 1.0, "diagnosis": 1}]}, "sample 0: no 'labels or label or target or y' in it, only x, diagnosis"),
    ({"a": [("a text", 0)]}, "sample 0: expected numbers, a tensor or a picture, got str"),
    ({"a": [([1.0, float("nan")], 0), ([1.0, 2.0], 1)]}, "client 'a': sample 0: its input holds NaN"),
    ({"a": [([1.0], 0.5), ([1.0], 1.0)]}, "y: expected whole numbers"),
])  # fmt: skip
def test_what_is_wrong_is_named(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Federation.from_datasets(given)
