"""Settings of the source for data of one's own, guessed from the data, which are then read with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedkin.data.dataset import Dataset
from fedkin.data.sources import SOURCES
from fedkin.data.sources.folder import Folder, size_of
from fedkin.data.sources.hub import Hub
from fedkin.data.sources.npz import opened
from fedkin.errors import ConfigError, DataError, some
from fedkin.federation.table import CLASSES
from fedkin.settings import parse

# Settings of the source, and what it reads with them.
Found = tuple[dict[str, Any], Dataset]

# Larger pictures are stretched to this side, so that a first run does not take hours.
_SIDE = 64
# Numbers within these bounds are left as they are.
_FAR, _WIDE = 3.0, (0.1, 10.0)


def of_arrays(data: Path, kind: str | None = None) -> Found:
    """Of a .npz file; kind: of the task, else found from y. Raises DataError and ConfigError."""
    arrays = opened(data)
    x, y = arrays["x"], arrays["y"]
    settings = {"source": "npz", "path": str(data), "channels": _channels(x), "kind": kind or _target_of(y, data)}
    read = _read(settings)
    scale = _scale(read[1].train.x)
    return _read({**settings, **scale}) if scale else read


def of_images(data: Path) -> Found:
    """Of a folder CLIENT/CLASS/*.png: as they are if all are small and alike. Raises DataError and ConfigError."""
    sizes = {size_of(path) for _, path in Folder(path=data).files(data)}
    size = "same" if len(sizes) == 1 and max(max(sizes)) <= _SIDE else _SIDE
    return _read({"source": "folder", "path": str(data), "folders": "clients", "size": size})


def of_saved(data: Path, settings: dict[str, Any]) -> Found:
    """Of a folder that `save_to_disk` wrote. settings: those that are known. Raises DataError and ConfigError."""
    columns = saved(data)
    client = settings.get("client") or ("client" if "client" in columns.roles else None)
    target = settings.get("target") or columns.target(but=(client, settings.get("group")))
    if target is None:
        raise ConfigError(f"--target: name the column to predict; {data} has {some(columns.roles, 40)}")
    image, tokens = columns.image(but=target), columns.tokens(but=target)
    if (client, image, tokens) == (None, None, None):
        raise ConfigError(
            f"--client: name the column that says whose each row is; {data} has {some(columns.roles, 40)}; only "
            "pictures and token ids (input_ids, which a tokeniser makes of texts) can be dealt at random"
        )
    settings = {"source": "hub", "path": str(data), **settings, "train": columns.train, "target": target,
                "client": client, "image": image, "tokens": None if image else tokens}  # fmt: skip
    return _read(settings) if image is None else _pictures(settings)


def _pictures(settings: dict[str, Any]) -> Found:
    """Pictures as they are if all are small and of one size, else stretched."""
    stretched = {**settings, "size": _SIDE}
    try:
        read = _read(settings)
    except DataError:
        # Of unlike sizes; whatever else is wrong is refused again.
        return _read(stretched)
    return read if max(read[1].train.x.shape[2:]) <= _SIDE else _read(stretched)


def _read(settings: dict[str, Any]) -> Found:
    """The data set, and the settings that have a value."""
    given = {name: value for name, value in settings.items() if value is not None}
    dataset: Dataset = parse(SOURCES[settings["source"]], given, "data").load(Path())
    return given, dataset


def _channels(x: npt.NDArray[Any]) -> str | None:
    """Where pictures of bytes, or of 1, 3 or 4 channels, have their channels."""
    if x.ndim == 3 and x.dtype == np.uint8:
        return "none"
    return "last" if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4) else None


def _target_of(y: npt.NDArray[Any], path: Path) -> str | None:
    """Whether these are numbers to predict; raises ConfigError for classes that are not stored as whole numbers [n]."""
    if y.dtype.kind not in "buif" or y.ndim not in (1, 2) or (y.dtype.kind != "f" and y.ndim == 1):
        return None
    whole = bool((y % 1 == 0).all())
    if whole and y.ndim == 2 and y.shape[1] > 1 and (y >= 0).all() and (y.sum(1) == 1).all():
        raise ConfigError(f"{path}: array y has a column for each class; store their numbers: y.argmax(1)")
    if whole and y.size == len(y) and len(np.unique(y)) <= CLASSES:
        shape = f"{y.dtype} {list(y.shape)}"
        raise ConfigError(f"{path}: array y holds whole numbers as {shape}; store classes as whole numbers [n] "
                          "(y.ravel().astype(int)), or say --kind regression")  # fmt: skip
    return "regression"


def _scale(x: torch.Tensor) -> dict[str, list[float]]:
    """Mean and deviation of training samples far from 0, or spread widely or hardly; of pictures by channel."""
    if x.dtype == torch.uint8:
        return {}
    rest = [0, 2, 3] if x.ndim == 4 else list(range(x.ndim))
    deviation, mean = torch.std_mean(x.double(), rest, correction=0)
    known = deviation[deviation > 0]
    if not len(known) or usual(mean, known):
        return {}
    parts = {"mean": mean, "std": torch.where(deviation > 0, deviation, 1.0)}
    return {name: [float(f"{value:.6g}") for value in part.reshape(-1).tolist()] for name, part in parts.items()}


def usual(mean: torch.Tensor, deviation: torch.Tensor) -> bool:
    """Whether numbers of such means and deviations can be trained on as they are."""
    return bool(mean.abs().max() <= _FAR and deviation.min() >= _WIDE[0] and deviation.max() <= _WIDE[1])


# -- datasets that save_to_disk wrote ---------------------------------------------------------------------------

Role = Literal["classes", "image", "ids", "other"]

# Lists of whole numbers that tokenisers write beside the ids.
_BESIDE = ("attention_mask", "token_type_ids", "special_tokens_mask")


@dataclass(frozen=True)
class Saved:
    """A saved dataset. roles: what each column holds, in their order. train: the split to train on, if it has any."""

    roles: Mapping[str, Role]
    train: str | None = None

    def target(self, but: Collection[str | None] = ()) -> str | None:
        """The column to predict: the only one of classes, else one called "label"."""
        classes = [name for name, role in self.roles.items() if role == "classes" and name not in but]
        if len(classes) == 1:
            return classes[0]
        return "label" if "label" in self.roles else None

    def image(self, but: str) -> str | None:
        """The first column of pictures."""
        return next((name for name, role in self.roles.items() if role == "image" and name != but), None)

    def tokens(self, but: str) -> str | None:
        """The column of token ids: "input_ids", else the only one with lists of whole numbers."""
        ids = [name for name, role in self.roles.items() if role == "ids" and name not in (*_BESIDE, but)]
        return "input_ids" if "input_ids" in ids else ids[0] if len(ids) == 1 else None


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def saved(folder: Path) -> Saved:
    """The columns of the dataset, and its split for training: "train", or else its first; raises DataError."""
    dataset, train = Hub(path=folder, target="", client="").opened(Path()), None
    if isinstance(dataset, Mapping):
        train = "train" if "train" in dataset else next(iter(dataset))
        dataset = dataset[train]
    return Saved({name: _role(feature) for name, feature in dataset.features.items()}, train)


def _role(feature: Any) -> Role:
    """What a column of this feature of the package datasets holds."""
    if hasattr(feature, "int2str"):
        return "classes"
    if type(feature).__name__ == "Image":
        return "image"
    inner = getattr(feature, "feature", None)  # of a list
    return "ids" if str(getattr(inner, "dtype", "")).startswith(("int", "uint")) else "other"
