"""Nets that come with their values, as nets of your own in an experiment: Hugging Face transformers, and timm.

    pip install "fedkin[transformers]"

    [model]
    name = "examples/pretrained_nets.py:Transformers"
    path = "models/distilbert"     # a folder of save_pretrained: config.json and model.safetensors
    adapters = {rank = 4}          # train LoRA adapters and the head; or frozen = true: the head alone; or neither: all

`docs/models.md` has more. Values are read from safetensors, never from pickles, and no code of a model is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Task
from fedkin.learning.models import Adapters, Model, backbone, transformer
from fedkin.learning.models.pretrained import Pool, library
from fedkin.untrusted import error_text


class Pretrained(Model):
    """Settings of a body that comes with its values.

    frozen: train the head alone; features of each sample are computed once and kept. adapters: train LoRA adapters, the
    head and, with width, the layer before it. width: Linear `width` and ReLU behind the features, which is trained too;
    bodies of unlike nets get features of one width by it (None: no such layer). digest: a hash of the files, found when
    a run begins; a run goes on only with the same files.
    """

    frozen: bool = False
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
        path = Path(table["path"]) if isinstance(table, Mapping) and table.get("path") else None
        if path is None or not path.exists():
            return table
        now, before = digest_of(path), table.get("digest")
        if before not in (None, "", now):
            raise ValueError(
                f"{path}: its files are not those with which this was begun (hash {before}, here {now}): put those "
                "there, or begin anew"
            )
        return {**table, "digest": now}

    def with_head(self, body: nn.Module, features: int, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head), with the layer of `width` if there is one."""
        if self.width is None:
            return body, nn.Linear(features, task.outputs)
        # The frozen part stays first, where it is looked for.
        parts = list(body) if type(body) is nn.Sequential else [body]
        return nn.Sequential(*parts, nn.Linear(features, self.width), nn.ReLU()), nn.Linear(self.width, task.outputs)


class Transformers(Pretrained):
    """A net of Hugging Face transformers, without its head, from a folder with config.json and model.safetensors.

    path: the folder, absolute or below the current one. Inputs are token ids [length] as whole numbers, of which
    `padding` (None: the model's padding id, or 0) is masked, a dict with input_ids and attention_mask, or images of the
    size that the model takes. pool: the feature of a text or an image: "mean" over its tokens, the "first" or the
    "last" one, or what the model pools itself ("own").
    """

    name: Literal["transformers"] = "transformers"
    path: Path
    padding: int | None = Field(None, ge=0)
    pool: Pool = "mean"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head); raises ConfigError for a folder or inputs that do not fit."""
        try:
            net, config = self._loaded()
        except ConfigError:
            raise
        except Exception as error:  # of files
            raise ConfigError(
                f"model.path: {self.path}: cannot be opened ({type(error).__name__}: {error_text(error)}); expected a "
                "folder with config.json and model.safetensors"
            ) from None
        self._check_inputs(task, config)
        if self.pool != "own" and getattr(net, "pooler", None) is not None:
            net.pooler = None  # of no use, but it would be trained and sent
        sizes = getattr(config, "hidden_sizes", None)
        size = sizes[-1] if sizes else getattr(config, "hidden_size", None) or config.hidden_dim
        body, _ = transformer(
            net, nn.Identity(), adapters=self.adapters or False, frozen=self.frozen,
            padding=self.padding, pool=self.pool,
        )  # fmt: skip
        return self.with_head(body, size, task)

    def _loaded(self) -> tuple[Any, Any]:
        """Return (net, its configuration)."""
        hugging = library("transformers")
        if (self.path / "adapter_config.json").exists():
            raise ConfigError(f"model.path: {self.path}: an adapter is in it; merge it into the net, and save that")
        net, info = hugging.AutoModel.from_pretrained(
            str(self.path), trust_remote_code=False, local_files_only=True, use_safetensors=True, dtype=torch.float32,
            output_loading_info=True,
        )  # fmt: skip
        check_values(self.path, [n for n in info["missing_keys"] if self.pool == "own" or not n.startswith("pooler.")])
        return net, net.config

    def _check_inputs(self, task: Task, config: Any) -> None:
        """Raise ConfigError for texts that are too long, and for numbers where the model takes token ids."""
        ids = "input_ids" if "input_ids" in task.shapes else "x"
        shape = task.shapes.get(ids)
        if shape is None:
            return
        if getattr(config, "vocab_size", None) is not None and (ids not in task.codes or len(shape) != 1):
            raise ConfigError(
                f"model.name: {config.model_type} needs token ids [length] as whole numbers, the task's inputs are "
                f"{list(shape)}{'' if task.codes else ' of numbers'}; see docs/data.md"
            )
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and ids in task.codes and shape[0] > longest:
            raise ConfigError(
                f"model: texts have {shape[0]} tokens, and {config.model_type} takes {longest}; set data.length"
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
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Refuse options that load values from elsewhere, such as pickles, and those that the task decides."""
        for name in options:
            if name.startswith("pretrained") or name in ("checkpoint_path", "cache_dir"):
                raise ValueError(f"{name}: values are read from a .safetensors file only: set model.path")
            if name in ("num_classes", "in_chans"):
                raise ValueError(f"{name}: the task decides it; leave it out")
        return options

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head); raises ConfigError for a net that timm has not, and for another's values."""
        timm = library("timm")
        shape = self.image_shape(task)
        if self.net not in timm.list_models():
            raise ConfigError(f"model.net: timm has no {self.net!r}; {nearest(self.net, timm.list_models())}")
        options = {**self.options, "num_classes": 0, "in_chans": shape[0]}
        try:
            net = timm.create_model(self.net, **options)
            if self.path is not None:
                from safetensors.torch import load_file

                check_values(self.path, net.load_state_dict(load_file(self.path), strict=False).missing_keys)
            with torch.no_grad():
                size = net.eval()(torch.zeros(1, *shape)).shape[1]
        except ConfigError:
            raise
        except Exception as error:  # of the file, and of options and shapes that the net does not take
            raise ConfigError(f"model: {self.net} for inputs {list(shape)}: {error_text(error)}") from None
        body, _ = backbone(net.train(), nn.Identity(), adapters=self.adapters or False, frozen=self.frozen)
        return self.with_head(body, size, task)


def check_values(path: Path, missing: list[str]) -> None:
    """Raise ConfigError if the files lack values, which would then be random."""
    if missing:
        raise ConfigError(
            f"model.path: {path}: the files have no values of {sorted(missing)[0]} and {len(missing) - 1} more, which "
            "the net has; expected the values of that net"
        )


def digest_of(path: Path) -> str:
    """Return a hash of the settings and values in a folder, or of one file."""
    files = sorted([*path.glob("*.json"), *path.glob("*.safetensors")]) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()[:16]
