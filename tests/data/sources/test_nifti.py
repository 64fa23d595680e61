"""The example of a source of your own: slicing and scaling on arrays, reading of files as their format is described."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.data.sources import Source
from fedkin.errors import ConfigError, DataError
from support import module_at

nifti = module_at(Path(__file__).parents[3] / "examples" / "nifti_source.py")
SIDES = (10, 8, 12)


def nifti_bytes(array: np.ndarray, flip: bool = False) -> bytes:
    """A NIfTI-1 file of float32, its axes to the right (or, flipped, the left), anterior and superior."""
    header = bytearray(348)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *array.shape, 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, 16, 32)  # float32
    struct.pack_into("<8f", header, 76, 1, 1, 1, 1, 0, 0, 0, 0)
    struct.pack_into("<f", header, 108, 352)  # where the data begin
    struct.pack_into("<hh", header, 252, 0, 1)  # sform: scanner coordinates
    first = (-1.0, 0, 0, array.shape[0] - 1) if flip else (1.0, 0, 0, 0)
    struct.pack_into("<12f", header, 280, *first, 0, 1, 0, 0, 0, 0, 1, 0)
    header[344:348] = b"n+1\0"
    stored = array[::-1] if flip else array
    return bytes(header) + bytes(4) + np.asfortranarray(stored, np.float32).tobytes(order="F")


def volumes(seed: int) -> dict[str, np.ndarray]:
    """Two channels and a mask that marks a block of slices 3 to 8 with 1 and 4."""
    rng = np.random.default_rng(seed)
    made = {name: rng.uniform(5, 9, SIDES) for name in ("flair", "t1")}
    for volume in made.values():
        volume[0] = 0
    mask = np.zeros(SIDES)
    mask[2:6, 2:6, 3:9] = 1
    mask[3:5, 3:5, 4:8] = 4
    return {**made, "seg": mask}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two institutions of five subjects; odd ones have their first axis to the left."""
    for institution in ("A", "B"):
        for subject in range(5):
            folder = tmp_path / "fets" / institution / f"s{subject}"
            folder.mkdir(parents=True)
            for name, volume in volumes(subject).items():
                data = nifti_bytes(volume, flip=bool(subject % 2))
                file = folder / f"s{subject}_{name}.nii"
                file.write_bytes(data) if subject == 2 else file.with_suffix(".nii.gz").write_bytes(gzip.compress(data))
    return tmp_path / "fets"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files read by this module's own knowledge of them, for machines without nibabel."""

    def read(file: Path) -> np.ndarray:
        data = file.read_bytes() if file.suffix == ".nii" else gzip.decompress(file.read_bytes())
        shape = struct.unpack_from("<8h", data, 40)[1:4]
        array = np.frombuffer(data[352:], "<f4").reshape(shape, order="F")
        return array[::-1] if struct.unpack_from("<f", data, 280)[0] < 0 else array

    monkeypatch.setattr(nifti, "read_volume", read)


def source(place: Path, **more: object) -> Source:
    small = {"channels": ("flair", "t1"), "values": (0, 1, 4), "slices": 4, "size": 10}
    made: Source = nifti.Nifti(path=place, **{**small, **more})
    return made


@pytest.mark.usefixtures("plain")
def test_slices_masks_and_institutions(place: Path) -> None:
    data = source(place).load(Path())
    assert data.task.kind == "segmentation"
    assert (data.task.classes, data.task.shape) == (3, (2, 10, 10))
    assert (len(data.train), len(data.test)) == (2 * 4 * 4, 2 * 1 * 4)
    fed = fedkin.federate(data, "natural")
    assert sorted(fed) == ["A", "B"]
    expected = volumes(0)
    mask = np.zeros((10, 10))
    mask[:, 1:9] = expected["seg"][:, :, 5]
    wanted = {3, 5, 6, 8}  # evenly from the first marked slice to the last
    first = data.train.y[:4].numpy()
    marked = [(first[k] > 0).sum() for k in range(4)]
    assert marked == [(expected["seg"][:, :, k] > 0).sum() for k in sorted(wanted)]
    np.testing.assert_array_equal(first[1], np.where(mask == 4, 2, mask))


@pytest.mark.usefixtures("plain")
def test_volumes_are_scored_over_what_is_not_background(place: Path) -> None:
    data = source(place, slices=12).load(Path())
    flair = volumes(0)["flair"]
    inside = flair != 0
    scored = np.where(inside, (flair - flair[inside].mean()) / flair[inside].std(), 0)
    found = data.train.x[:6, 0, :, 1:9].numpy()
    np.testing.assert_allclose(found, np.moveaxis(scored[:, :, 3:9], -1, 0), atol=1e-4)
    assert bool((data.train.x[:, :, :, [0, 9]] == 0).all())


@pytest.mark.usefixtures("plain")
def test_whole_and_another_size(place: Path) -> None:
    data = source(place, whole=True, size=20).load(Path())
    assert data.task.classes == 2
    assert set(data.train.y.unique().tolist()) == {0, 1}  # type: ignore[no-untyped-call]
    small = source(place, whole=True).load(Path())
    twice = small.train.y.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(data.train.y, twice)


@pytest.mark.usefixtures("plain")
def test_volumes_that_do_not_fit(place: Path) -> None:
    with pytest.raises(DataError, match=r"s0_seg\.nii\.gz: the mask holds \[4\.0\]; expected only data\.values = "):
        source(place, values=(0, 1)).load(Path())
    with pytest.raises(DataError, match=r"s0: 0 files end in _t2\.nii or _t2\.nii\.gz; expected one"):
        source(place, channels=("flair", "t2")).load(Path())
    (place / "A" / "s0" / "s0_t1.nii.gz").write_bytes(gzip.compress(nifti_bytes(np.ones((3, 3, 3)))))
    with pytest.raises(DataError, match=r"s0_t1\.nii\.gz: shape \[3, 3, 3\]; expected that of the mask, \[10, 8, 12\]"):
        source(place).load(Path())
    with pytest.raises(DataError, match="nowhere: no such folder; expected folders INSTITUTION/SUBJECT/"):
        source(place / "nowhere").load(Path())
    (place / "empty" / "A").mkdir(parents=True)
    with pytest.raises(DataError, match="empty: no volume in it"):
        source(place / "empty").load(Path())


def test_files_are_read_with_their_axes(place: Path) -> None:
    pytest.importorskip("nibabel", reason="nibabel is not installed: pip install nibabel")
    for subject in (0, 1, 2):
        (file,) = (place / "A" / f"s{subject}").glob("*_flair.*")
        read = nifti.read_volume(file)
        np.testing.assert_allclose(read, volumes(subject)["flair"], rtol=1e-6)
    bad = place / "A" / "s0" / "s0_t1.nii.gz"
    bad.write_bytes(b"no")
    with pytest.raises(DataError, match=r"s0_t1\.nii\.gz: not readable as a NIfTI volume"):
        nifti.read_volume(bad)


def test_without_nibabel_it_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(ConfigError, match="pip install nibabel"):
        source(place).load(Path())
