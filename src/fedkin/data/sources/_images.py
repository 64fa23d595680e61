"""Image files as bytes of one size, channels first. Needs Pillow, an optional extra."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import ConfigError, DataError
from fedkin.untrusted import Refused, most, said

ENDINGS = (".jpg", ".jpeg", ".png")


def read_images(files: Sequence[Path], size: tuple[int, int], *, resize: bool = True, grey: bool = False) -> Tensor:
    """[N, 3, height, width] uint8 (grey: [N, 1, ...]): these files, one after another; see `read_image`."""
    x = np.empty((len(files), 1 if grey else 3, *size), np.uint8)
    for row, path in enumerate(files):
        x[row] = read_image(path, size, resize=resize, grey=grey)
    return torch.from_numpy(x)


def size_of(path: Path) -> tuple[int, int]:
    """(height, width) of an image file; raises DataError naming the file, ConfigError without Pillow."""
    try:
        with _pillow().open(path) as file:
            width, height = file.size
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an image ({said(error)})") from None
    return height, width


def read_image(
    path: Path, size: tuple[int, int], *, resize: bool = True, grey: bool = False
) -> npt.NDArray[np.uint8]:  # fmt: skip
    """[3, height, width] uint8 colours of an image file, or [1, ...] its grey values; size: (height, width).

    Grey images get three equal channels of colours; greys of 16 bits are divided by 257, and turns that a camera has
    noted are made. An image of another size is resized bilinearly, without keeping its
    aspect ratio, or refused if `resize` is False. Raises DataError naming the file, ConfigError without Pillow.
    """
    image_module = _pillow()
    height, width = size
    try:
        with warnings.catch_warnings(), image_module.open(path) as file:
            # Pillow only warns of an image that is far larger packed out than in its file.
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            if 3 * math.prod(file.size) > most(path.stat().st_size):
                raise Refused(f"{file.size[1]} x {file.size[0]} pixels, too many for a file of its size")
            image = as_bytes(import_module("PIL.ImageOps").exif_transpose(file)).convert("L" if grey else "RGB")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected an image") from None
    # With a damaged file the decoders raise many kinds of exceptions.
    except Exception as error:
        raise DataError(
            f"{path}: cannot be read as an image ({said(error)}); remove it, or put a whole one there"
        ) from None
    if image.size != (width, height):
        if not resize:
            raise DataError(f"{path}: {image.size[1]} x {image.size[0]} pixels, expected {height} x {width}")
        image = image.resize((width, height), image_module.Resampling.BILINEAR)
    held = np.asarray(image, np.uint8)
    return held[None].copy() if grey else np.ascontiguousarray(held.transpose(2, 0, 1))


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ConfigError('data.source: this one reads images with Pillow: pip install "fedkin[images]"') from None


def as_bytes(image: Any) -> Any:
    """A Pillow image whose values fit into bytes: greys of 16 bits are divided by 257; raises Refused for others."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise Refused(f"values from {values.min():g} to {values.max():g}, not of 8 or 16 bits; save it with 16 bits")
    return _pillow().fromarray(np.rint(values / 257).astype(np.uint8))
