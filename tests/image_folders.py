"""Participants with folders of images, made up by Pillow."""

from __future__ import annotations

from pathlib import Path

import pytest

CLASSES = ("cat", "dog", "horse")


def wards(folder: Path, *names: str) -> Path:
    """Folders NAME/CLASS/ of five small images each, of other colours; two NAMEs by default."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install fedkin[images]")
    for site, name in enumerate(names or ("north", "south")):
        for label, of in enumerate(CLASSES):
            place = folder / "images" / name / of
            place.mkdir(parents=True)
            for number in range(5):
                made = image.new("RGB", (7, 8 + number), (40 * site + number, 20 + 80 * label, 200 - 60 * label))
                made.save(place / f"{number}.png")
    return folder / "images"
