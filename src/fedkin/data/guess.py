"""Settings of the source for data of one's own, guessed from the data, which are then read with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from fedkin.errors import ConfigError, DataError, first_few
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
    roles, train = saved(data)
    client = settings.get("client") or ("client" if "client" in roles else None)
    target, image, tokens = chosen(roles, settings.get("target"), but=(client, settings.get("group")))
    has = f"{data} has {first_few(roles, 40)}"
    if target is None:
        raise ConfigError(f"--target: name the column to predict; {has}")
    if (client, image, tokens) == (None, None, None):
        only = "only pictures and token ids (input_ids, which a tokeniser makes of texts) can be dealt at random"
        raise ConfigError(f"--client: name the column that says whose each row is; {has}; {only}")
    settings = {"source": "hub", "path": str(data), **settings, "train": train, "target": target,
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


def chosen(
    roles: Mapping[str, Role], target: str | None = None, but: Collection[str | None] = ()
) -> tuple[str | None, str | None, str | None]:
    """(the column to predict, that of pictures, that of token ids), from what each column holds.

    Without a target the only column of classes that is not in `but`, else "label". Of pictures the first one; of ids
    "input_ids", else the only one with lists of whole numbers.
    """

    def only(role: Role, name: str, but: Collection[str | None]) -> str | None:
        found = [each for each in roles if roles[each] == role and each not in but]
        return found[0] if len(found) == 1 else name if name in (roles if role == "classes" else found) else None

    target = target or only("classes", "label", but)
    image = next((name for name, role in roles.items() if role == "image" and name != target), None)
    ids = only("ids", "input_ids", (*_BESIDE, target))
    return target, image, ids


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def saved(folder: Path) -> tuple[dict[str, Role], str | None]:
    """(what each column of the dataset holds, its split for training: "train", or else its first); raises DataError."""
    dataset, train = Hub(path=folder, target="", client="").opened(Path()), None
    if isinstance(dataset, Mapping):
        train = "train" if "train" in dataset else next(iter(dataset))
        dataset = dataset[train]
    return {name: _role(feature) for name, feature in dataset.features.items()}, train


def _role(feature: Any) -> Role:
    """What a column of this feature of the package datasets holds."""
    if hasattr(feature, "int2str"):
        return "classes"
    if type(feature).__name__ == "Image":
        return "image"
    inner = getattr(feature, "feature", None)  # of a list
    return "ids" if str(getattr(inner, "dtype", "")).startswith(("int", "uint")) else "other"
