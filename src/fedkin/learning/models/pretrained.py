"""Nets of Hugging Face transformers and of timm by name: from a folder of files, which are never pickles."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from fedkin.errors import ConfigError, FedkinError, nearest
from fedkin.federation import Task
from fedkin.learning.models.backbones import Adapters, Pool, backbone, transformer
from fedkin.learning.models.base import Model
from fedkin.learning.models.packages import library
from fedkin.untrusted import said

__all__ = ["Timm", "Transformers"]

_ADAPTER = "adapter_config.json"
_NO_ADAPTER = "it is of an adapter, which is not loaded; merge it into the net (peft: merge_and_unload), and save that"
# Endings of values that would not be read, so that others would be drawn.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_OTHERS = (".h5", ".msgpack", ".gguf", ".onnx", ".npz")
_DECIDED = {"num_classes": "the head is fedkin's own", "in_chans": "it is what the data have"}


class Pretrained(Model):
    """Settings of a body that comes with its values.

    frozen: train the head alone; features of each sample are computed once and kept, if `keep` (docs/models.md).
    adapters: train LoRA adapters, the head and, with width, the layer before it. width: Linear `width` and ReLU behind
    the features, which is trained too; bodies of unlike nets get features of one width by it (None: no such layer).
    digest: a hash of the files, found when a run begins; a run goes on only with the same files.
    """

    frozen: bool = False
    keep: bool = True
    adapters: Adapters | None = None
    width: int | None = Field(None, ge=1)
    digest: str = ""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.frozen and self.adapters is not None:
            raise ValueError("give frozen or adapters: a frozen body has nothing that adapters could train")
        return self

    @model_validator(mode="before")
    @classmethod
    def _digested(cls, table: Any) -> Any:
        """Note the hash of the files, if they are there."""
        path = table.get("path") if isinstance(table, Mapping) else None
        if not isinstance(path, (str, Path)) or not Path(path).exists():
            return table
        now, before = digest_of(Path(path)), table.get("digest")
        if before not in (None, "", now):
            raise ValueError(
                f"{path}: its files are not those with which this was begun (hash {before}, here {now}): put those "
                "there, or begin anew"
            )
        return {**table, "digest": now}

    @abstractmethod
    def parts(self, task: Task) -> tuple[nn.Module, int]:
        """Return (the net from inputs to features, the length of a feature)."""

    def assembled(self, made: tuple[nn.Module, nn.Module], features: int, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) with the layer of `width`, if there is one."""
        body, _ = made
        if self.width is None:
            return body, nn.Linear(features, task.outputs)
        # The frozen part stays first, and is found there.
        parts = list(body) if type(body) is nn.Sequential else [body]
        return nn.Sequential(*parts, nn.Linear(features, self.width), nn.ReLU()), nn.Linear(self.width, task.outputs)


class Transformers(Pretrained):
    """A net of Hugging Face transformers, without its head, from a folder with config.json and model.safetensors.

    path: the folder, absolute or below the current one. Without a file of values they are drawn from the seed; values
    in other forms than safetensors, and adapters, are refused. hub: its name on the Hub in place of a folder, and
    revision: the 40 characters of a commit there; it is fetched when the run begins, and is refused over a network. No
    code of a model is run. Inputs are token ids [length] as whole numbers, of which `padding`
    (None: the model's padding id, or 0) is masked, a dict with input_ids and attention_mask, or images of the size that
    the model takes. pool: the feature of a text or an image: "mean" over its tokens, the "first" or the "last" one, or
    what the model pools itself ("own").
    """

    name: Literal["transformers"] = "transformers"
    path: Path | None = None
    hub: str | None = None
    revision: str | None = None
    padding: int | None = Field(None, ge=0)
    pool: Pool = "mean"

    @model_validator(mode="after")
    def _place(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give path (a folder with config.json and model.safetensors) or hub (a name), not both")
        if self.hub is None and self.revision is not None:
            raise ValueError("revision: it is the commit of a net on the Hub; leave it out with path")
        if self.hub is not None and not re.fullmatch("[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                "hub: give revision, the 40 characters of a commit on the Hub: a branch or a tag may move, and a run "
                "would go on with other values"
            )
        return self

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        net, features = self.parts(task)
        made = transformer(
            net, nn.Identity(), adapters=self.adapters or False, frozen=self.frozen, keep=self.keep,
            padding=self.padding, pool=self.pool,
        )  # fmt: skip
        return self.assembled(made, features, task)

    def parts(self, task: Task) -> tuple[nn.Module, int]:
        place = str(self.hub if self.path is None else _folder(self.path))
        hugging = library("transformers")
        what = "path" if self.hub is None else "hub"
        how = {"revision": self.revision, "trust_remote_code": False, "local_files_only": self.path is not None}
        try:
            # Its adapter would be loaded, and the net that it names fetched.
            if self.hub is not None and hugging.utils.cached_file(
                place, _ADAPTER, revision=self.revision, _raise_exceptions_for_missing_entries=False
            ):
                raise ConfigError(f"model.{what}: {place}: {_ADAPTER}: {_NO_ADAPTER}")
            config = hugging.AutoConfig.from_pretrained(place, **how)
            net = self._loaded(hugging, config, place, how)
        except FedkinError:
            raise
        except Exception as error:  # of files, of the network, of what the Hub answers
            expected = "a folder with config.json and model.safetensors" if self.path else "a name on the Hub"
            raise ConfigError(
                f"model.{what}: {place}: cannot be opened ({type(error).__name__}: {said(error)}); expected {expected}"
            ) from None
        pooler = getattr(net, "pooler", None)
        if self.pool != "own" and pooler is not None and any(True for _ in pooler.parameters()):
            net.pooler = None  # of no use, but it would be trained and sent
        self._check(task, config)
        sizes = getattr(config, "hidden_sizes", None)
        size = sizes[-1] if sizes else getattr(config, "hidden_size", None) or getattr(config, "hidden_dim", None)
        if not isinstance(size, int):
            raise ConfigError(
                f"model.{what}: {place}: {config.model_type} does not say how long its features are (hidden_size in "
                "config.json); from Python, fedkin.learning.models.transformer takes it with a head of your own"
            )
        return net, size

    def _loaded(self, hugging: Any, config: Any, place: str, how: Mapping[str, Any]) -> Any:
        if self.path is not None and not any(self.path.glob("*.safetensors")):
            return hugging.AutoModel.from_config(config, trust_remote_code=False)
        bars = hugging.utils.logging
        shown = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()
        try:
            net, told = hugging.AutoModel.from_pretrained(
                place, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **how
            )
        finally:
            if shown:
                bars.enable_progress_bar()
        lost = sorted(n for n in told["missing_keys"] if self.pool == "own" or not n.startswith("pooler."))
        if lost:
            raise ConfigError(
                f"model: {place}: the files have no values of {lost[0]} and {len(lost) - 1} more, which the net of "
                "config.json has; expected the values of that net"
            )
        return net

    def _check(self, task: Task, config: Any) -> None:
        """Raise ConfigError for texts that are too long, and for numbers where the model takes token ids."""
        shapes = task.shapes
        longest = getattr(config, "max_position_embeddings", None)
        words = getattr(config, "vocab_size", None)
        ids = "input_ids" if "input_ids" in shapes else "x"
        if words is not None and ids in shapes and (ids not in task.codes or len(shapes[ids]) != 1):
            raise ConfigError(
                f"model.name: {config.model_type} needs token ids [length] as whole numbers, the task's inputs are "
                f"{list(shapes[ids])}{'' if task.codes else ' of numbers'}; see docs/data.md"
            )
        if longest is not None and ids in task.codes and shapes[ids][0] > longest:
            raise ConfigError(
                f"model: texts have {shapes[ids][0]} tokens, and {config.model_type} takes {longest}; set data.length"
            )


class Timm(Pretrained):
    """A net of timm, without its head. net: its name there. options: further settings of it (img_size, patch_size, ..).

    path: a .safetensors file with its values, such as timm saves; without it they are drawn from the seed. Inputs are
    images [channels, height, width]; the first layer is made for their channels.
    """

    name: Literal["timm"] = "timm"
    net: str
    path: Path | None = None
    options: dict[str, Any] = Field({})

    @field_validator("options")
    @classmethod
    def _own(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Refuse what would go round the hash of the files, and what the task decides."""
        for name in options:
            if name.startswith("pretrained") or name in ("checkpoint_path", "cache_dir"):
                raise ValueError(
                    f"{name}: values come from a .safetensors file, of which a hash is kept: set model.path"
                )
            if name in _DECIDED:
                raise ValueError(f"{name}: {_DECIDED[name]}; leave it out")
        return options

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        net, features = self.parts(task)
        made = backbone(net, nn.Identity(), adapters=self.adapters or False, frozen=self.frozen, keep=self.keep)
        return self.assembled(made, features, task)

    def parts(self, task: Task) -> tuple[nn.Module, int]:
        timm = library("timm")
        shape = task.numbers("model.name: 'timm'")
        if len(shape) != 3:
            raise ConfigError(f"model.name: 'timm' needs images [channels, height, width], inputs have shape {shape}")
        if self.net not in timm.list_models():
            raise ConfigError(f"model.net: timm has no {self.net!r}; {_near(self.net, timm.list_models())}")
        try:
            net = timm.create_model(
                self.net, **{**self.options, "pretrained": False, "num_classes": 0, "in_chans": shape[0]}
            )
            if self.path is not None:
                self._load(net, self.path)
            with torch.no_grad():
                features = net.eval()(torch.zeros(1, *shape)).shape
        except FedkinError:
            raise
        except Exception as error:  # of settings and shapes that the net does not take
            raise ConfigError(f"model.net: {self.net} for inputs {list(shape)}: {said(error)}") from None
        if len(features) != 2:
            raise ConfigError(f"model.net: {self.net} gives features {list(features)}, expected [1, d]")
        return net.train(), int(features[1])

    def _load(self, net: nn.Module, path: Path) -> None:
        from safetensors.torch import load_file

        if path.suffix != ".safetensors" or not path.is_file():
            raise ConfigError(f"model.path: {path}: expected a .safetensors file; other forms run code when read")
        lost = net.load_state_dict(load_file(path), strict=False).missing_keys
        if lost:
            raise ConfigError(f"model.path: {path}: no values of {lost[0]} and {len(lost) - 1} more")


def _near(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("did") else "see timm.list_models()"


def _folder(path: Path) -> Path:
    """Check a folder of files; raises ConfigError."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path: {path}: no config.json in it; expected a folder that save_pretrained wrote")
    if (path / _ADAPTER).exists():
        raise ConfigError(f"model.path: {path}: {_ADAPTER}: {_NO_ADAPTER}")
    files = sorted(file for file in path.iterdir() if file.suffix in (*_PICKLES, *_OTHERS))
    if files and not any(path.glob("*.safetensors")):
        pickle = files[0].suffix in _PICKLES
        what = "is a pickle, which runs code when it is read" if pickle else "is not safetensors"
        raise ConfigError(
            f"model.path: {path}: {files[0].name} {what}; load it where you trust it, and save it as safetensors "
            "(save_pretrained)"
        )
    return path


def digest_of(path: Path) -> str:
    """Return a hash of the settings and values in a folder, or of one file."""
    files = sorted([*path.glob("*.json"), *path.glob("*.safetensors")]) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file.name} {_hash(str(file.resolve()), about.st_size, about.st_mtime_ns)}".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=64)
def _hash(file: str, size: int, changed: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
