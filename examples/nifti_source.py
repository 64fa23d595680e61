"""Volumes of magnetic resonance imaging with masks as a source of your own; the layout of FeTS and BraTS.

    pip install nibabel
    fedkin run E.toml --set data.source=examples/nifti_source.py:Nifti --set data.path=FOLDER

with `[scenario] name = "natural"` and `[model] name = "unet"` in E.toml.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate, need_folder
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Task
from fedkin.federation.arrays import hold_out
from fedkin.untrusted import Refused, error_text, most

_ENDINGS = (".nii.gz", ".nii")
Volume = npt.NDArray[np.float32]


class Nifti(Source):
    """Volumes with masks in folders INSTITUTION/SUBJECT/ of NIfTI files, cut into slices; needs nibabel.

    path: the folder of the institutions, absolute or below the data root. A subject's folder has one file for each of
    `channels`, ending in "_CHANNEL.nii" or "_CHANNEL.nii.gz", and a mask, "_MASK.nii.gz": volumes of one shape, which
    are reoriented to the nearest canonical axes. A sample is an axial slice. `slices` of them are used, evenly spaced
    from the first to the last that the mask marks (through the whole volume, if it marks none).

    x [N, channels, size, size] float32: each volume minus its mean over its standard deviation, both over its voxels
    that are not 0, which stay 0; y [N, size, size]: the mask's values, where `values` in this order become 0, 1, ...
    (with `whole`, all but the first become 1). Slices are padded with 0 to squares and scaled to `size`, masks without
    creating new values. Clients are institutions; of every institution's subjects, `test_fraction` is held out, drawn
    by `seed`.
    """

    source: Literal["nifti"] = "nifti"
    path: Path
    channels: tuple[str, ...] = Field(("flair", "t1", "t1ce", "t2"), min_length=1)
    mask: str = "seg"
    values: tuple[int, ...] = Field((0, 1, 2, 4), min_length=2)
    whole: bool = False
    slices: int = Field(16, ge=1)
    size: int = Field(128, ge=1)
    test_fraction: float = Field(0.2, ge=0, lt=1)
    seed: int = Field(0, ge=0)

    def load(self, root: Path) -> Dataset:
        """Read the volumes; raises DataError naming the folder or the file, ConfigError without nibabel."""
        place = locate(root, self.path)
        subjects = _subjects(place)
        owner = np.array([folder.parent.name for folder in subjects], dtype=np.str_)
        held = hold_out(owner, self.test_fraction, self.seed)
        slices = [self._slices(folder) for folder in subjects]
        count = [len(y) for _, y in slices]
        x, y = torch.cat([x for x, _ in slices]), torch.cat([y for _, y in slices])
        train, test = Part(x, y, np.repeat(owner, count)).split(np.repeat(held, count))
        classes = 2 if self.whole else len(self.values)
        task = Task(classes, (len(self.channels), self.size, self.size), "segmentation")
        return Dataset(place.name, train, test, task)

    def _slices(self, folder: Path) -> tuple[Tensor, Tensor]:
        """A subject's slices: inputs [slices, channels, size, size] and labels [slices, size, size]."""
        files = {name: _file(folder, name) for name in (*self.channels, self.mask)}
        volumes = {name: read_volume(file) for name, file in files.items()}
        marked = volumes[self.mask]
        for name, volume in volumes.items():
            if volume.ndim != 3 or volume.shape != marked.shape:
                raise DataError(
                    f"{files[name]}: shape {list(volume.shape)}; expected that of the mask, {list(marked.shape)}, "
                    "in three dimensions"
                )
        depth = _depths(marked != self.values[0], self.slices)
        labels = self._labels(marked[:, :, depth], files[self.mask])
        channels = np.stack([_normal(volumes[name])[:, :, depth] for name in self.channels])
        x = _square(torch.from_numpy(np.moveaxis(channels, -1, 0).copy()), self.size, "bilinear")
        y = _square(torch.from_numpy(np.moveaxis(labels, -1, 0).copy())[:, None].float(), self.size, "nearest")
        return x, y[:, 0].long()

    def _labels(self, marked: Volume, file: Path) -> npt.NDArray[np.int64]:
        """Values of the mask as labels from 0."""
        labels = np.full(marked.shape, -1, dtype=np.int64)
        for label, value in enumerate(self.values):
            labels[marked == value] = min(label, 1) if self.whole else label
        if labels.min() < 0:
            odd = sorted({float(value) for value in np.unique(marked[labels < 0])})[:5]
            raise DataError(f"{file}: the mask holds {odd}; expected only data.values = {list(self.values)}")
        return labels


def read_volume(file: Path) -> Volume:
    """The values of a NIfTI file, with axes oriented to right, anterior, superior."""
    try:
        nibabel = import_module("nibabel")
    except ImportError:
        raise ConfigError("data.source: volumes are read with nibabel: pip install nibabel") from None
    log = import_module("nibabel.imageglobals").logger
    before = log.level
    # It would write what is odd about a header on standard error.
    log.setLevel(100)
    try:
        held = nibabel.load(file)
        if 4 * math.prod(held.shape) > most(file.stat().st_size):
            raise Refused(f"its header promises {held.shape} values, too many for a file of its size")
        image = nibabel.as_closest_canonical(held)
        volume: Volume = np.asarray(image.get_fdata(dtype=np.float32))
    # With a damaged file the readers of gzip and NIfTI raise many kinds of exceptions.
    except Exception as error:
        raise DataError(f"{file}: not readable as a NIfTI volume ({error_text(error)})") from None
    finally:
        log.setLevel(before)
    if not np.isfinite(volume).all():
        raise DataError(f"{file}: holds NaN or infinite values")
    return volume


def _subjects(place: Path) -> list[Path]:
    """The folders of all subjects, in alphabetical order of institutions and subjects."""
    expected = "folders INSTITUTION/SUBJECT/ of NIfTI files"
    need_folder(place, expected)
    paths = sorted(
        folder
        for folder in place.glob("*/*")
        if folder.is_dir() and any(file.name.endswith(_ENDINGS) for file in folder.iterdir())
    )
    if not paths:
        raise DataError(f"{place}: no volume in it; expected {expected}")
    return paths


def _file(folder: Path, name: str) -> Path:
    """The one volume of that name."""
    paths = sorted(file for file in folder.iterdir() if file.name.endswith(tuple(f"_{name}{end}" for end in _ENDINGS)))
    if len(paths) != 1:
        raise DataError(f"{folder}: {len(paths)} files end in _{name}.nii or _{name}.nii.gz; expected one")
    return paths[0]


def _depths(marked: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    """Indices of the slices to take along the last axis, ascending, none twice."""
    there = np.flatnonzero(marked.any((0, 1)))
    low, high = (int(there[0]), int(there[-1])) if len(there) else (0, marked.shape[2] - 1)
    return np.unique(np.linspace(low, high, count).round().astype(np.int64))


def _normal(volume: Volume) -> Volume:
    """z-scores over the voxels that are not 0; the others stay 0."""
    inside = volume != 0
    if not inside.any():
        return volume
    sd = float(volume[inside].std())
    scores = (volume - volume[inside].mean()) / (sd or 1.0)
    return np.where(inside, scores, 0.0).astype(np.float32)


def _square(images: Tensor, size: int, how: str) -> Tensor:
    """[n, channels, height, width], padded with 0 to squares around their middle, scaled to size x size."""
    height, width = images.shape[-2:]
    side = max(height, width)
    left, top = (side - width) // 2, (side - height) // 2
    padded = F.pad(images, (left, side - width - left, top, side - height - top))
    if side == size:
        return padded
    smooth = {"align_corners": False, "antialias": True} if how == "bilinear" else {}
    return F.interpolate(padded, (size, size), mode=how, **smooth)
