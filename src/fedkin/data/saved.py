"""The columns of a Hugging Face dataset that `save_to_disk` wrote, as its own JSON files say them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedkin.errors import DataError
from fedkin.untrusted import json_of, said, text_in

__all__ = ["Role", "Saved", "is_saved", "saved"]

Role = Literal["classes", "image", "ids", "other"]

_ONE, _SPLITS = "dataset_info.json", "dataset_dict.json"
_BYTES = 1 << 24
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
        found = [name for name, role in self.roles.items() if role == "ids" and name not in (*_BESIDE, but)]
        return "input_ids" if "input_ids" in found else found[0] if len(found) == 1 else None


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in (_ONE, _SPLITS))


def saved(folder: Path) -> Saved:
    """The columns of the dataset, and its split for training: "train", or else its first; raises DataError."""
    if not (folder / _SPLITS).is_file():
        return Saved(_roles(folder / _ONE))
    splits = _json(folder / _SPLITS).get("splits")
    if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
        raise _odd(folder / _SPLITS, "it names no splits")
    train = "train" if "train" in splits else splits[0]
    return Saved(_roles(folder / train / _ONE), train)


def _roles(path: Path) -> dict[str, Role]:
    features = _json(path).get("features")
    if not isinstance(features, dict) or not features:
        raise _odd(path, "it names no columns")
    return {str(name): _role(feature) for name, feature in features.items()}


def _role(feature: Any) -> Role:
    if isinstance(feature, list) and len(feature) == 1:
        feature = {"_type": "List", "feature": feature[0]}
    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind in ("Sequence", "List", "LargeList"):
        inner = feature.get("feature")
        kind = str(inner.get("dtype", "")) if isinstance(inner, dict) else ""
        return "ids" if kind.startswith(("int", "uint")) else "other"
    return "classes" if kind == "ClassLabel" else "image" if kind == "Image" else "other"


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json_of(text_in(path, _BYTES))
    except (OSError, ValueError) as error:
        raise _odd(path, said(error)) from None
    if not isinstance(held, dict):
        raise _odd(path, "it is no table")
    return held


def _odd(path: Path, why: str) -> DataError:
    return DataError(f"{path}: cannot be read ({why}); expected a folder that save_to_disk wrote")
