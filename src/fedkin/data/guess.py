"""Settings of the source for data of one's own, guessed from the data, which are then read with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedkin.data.dataset import Dataset
from fedkin.data.sources import SOURCES
from fedkin.data.sources.folder import Folder, size_of
from fedkin.data.sources.hub import open_saved
from fedkin.data.sources.npz import opened
from fedkin.errors import ConfigError, DataError
from fedkin.federation.table import CLASSES
from fedkin.settings import parse
from fedkin.untrusted import shown

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
    first = _read(settings)
    scale = _scale(first[1].train.x)
    return _read({**settings, **scale}) if scale else first


def of_images(data: Path) -> Found:
    """Of a folder CLIENT/CLASS/*.png: as they are if all are small and alike. Raises DataError and ConfigError."""
    sizes = {size_of(path) for _, path in Folder(path=data).files(data)}
    size = "same" if len(sizes) == 1 and max(max(sizes)) <= _SIDE else _SIDE
    return _read({"source": "folder", "path": str(data), "folders": "clients", "size": size})


def of_saved(data: Path, settings: dict[str, Any]) -> Found:
    """Of a folder that `save_to_disk` wrote. settings: those that are known. Raises DataError and ConfigError."""
    opened = open_saved(data)
    train = None
    if isinstance(opened, Mapping):
        train = "train" if "train" in opened else next(iter(opened))
        opened = opened[train]
    roles = _roles(opened.features)
    columns = listed(list(roles))
    client = settings.get("client") or ("client" if "client" in roles else None)
    others = {name: role for name, role in roles.items() if name not in (client, settings.get("group"))}
    target = settings.get("target") or _only(others, "classes", "label")
    if target is None:
        raise ConfigError(f"--target: name the column to predict; {data} has {columns}")
    inputs = {name: role for name, role in roles.items() if name != target}
    image = next((name for name, role in inputs.items() if role == "image"), None)
    tokens = "input_ids" if inputs.get("input_ids") == "ids" else _only(inputs, "ids", "input_ids")
    if (client, image, tokens) == (None, None, None):
        raise ConfigError(
            f"--client: name the column that says whose each row is; {data} has {columns}; only "
            "pictures and token ids (input_ids, which a tokeniser makes of texts) can be dealt at random"
        )
    settings = {"source": "hub", "path": str(data), **settings, "train": train, "target": target, "client": client,
                "image": image, "tokens": None if image else tokens}  # fmt: skip
    return _read(settings) if image is None else _pictures(settings)


def _pictures(settings: dict[str, Any]) -> Found:
    """Pictures as they are if all are small and of one size, else stretched."""
    stretched = {**settings, "size": _SIDE}
    try:
        first = _read(settings)
    except DataError:
        # Of unlike sizes; whatever else is wrong is refused again.
        return _read(stretched)
    return first if max(first[1].train.x.shape[2:]) <= _SIDE else _read(stretched)


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


def listed(names: Sequence[str]) -> str:
    """Names beside each other, cut where there are very many."""
    return shown(", ".join(names), 400)


def usual(mean: torch.Tensor, deviation: torch.Tensor) -> bool:
    """Whether numbers of such means and deviations can be trained on as they are."""
    return bool(mean.abs().max() <= _FAR and deviation.min() >= _WIDE[0] and deviation.max() <= _WIDE[1])


# -- datasets that save_to_disk wrote --------------------------------------------------------------------------

_SAVED = ("dataset_info.json", "dataset_dict.json")
# Lists of whole numbers that tokenisers write beside the ids.
_BESIDE = ("attention_mask", "token_type_ids", "special_tokens_mask")


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in _SAVED)


def _roles(features: Mapping[str, Any]) -> dict[str, str]:
    """What each column holds: "classes", "image", "ids" (lists of whole numbers) or "other"."""
    roles = {}
    for name, feature in features.items():
        roles[name] = {"ClassLabel": "classes", "Image": "image"}.get(type(feature).__name__, "other")
        inner = getattr(feature, "feature", None)
        if str(getattr(inner, "dtype", "")).startswith(("int", "uint")) and name not in _BESIDE:
            roles[name] = "ids"
    return roles


def _only(roles: Mapping[str, str], role: str, usual: str) -> str | None:
    """The only column of this role, else the one of the usual name, if it is there."""
    names = [name for name, each in roles.items() if each == role]
    if len(names) == 1:
        return names[0]
    return usual if usual in roles else None
