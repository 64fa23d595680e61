"""Guess the settings of a source from a user's own data, and read the data with them."""

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
from fedkin.data.sources.npz import read_arrays
from fedkin.errors import ConfigError, DataError, first_few
from fedkin.federation.table_encoding import CLASSES
from fedkin.settings import parse

# (settings of the source, the data set that it reads with them)
Guess = tuple[dict[str, Any], Dataset]

# Larger images are resized to this side length, so that a first run does not take hours.
_SIDE = 64
# Inputs are standardised unless their means are within _FAR and their standard deviations within _WIDE.
_FAR, _WIDE = 3.0, (0.1, 10.0)


def of_arrays(data: Path, kind: str | None) -> Guess:
    """Guess and read a .npz file; kind: of the task (None: guessed from y). Raises DataError and ConfigError."""
    arrays = read_arrays(data)
    x, y = arrays["x"], arrays["y"]
    settings = {"source": "npz", "path": str(data), "channels": _channels(x), "kind": kind or _target_of(y, data)}
    read = _read(settings)
    scale = _scale(read[1].train.x)
    return _read({**settings, **scale}) if scale else read


def of_images(data: Path) -> Guess:
    """Guess and read images CLIENT/CLASS/*.png, resized unless all are small and of one size.

    Raises DataError and ConfigError.
    """
    sizes = {size_of(path) for _, path in Folder(path=data).files(data)}
    size = "same" if len(sizes) == 1 and max(max(sizes)) <= _SIDE else _SIDE
    return _read({"source": "folder", "path": str(data), "folders": "clients", "size": size})


def of_saved(data: Path, settings: dict[str, Any]) -> Guess:
    """Guess and read a folder that `save_to_disk` wrote. settings: the known ones. Raises DataError and ConfigError."""
    roles, train = columns_of_saved(data)
    client = settings.get("client") or ("client" if "client" in roles else None)
    target, image, tokens = choose_columns(roles, settings.get("target"), but=(client, settings.get("group")))
    has = f"{data} has {first_few(roles, 40)}"
    if target is None:
        raise ConfigError(f"--target: name the column to predict; {has}")
    if (client, image, tokens) == (None, None, None):
        only = "only pictures and token ids (input_ids, which a tokeniser makes of texts) can be dealt at random"
        raise ConfigError(f"--client: name the column that says whose each row is; {has}; {only}")
    settings = {"source": "hub", "path": str(data), **settings, "train": train, "target": target,
                "client": client, "image": image, "tokens": None if image else tokens}  # fmt: skip
    return _read(settings) if image is None else _pictures(settings)


def _pictures(settings: dict[str, Any]) -> Guess:
    """Read images unchanged if all are small and of one size, otherwise resized."""
    stretched = {**settings, "size": _SIDE}
    try:
        read = _read(settings)
    except DataError:
        # The sizes differ; any other error is raised again here.
        return _read(stretched)
    return read if max(read[1].train.x.shape[2:]) <= _SIDE else _read(stretched)


def _read(settings: dict[str, Any]) -> Guess:
    """Return the settings that are not None, and the data set read with them."""
    given = {name: value for name, value in settings.items() if value is not None}
    dataset: Dataset = parse(SOURCES[settings["source"]], given, "data").load(Path())
    return given, dataset


def _channels(x: npt.NDArray[Any]) -> str | None:
    """The setting `channels` of images: none (bytes without channels), last (1, 3 or 4 channels), or the default."""
    if x.ndim == 3 and x.dtype == np.uint8:
        return "none"
    return "last" if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4) else None


def _target_of(y: npt.NDArray[Any], path: Path) -> str | None:
    """Return "regression" for numbers to predict, or None; raises ConfigError unless classes are whole numbers [n]."""
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
    """Mean and standard deviation (images: per channel) for standardising; empty for bytes and a usual scale."""
    if x.dtype == torch.uint8:
        return {}
    rest = [0, 2, 3] if x.ndim == 4 else list(range(x.ndim))
    deviation, mean = torch.std_mean(x.double(), rest, correction=0)
    known = deviation[deviation > 0]
    if not len(known) or is_standard_scale(mean, known):
        return {}
    parts = {"mean": mean, "std": torch.where(deviation > 0, deviation, 1.0)}
    return {name: [float(f"{value:.6g}") for value in part.reshape(-1).tolist()] for name, part in parts.items()}


def is_standard_scale(mean: torch.Tensor, deviation: torch.Tensor) -> bool:
    """Whether a net can train on inputs with these means and standard deviations without standardising."""
    return bool(mean.abs().max() <= _FAR and deviation.min() >= _WIDE[0] and deviation.max() <= _WIDE[1])


# -- datasets that save_to_disk wrote ---------------------------------------------------------------------------

Role = Literal["classes", "image", "ids", "other"]

# Other columns of tokenisers that hold lists of whole numbers, but no token ids.
_BESIDE = ("attention_mask", "token_type_ids", "special_tokens_mask")


def choose_columns(
    roles: Mapping[str, Role], target: str | None = None, but: Collection[str | None] = ()
) -> tuple[str | None, str | None, str | None]:
    """Choose (target column, image column, token id column) by the columns' roles; None if there is no such column.

    Without `target`: the only column of classes that is not in `but`, else "label". Images: the first such column.
    Token ids: "input_ids", else the only column with lists of whole numbers.
    """
    target = target or _only(roles, "classes", "label", but)
    image = next((name for name, role in roles.items() if role == "image" and name != target), None)
    ids = _only(roles, "ids", "input_ids", (*_BESIDE, target))
    return target, image, ids


def _only(roles: Mapping[str, Role], role: Role, usual: str, but: Collection[str | None]) -> str | None:
    """The only column with this role that is not in `but`, else the usual one (the one of classes in any role)."""
    found = [name for name in roles if roles[name] == role and name not in but]
    return found[0] if len(found) == 1 else usual if usual in (roles if role == "classes" else found) else None


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def columns_of_saved(folder: Path) -> tuple[dict[str, Role], str | None]:
    """(role of each column, training split: "train", else the first one, None without splits); raises DataError."""
    dataset, train = Hub(path=folder, target="", client="").opened(Path()), None
    if isinstance(dataset, Mapping):
        train = "train" if "train" in dataset else next(iter(dataset))
        dataset = dataset[train]
    return {name: _role(feature) for name, feature in dataset.features.items()}, train


def _role(feature: Any) -> Role:
    """The role of a column with this feature type of the package datasets."""
    if hasattr(feature, "int2str"):
        return "classes"
    if type(feature).__name__ == "Image":
        return "image"
    inner = getattr(feature, "feature", None)  # of a list
    return "ids" if str(getattr(inner, "dtype", "")).startswith(("int", "uint")) else "other"
