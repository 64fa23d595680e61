"""Images in folders by domain and class, the layout of PACS and OfficeHome; and the reader of image files."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate, need_folder
from fedkin.errors import ConfigError, DataError, imported, nearest
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import hold_out, picture
from fedkin.untrusted import Refused, error_text, escaped, most

ENDINGS = (".jpg", ".jpeg", ".png")
_PICTURES = (*ENDINGS, ".bmp", ".gif", ".tif", ".tiff", ".webp")


class Folder(Source):
    """Images in folders DOMAIN/CLASS/*.jpg, .jpeg or .png, such as PACS and OfficeHome; needs Pillow.

    path: the folder of the domains, absolute or below the data root. x [N, 3, size, size] bytes: each image in colour,
    stretched to a square; inputs are (x / 255 - mean) / std, with ImageNet's values. size = "same" reads images
    unchanged, and raises an error that names the first image of another size. grey: one channel, with the first mean
    and std. y: the class, numbered in alphabetical order, or in the order of `classes`, which must then name all; a
    class may be missing in a domain. folders: "domains": each folder DOMAIN is a group, which the scenario "domains"
    divides into clients; "clients": each is one client, for the scenario "natural". domains: use only these (default:
    all). Of every class of every domain, `test_fraction` is held out, drawn by `seed`.
    """

    source: Literal["folder"] = "folder"
    path: Path
    size: PositiveInt | Literal["same"] = 224
    grey: bool = False
    folders: Literal["domains", "clients"] = "domains"
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, ...] = Field((0.229, 0.224, 0.225), min_length=1)
    test_fraction: float = Field(0.2, ge=0, lt=1)
    seed: NonNegativeInt = 0

    @field_validator("classes")
    @classmethod
    def _different(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        if len(classes) == 1 or len(set(classes)) < len(classes):
            raise ValueError("expected the names of 2 or more classes, each once")
        return classes

    def load(self, root: Path) -> Dataset:
        """Read the images; raises DataError naming the folder or the file, ConfigError without Pillow."""
        folder = locate(root, self.path)
        return self._dataset(folder, self.files(folder))[0]

    def of_one(self, name: str, folder: Path) -> tuple[Dataset, tuple[str, ...]]:
        """(data set, classes) of one client's folder CLASS/*.jpg, read as `load` reads it in a folder of clients."""
        need_folder(folder, "a folder of images for each class in it")
        files = [(name, file) for file in _images(folder)]
        if not files:
            raise DataError(f"{folder}: no image in it; expected folders CLASS/ of .jpg or .png images")
        return self.model_copy(update={"folders": "clients"})._dataset(folder, files)

    def _dataset(self, folder: Path, files: Sequence[tuple[str, Path]]) -> tuple[Dataset, tuple[str, ...]]:
        classes = self._class_names(folder, {file.parent.name for _, file in files})
        channels = 1 if self.grey else 3
        scale = Scale(self.mean[:channels], self.std[:channels])
        scale.check(channels, "data")
        domain = np.array([name for name, _ in files], dtype=np.str_)
        label = np.array([classes.index(file.parent.name) for _, file in files], dtype=np.int64)
        size = size_of(files[0][1]) if self.size == "same" else (self.size, self.size)
        x = np.empty((len(files), channels, *size), np.uint8)
        for row, (_, file) in enumerate(files):
            x[row] = read_image(file, size, resize=self.size != "same", grey=self.grey)
        is_test = hold_out(np.char.add(np.char.add(domain, "/"), label.astype(np.str_)), self.test_fraction, self.seed)

        client, group = (domain, None) if self.folders == "clients" else (None, domain)
        train, test = Part(torch.from_numpy(x), torch.from_numpy(label), client, group).split(is_test)
        task = Task(len(classes), (channels, *size))
        return Dataset(folder.name, train, test, task, scale), classes

    def _class_names(self, folder: Path, folders: Collection[str]) -> tuple[str, ...]:
        classes = self.classes or tuple(sorted(folders))
        if len(classes) < 2:
            expected = "expected folders of 2 or more classes, or their names in data.classes"
            raise DataError(f"{folder}: all images are of class {classes[0]!r}; {expected}")
        if odd := sorted(set(folders) - set(classes)):
            raise DataError(f"{folder}: data.classes has no class {escaped(odd[0], 60)!r}; {nearest(odd[0], classes)}")
        return classes

    def files(self, folder: Path) -> list[tuple[str, Path]]:
        """(domain, file) of every image in this folder, in alphabetical order; raises DataError if there is none."""
        expected = "folders DOMAIN/CLASS/ of .jpg or .png images"
        need_folder(folder, expected)
        domains = self._domain_names(folder)
        files = [(name, file) for name in domains for file in _images(folder / name)]
        if not files:
            raise DataError(f"{folder}: no image in it; expected {expected}")
        _say_left_out(folder, {file for _, file in files}, domains)
        return files

    def _domain_names(self, folder: Path) -> Sequence[str]:
        there = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        for name in self.domains:
            if name not in there:
                raise ConfigError(f"data.domains: no folder {name!r} in {folder}; {nearest(name, there)}")
        return self.domains or there


def _say_left_out(folder: Path, read: set[Path], domains: Sequence[str]) -> None:
    """Log a warning about images that are not read: at another folder level, or of another format."""
    every = {file for domain in domains for file in (folder / domain).rglob("*") if file.suffix.lower() in _PICTURES}
    if left_out := sorted(file for file in every - read if not file.name.startswith(".")):
        logging.getLogger("fedkin").warning(
            "%s: %d pictures are left out, such as %s: expected DOMAIN/CLASS/ of %s", folder, len(left_out),
            escaped(str(left_out[0].relative_to(folder)), 80), ", ".join(ENDINGS),
        )  # fmt: skip


def _images(folder: Path) -> list[Path]:
    """CLASS/IMAGE of a folder, in alphabetical order."""
    files = sorted(folder.glob("*/*"))
    return [file for file in files if file.suffix.lower() in ENDINGS and not file.name.startswith(".")]


# -- image files as bytes of one size, channels first; needs Pillow ------------------------------------------------


def size_of(path: Path) -> tuple[int, int]:
    """(height, width) of an image file; raises DataError naming the file, ConfigError without Pillow."""
    try:
        with _pillow().open(path) as file:
            width, height = file.size
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error_text(error)})") from None
    return height, width


def read_image(path: Path, size: tuple[int, int], *, resize: bool = True, grey: bool = False) -> npt.NDArray[Any]:
    """uint8 colours [3, height, width] of an image file, or grey values [1, height, width]; size: (height, width).

    Grey images get three equal colour channels; greys of 16 bits are divided by 257. The rotation stored in EXIF data
    is applied. An image of another size is resized bilinearly, without keeping its aspect ratio, or refused if `resize`
    is False. Raises DataError naming the file, ConfigError without Pillow.
    """
    image_module = _pillow()
    height, width = size
    try:
        with warnings.catch_warnings(), image_module.open(path) as file:
            # Pillow only warns about an image that is far larger unpacked than in its file.
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            if 3 * math.prod(file.size) > most(path.stat().st_size):
                raise Refused(f"{file.size[1]} x {file.size[0]} pixels, too many for a file of its size")
            image = as_bytes(import_module("PIL.ImageOps").exif_transpose(file)).convert("L" if grey else "RGB")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected an image") from None
    # With a damaged file the decoders raise many kinds of exceptions.
    except Exception as error:
        how = "remove it, or put a whole one there"
        raise DataError(f"{path}: cannot be read as an image ({error_text(error)}); {how}") from None
    if image.size != (width, height):
        if not resize:
            raise DataError(f"{path}: {image.size[1]} x {image.size[0]} pixels, expected {height} x {width}")
        image = image.resize((width, height), image_module.Resampling.BILINEAR)
    return picture(image)


def _pillow() -> Any:
    return imported("PIL.Image", "a source of images", "images")


def as_bytes(image: Any) -> Any:
    """A Pillow image with values 0..255: greys of 16 bits are divided by 257; raises Refused for other values."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise Refused(f"values from {values.min():g} to {values.max():g}, not of 8 or 16 bits; save it with 16 bits")
    return _pillow().fromarray(np.rint(values / 257).astype(np.uint8))
