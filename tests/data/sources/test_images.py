"""Public data sets of images, from files in their layouts."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch

from data_sets import write_idx, write_mnist, write_records
from fedkin.data import SOURCES, federate
from fedkin.data.dataset import Dataset
from fedkin.data.sources.base import Source
from fedkin.data.sources.folder import read_image
from fedkin.data.sources.images import Cifar10, Cifar100, Digits, Emnist, FashionMnist, Femnist, Mnist, Qmnist, read_idx
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Scale
from support import idx_bytes, present

# -- The embedded digits -------------------------------------------------------------------------------------------


def test_split(digits: Dataset) -> None:
    assert digits.train.x.dtype == torch.uint8
    assert digits.train.x.shape == (1438, 1, 8, 8)
    assert int(digits.train.x.max()) == 16
    assert digits.white == 16
    assert float(present(digits.scale)(digits.train.x, torch.float32).max()) == 1
    everyone = torch.bincount(torch.cat([digits.train.y, digits.test.y]))
    assert everyone.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], "scikit-learn's counts"
    shares = torch.bincount(digits.test.y) / everyone
    assert shares.sub(0.2).abs().max() < 0.5 / 174 + 1e-6, "stratified"


def test_seed_and_fraction(digits: Dataset) -> None:
    again, other = Digits().load(Path()), Digits(seed=1).load(Path())
    assert torch.equal(digits.test.x, again.test.x)
    assert not torch.equal(digits.test.x[:300], other.test.x[:300])
    assert abs(len(Digits(test_fraction=0.5).load(Path()).test) - 1797 / 2) <= 5


# -- MNIST and Fashion-MNIST from idx files ------------------------------------------------------------------------


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(
    ("source", "folder", "scale"),
    [
        (Mnist(), "MNIST/raw", Scale((0.1307,), (0.3081,), 255.0)),
        (FashionMnist(), "FashionMNIST/raw", Scale((0.2860,), (0.3530,), 255.0)),
    ],
)  # fmt: skip
def test_reads(tmp_path: Path, gz: bool, source: Mnist, folder: str, scale: Scale) -> None:
    write_mnist(tmp_path / folder, gz=gz)
    data = source.load(tmp_path)
    expected = np.random.default_rng(3).integers(0, 256, (30, 28, 28))
    assert np.array_equal(data.train.x[:, 0].numpy(), expected)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.tolist() == [i % 10 for i in range(30)]
    assert data.test.x.shape == (12, 1, 28, 28)
    assert data.task.shape == (1, 28, 28)
    assert data.task.classes == 10
    assert data.scale == scale
    assert SOURCES[data.name] is type(source)


def header(magic: int, *sizes: int) -> bytes:
    return struct.pack(f">I{len(sizes)}I", magic, *sizes)


def damaged(data: bytes) -> list[bytes]:
    broken = bytearray(data)
    broken[len(data) // 2] ^= 255
    return [data[: len(data) // 2], data[:-4], b"no gzip at all", bytes(broken), data + b"and more", b""]


def test_bad_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x-idx1-ubyte.gz"
    good = gzip.compress(header(0x801, 5000) + np.random.default_rng(0).bytes(5000))
    path.write_bytes(good)
    assert len(read_idx(path, 1)) == 5000
    for content in damaged(good):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x-idx1-ubyte\.gz: (cannot be read to its end|truncated)"):
            read_idx(path, 1)


def test_a_file_is_read_to_the_size_of_its_header_only(tmp_path: Path) -> None:
    path = tmp_path / "x-idx1-ubyte.gz"
    # Reading on would come to the damaged end.
    path.write_bytes(gzip.compress(header(0x801, 1500) + np.random.default_rng(0).bytes(10**6))[:-1000])
    with pytest.raises(DataError, match="longer than it should be"):
        read_idx(path, 1)


# -- EMNIST from idx files -----------------------------------------------------------------------------------------


CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def write(folder: Path, split: str, gz: bool = False, count: int = 70, first: int = 0) -> np.ndarray:
    """The four files, images lying on their side as in the real ones; returns them upright."""
    images, labels = (
        np.random.default_rng(5).integers(0, 256, (count, 28, 28)),
        first + np.arange(count) % CLASSES[split],
    )
    kinds = {"images-idx3": np.ascontiguousarray(images.transpose(0, 2, 1)), "labels-idx1": labels}
    for name in ("train", "test"):
        write_idx(folder, {f"emnist-{split}-{name}-{kind}-ubyte": array for kind, array in kinds.items()}, gz)
    return images


@pytest.mark.parametrize("split", CLASSES)
def test_every_split(tmp_path: Path, split: Any) -> None:
    upright = write(tmp_path / "EMNIST" / "raw", split, gz=split == "balanced", first=int(split == "letters"))
    data = Emnist(split=split).load(tmp_path)
    assert data.name == f"emnist-{split}"
    assert data.task.classes == CLASSES[split]
    for part in (data.train, data.test):
        assert part.x.shape == (70, 1, 28, 28)
        assert part.x.is_contiguous()
        assert np.array_equal(part.x[:, 0].numpy(), upright)
        assert part.y.tolist() == [i % CLASSES[split] for i in range(70)], "labels begin at 0"


def test_labels_of_another_split(tmp_path: Path) -> None:
    write(tmp_path / "EMNIST" / "raw", "letters", first=0)
    with pytest.raises(DataError, match=r"letters-train-labels-idx1-ubyte: label 0 at position 0, expected 1..26"):
        Emnist(split="letters").load(tmp_path)


# -- MNIST by writer -----------------------------------------------------------------------------------------------


# Writers of the 30 training and the 12 test digits; as in the real files, none wrote digits of both.
TRAIN = [7] * 12 + [310] * 10 + [2045] * 8
TEST = [99] * 7 + [3] * 5


def rows(writers: list[int], more: int = 0) -> np.ndarray:
    """[N, 8] labels as QMNIST has them, with `more` rows about digits that MNIST does not have."""
    table = np.full((len(writers) + more, 8), -7)
    table[:, 0] = np.arange(len(table)) % 10
    table[:, 2] = [*writers, *[4000] * more]
    return table


def write_of_qmnist(root: Path, gz: bool = False) -> None:
    write_mnist(root / "MNIST" / "raw")
    labels = {"train": rows(TRAIN), "test": rows(TEST, more=20)}
    write_idx(root / "QMNIST/raw", {f"qmnist-{name}-labels-idx2-int": of for name, of in labels.items()}, gz, code=12)


@pytest.mark.parametrize("gz", [False, True])
def test_mnists_own_split(tmp_path: Path, gz: bool) -> None:
    write_of_qmnist(tmp_path, gz)
    data, mnist = Qmnist(split="mnist").load(tmp_path), Mnist().load(tmp_path)
    assert torch.equal(data.train.x, mnist.train.x)
    assert torch.equal(data.test.y, mnist.test.y)
    assert present(data.train.client).tolist() == [f"w{writer:04d}" for writer in TRAIN]
    assert present(data.test.client).tolist() == [f"w{writer:04d}" for writer in TEST]
    assert data.scale == mnist.scale


def test_split_by_writer(tmp_path: Path) -> None:
    write_of_qmnist(tmp_path)
    data, mnist = Qmnist(test_fraction=0.25).load(tmp_path), Mnist().load(tmp_path)
    held = Counter(present(data.test.client).tolist())
    assert held == {"w0007": 3, "w0310": 2, "w2045": 2, "w0099": 2, "w0003": 1}
    # Each image with its own label and writer, found again by its pixels.
    known = {}
    for part, writers in ((mnist.train, TRAIN), (mnist.test, TEST)):
        for x, y, writer in zip(part.x, part.y, writers, strict=True):
            known[x.numpy().tobytes()] = int(y), f"w{writer:04d}"
    for part in (data.train, data.test):
        for x, y, writer in zip(part.x, part.y, present(part.client), strict=True):
            assert known.pop(x.numpy().tobytes()) == (int(y), writer)
    assert not known
    assert not torch.equal(Qmnist(test_fraction=0.25, seed=1).load(tmp_path).test.x, data.test.x)


# -- FEMNIST from LEAF's json files --------------------------------------------------------------------------------


SIZES = {"f0000_14": 10, "f0001_41": 5, "f0002_09": 15}


def leaf(sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """A file of LEAF's: pixels are bytes divided by 255; the first one numbers the writer's samples."""
    rng = np.random.default_rng(seed)
    data = {}
    for user, size in sizes.items():
        pixels = rng.integers(0, 256, (size, 784))
        pixels[:, 0] = np.arange(size)
        data[user] = {"x": (pixels / 255).round(5).tolist(), "y": rng.integers(0, 62, size).tolist()}
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}


def write_of_femnist(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_own_split(tmp_path: Path) -> None:
    train, test = leaf(SIZES), leaf(dict.fromkeys(SIZES, 3), seed=1)
    write_of_femnist(tmp_path / "femnist" / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    write_of_femnist(tmp_path / "femnist" / "test" / "all_data_0_niid_0_keep_0_test_9.json", test)
    data = Femnist().load(tmp_path)
    assert (data.task.classes, data.task.shape) == (62, (1, 28, 28))
    for part, made in ((data.train, train), (data.test, test)):
        for user, own in made["user_data"].items():
            mine = part.client == user
            assert (part.x[mine].reshape(-1, 784).numpy() == np.rint(np.array(own["x"]) * 255)).all(), "row after row"
            assert part.y[mine].tolist() == own["y"]
        assert len(part) == sum(made["num_samples"])


@pytest.mark.parametrize("folder", ["femnist/all_data", "femnist", "mine"])
def test_split_by_writer_of_femnist(tmp_path: Path, folder: str) -> None:
    users = list(SIZES.items())
    write_of_femnist(tmp_path / folder / "all_data_0.json", leaf(dict(users[:2])))
    write_of_femnist(tmp_path / folder / "all_data_1.json", leaf(dict(users[2:]), seed=1))
    source = Femnist(test_fraction=0.2) if "femnist" in folder else Femnist(path=Path(folder))
    data = source.load(tmp_path)
    assert Counter(present(data.test.client).tolist()) == {"f0000_14": 2, "f0001_41": 1, "f0002_09": 3}
    for user, size in SIZES.items():
        numbers = [part.x[part.client == user][:, 0, 0, 0].tolist() for part in (data.train, data.test)]
        assert sorted(numbers[0] + numbers[1]) == list(range(size)), "every sample in one of the splits"
    assert set(federate(data, "natural", min_size=5)) == {"f0000_14", "f0002_09"}


GOOD = leaf({"a": 2, "b": 1})


def changed(**data: Any) -> dict[str, Any]:
    """GOOD with other data for user "a"."""
    return {**GOOD, "user_data": {**GOOD["user_data"], "a": {**GOOD["user_data"]["a"], **data}}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not as LEAF writes it .*; expected LEAF's json"),
        (json.dumps(GOOD)[:-40], "not as LEAF writes it"),
        ("[1, 2]", "not as LEAF writes it"),
        ({"users": ["a"]}, "not as LEAF writes it .'num_samples'.; expected LEAF's json"),
        ({**GOOD, "users": ["a", "c"]}, "user 'c': not as LEAF writes it"),
        ({**GOOD, "num_samples": [2]}, "not as LEAF writes it"),
        ({**GOOD, "num_samples": [2, 2]}, "user 'b': 1 images and 1 labels, but num_samples says 2"),
        (leaf({"a": 2, " b": 1}), "users: expected printable ids without spaces around them, got ' b'"),
        (changed(y=[1]), "user 'a': 2 images and 1 labels, but num_samples says 2"),
        (changed(y=[1, 62]), r"user 'a': labels 1 to 62, expected whole numbers 0\.\.61"),
        (changed(y=[1, 0.5]), "user 'a': labels 0.5 to 1.0, expected whole numbers"),
        (changed(x=[[0.0] * 784] * 3), "user 'a': 3 images and 2 labels"),
        (changed(x=[[0.0] * 100] * 2), "user 'a': not as LEAF writes it"),
        (changed(x=[[0.0] * 784, [0.0] * 700]), "user 'a': not as LEAF writes it"),
        (changed(x=[["a"] * 784] * 2), "user 'a': not as LEAF writes it"),
        (changed(x=[[2.0] * 784] * 2), "user 'a': pixels from 2.0 to 2.0, expected 0 to 1"),
        (changed(x=[[float("nan")] * 784] * 2), "user 'a': pixels from nan"),
    ],
)  # fmt: skip
def test_bad_files_of_femnist(tmp_path: Path, content: Any, said: str) -> None:
    path = write_of_femnist(tmp_path / "femnist" / "all_data_0.json", content)
    with pytest.raises(DataError, match=said) as caught:
        Femnist().load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="femnist: no such folder; expected LEAF's json files in train and test"):
        Femnist().load(tmp_path)
    write_of_femnist(tmp_path / "femnist" / "train" / "a.json", GOOD)
    with pytest.raises(DataError, match="test: no json file there"):
        Femnist().load(tmp_path)


def test_a_user_in_two_files(tmp_path: Path) -> None:
    for name in "ab":
        write_of_femnist(tmp_path / "femnist" / f"{name}.json", GOOD)
    with pytest.raises(DataError, match=r"b\.json: user 'a' is also in a\.json; expected each in one file"):
        Femnist().load(tmp_path)


# -- CIFAR-10 from its binary files --------------------------------------------------------------------------------


def write_cifar(root: Path) -> Path:
    """The first pixel of record r of file f is 12 f + r."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return write_records(root / "cifar-10-batches-bin", names, 12, (10,))


def test_reads_of_cifar(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path)
    data = Cifar10().load(tmp_path)
    assert data.train.x.shape == (60, 3, 32, 32)
    assert data.train.x.dtype == torch.uint8
    assert torch.cat([data.train.x, data.test.x])[:, 0, 0, 0].tolist() == list(range(72))
    assert data.train.y.tolist() == [r % 10 for r in range(12)] * 5
    record = (folder / "data_batch_2.bin").read_bytes()[3073 * 4 : 3073 * 5]
    assert data.train.x[16].flatten().tolist() == list(record[1:])
    scale = present(data.scale)
    assert (scale.divide, len(scale.mean), len(scale.std)) == (255, 3, 3)


def write_cifar100(root: Path) -> Path:
    """The first pixel of record r of the file train is r."""
    return write_records(root / "cifar-100-binary", ("train", "test"), 120, (20, 100))


def test_reads_a_hundred_classes(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)
    fine, coarse = Cifar100().load(tmp_path), Cifar100(labels="coarse", path=folder).load(Path("nowhere"))
    assert fine.train.x.shape == fine.test.x.shape == (120, 3, 32, 32)
    assert fine.train.x[:, 0, 0, 0].tolist() == list(range(120))
    assert fine.train.y.tolist() == [r % 100 for r in range(120)]
    assert coarse.train.y.tolist() == [r % 20 for r in range(120)]
    assert torch.equal(fine.test.x, coarse.test.x)
    assert (fine.task.classes, coarse.task.classes) == (100, 20)
    record = (folder / "test.bin").read_bytes()[3074 * 7 : 3074 * 8]
    assert fine.test.x[7].flatten().tolist() == list(record[2:])
    assert len(present(fine.scale).mean) == len(present(fine.scale).std) == 3


# -- damaged files ---------------------------------------------------------------------------------------------------


BAD: dict[Source, dict[str, list[tuple[bytes | None, str]]]] = {
    Mnist(): {
        IMAGES: [
            (None, f"no such file, nor {IMAGES}.gz; expected idx files as torchvision"),
            (b"", "truncated: 0 bytes, but its header alone takes 16"), (header(0x803, 30), "truncated: 8 bytes"),
            (header(0x803, 30, 28, 28) + b"1" * 99, "truncated: 99 bytes of data; .* 23520 "),
            (header(0x803, 1, 28, 28) + b"1" * 785, r"longer than it should be; .* 784 \(1 x 28 x 28\)"),
            (header(0x803, 2**32 - 1, 2**32 - 1, 28) + b"1" * 9, "truncated: 9 bytes"),
            (header(0x801, 30) + b"1" * 30, "starts with 0x00000801, expected 0x00000803"),
            (b"<!DOCTYPE html> not found", "starts with 0x3c21444f"),
            (header(0x803, 30, 32, 32) + b"1" * 30720, "holds 30 x 32 x 32 bytes, expected N x 28 x 28"),
            (header(0x803, 0, 28, 28), "holds 0 x 28 x 28 bytes, .* N at least 1"),
        ],
        LABELS: [
            (None, "no such file"), (header(0x801, 29) + bytes(29), "holds 29 labels, expected 30: one for each"),
            (header(0x801, 30) + bytes(29) + b"\x0b", "label 11 at position 29, expected"),
            (header(0x803, 30) + bytes(30), "starts with 0x00000803, expected 0x00000801"),
        ],
    },
    Emnist(split="digits"): {
        "emnist-digits-test-images-idx3-ubyte": [(b"", "truncated: 0 bytes")],
        "emnist-digits-train-labels-idx1-ubyte": [(idx_bytes(np.full(70, 10)), "label 10 at position 0, expected")],
    },
    Qmnist(): {
        "qmnist-train-labels-idx2-int": [
            (None, "no such file, nor qmnist-train-labels-idx2-int.gz"),
            (idx_bytes(rows(TRAIN), 12)[:-1], "truncated: 959 bytes of data; its header says 960 .30 x 8."),
            (idx_bytes(rows(TRAIN[:-1]), 12), "holds 29 x 8 numbers, expected N x 8 with N at least 30, MNIST's"),
            (idx_bytes(rows(TRAIN)[:, :7], 12), "holds 30 x 7 numbers"),
            (idx_bytes(rows(TRAIN)[::-1], 12), "row 0 is about a 9, but MNIST's digit 0 is a 0"),
            (b"\0\0\x08\x02" + bytes(8), "expected 0x00000c02, .* idx file of ints in 2 dimensions"),
        ]
    },
    Cifar10(): {
        name: [
            (None, "no such file; expected data_batch_1..5.bin and test_batch.bin"), (b"", "0 bytes, truncated"),
            (bytes(3073 * 2 - 1), "6145 bytes, truncated or another file; expected records of 3073 bytes"),
            (bytes(3073) + b"\x63" + bytes(3072), "label 99 at position 1, expected 0..9"),
        ]
        for name in ("data_batch_3.bin", "test_batch.bin")
    },
    **{
        Cifar100(labels=labels): {
            name: [
                (None, "no such file; expected train.bin and test.bin of CIFAR-100 beside it"),
                (bytes(3073 * 2), "6146 bytes, truncated or another file; expected records of 3074 bytes"),
                (bytes(3074) + b"\x14\x00" + bytes(3072), "label 20 at position 1, expected 0..19"),
                (b"\x13\x64" + bytes(3072), "label 100 at position 0, expected 0..99"),
            ]
            for name in ("train.bin", "test.bin")
        }
        for labels in get_args(Literal["fine", "coarse"])
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "name", "content", "said"),
    [(source, name, *case) for source, files in BAD.items() for name, cases in files.items() for case in cases],
)
def test_bad_files(tmp_path: Path, source: Any, name: str, content: bytes | None, said: str) -> None:
    write_of_qmnist(tmp_path)
    write(tmp_path / "EMNIST" / "raw", "digits")
    write_cifar(tmp_path)
    write_cifar100(tmp_path)
    path = source.place(tmp_path) / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        source.load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


# -- image files -----------------------------------------------------------------------------------------------------


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"a source of images needs PIL.Image .*: pip install 'fedkin\[images\]'"):
        read_image(tmp_path / "a.png", (32, 32))


def written(path: Path, pixels: np.ndarray) -> Path:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)
    return path


def test_bad_pictures(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", np.zeros((32, 32, 3), np.uint8))
    data = path.read_bytes()
    for content in (b"", b"<html>", data[:40], data[: len(data) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as an image") as caught:
            read_image(path, (32, 32))
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_kinds_of_images(tmp_path: Path) -> None:
    """Grey, see-through and others become three channels; sizes are (height, width)."""
    grey = np.arange(32 * 20, dtype=np.uint8).reshape(32, 20)
    for pixels in (grey, np.dstack([grey] * 3), np.dstack([grey] * 3 + [np.full_like(grey, 255)])):
        found = read_image(written(tmp_path / "a.png", pixels), (32, 20), resize=False)
        assert np.array_equal(found, np.stack([grey] * 3))
    small = read_image(tmp_path / "a.png", (8, 10))
    assert small.shape == (3, 8, 10)
    flat = written(tmp_path / "b.png", np.full((9, 5, 3), (10, 200, 90), np.uint8))
    found = read_image(flat, (4, 7))
    assert found.shape == (3, 4, 7)
    assert [np.unique(channel).tolist() for channel in found] == [[10], [200], [90]]
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        read_image(tmp_path / "none.png", (4, 7))
