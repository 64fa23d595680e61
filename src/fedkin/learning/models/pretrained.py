"""Bodies with values of their own: nets of Hugging Face transformers, of timm, and others, cut before their head.

    fedkin.run("fedavg", federation, model=transformer(model, head="classifier", adapters=True))

Values are read from safetensors, never from pickles. Needs the extra: pip install 'fedkin[transformers]'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from fedkin.errors import ConfigError, FedkinError, MethodError, imported, nearest
from fedkin.federation import Task
from fedkin.learning.frozen import Frozen
from fedkin.learning.models.custom import cut
from fedkin.learning.models.nets import Model
from fedkin.learning.models.vision import torchvision_models
from fedkin.settings import Settings, parse
from fedkin.untrusted import said

Pool = Literal["mean", "first", "last", "own"]

_ADAPTER = "adapter_config.json"
# Endings of values that would not be read, so that others would be drawn; the first five are pickles.
_UNREAD = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".gguf", ".onnx", ".npz")


@cache
def library(name: str) -> Any:
    """Return the package transformers, peft or timm; raises ConfigError if it cannot be imported."""
    # They import torchvision if it is there; after this, also one that is built for another torch can be imported.
    with suppress(ConfigError):
        torchvision_models()
    return imported(name, "model", "transformers")


# -- body and head of any model ---------------------------------------------------------------------------------------


class Adapters(Settings):
    """LoRA adapters of the package peft (Hu et al., 2022): W x + (alpha / rank) B A x; only A and B are trained.

    rank: rows of A. alpha: None is the rank, so that the scale is 1. dropout: of the inputs of A. on: endings of the
    names of the layers that get adapters; None: those that peft names for the architecture (mostly query and value),
    and every Linear layer where it names none.
    """

    rank: int = Field(8, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    on: tuple[str, ...] | None = Field(None, min_length=1)


def transformer(
    model: nn.Module, head: str | nn.Module = "classifier", *, adapters: Adapters | Mapping[str, Any] | bool = False,
    frozen: bool = False, padding: int | None = None, pool: Pool = "mean",
) -> tuple[nn.Module, nn.Module]:  # fmt: skip
    """Return (body, head) of a Hugging Face model; it is changed, and must not be used otherwise.

    head: the name of the module from features to outputs, such as "classifier" or "score", whose outputs are the
    model's `logits`; or a module of your own for features [batch, d], which are then pooled: the "mean" over tokens
    that are no padding (over places of an image), the "first" or "last" of these, or the model's "own" (pooler_output).
    adapters: train LoRA adapters and the head only. frozen: train the head only; the features of each sample are
    computed once and kept. Inputs are token ids [batch, length], of which `padding` (None: the model's own
    padding id, or 0) is masked; images; or a dict of what the model takes (input_ids, attention_mask, ..). Raises
    ConfigError for a head that is not there.
    """
    top = head if isinstance(head, nn.Module) else _cut_head(model, head)
    return _assembled(Tokens(model, padding, pool if top is head else None), top, adapters, frozen)


def backbone(
    model: nn.Module, head: str | nn.Module, *, adapters: Adapters | Mapping[str, Any] | bool = False,
    frozen: bool = False,
) -> tuple[nn.Module, nn.Module]:  # fmt: skip
    """Return (body, head) of any other net, such as one of timm; settings as of `transformer`.

    head: the name of the module from features to outputs ("head", "fc"), or a module of your own behind the net.

    >>> body, head = backbone(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2)), "2", frozen=True)
    >>> body(torch.zeros(5, 4)).shape, head
    (torch.Size([5, 3]), Linear(in_features=3, out_features=2, bias=True))
    """
    top = head if isinstance(head, nn.Module) else _cut_head(model, head)
    return _assembled(Packaged(model), top, adapters, frozen)


def _cut_head(model: nn.Module, name: str) -> nn.Module:
    modules = dict(model.named_modules())
    if not name or name not in modules:
        layers = [layer for layer, module in modules.items() if isinstance(module, nn.Linear)]
        near = nearest(name, modules)
        hint = near if near.startswith("did") else f"its last Linear layer is {layers[-1] if layers else 'not there'}"
        raise ConfigError(f"model: head = {name!r}: {type(model).__name__} has no such module; {hint}")
    return cut(model, name)


def _assembled(
    body: Packaged, head: nn.Module, adapters: Adapters | Mapping[str, Any] | bool, frozen: bool
) -> tuple[nn.Module, nn.Module]:
    head.requires_grad_(True)
    if adapters is False:
        return (nn.Sequential(Frozen(body)) if frozen else body), head
    if frozen:
        raise ConfigError("model: adapters in a frozen body would not be trained; give adapters or frozen")
    if not isinstance(adapters, Adapters):
        adapters = parse(Adapters, {} if adapters is True else adapters, "model.adapters")
    _add_adapters(body.net, adapters)
    return body, head


def _add_adapters(model: nn.Module, adapters: Adapters) -> None:
    """Freeze the model and put adapters into it; A is drawn from torch's generator, and B is 0."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    endings = sorted({name.rpartition(".")[2] for name in linear})
    for end in adapters.on or ():
        if not any(f".{name}".endswith(f".{end}") for name, _ in model.named_modules() if name):
            raise ConfigError(f"model.adapters.on: no layer {end!r}; {nearest(end, endings)}")
    peft = library("peft")
    on: Any = None if adapters.on is None else list(adapters.on)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if on is None and kind not in peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        on = linear
    settings = peft.LoraConfig(
        r=adapters.rank, lora_alpha=adapters.alpha or adapters.rank, lora_dropout=adapters.dropout, target_modules=on
    )
    model.requires_grad_(False)
    try:
        peft.inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise ConfigError(
            f"model.adapters: {said(error)}; its Linear layers are {', '.join(endings)}: name those that get adapters "
            "in `on`"
        ) from None


class Packaged(nn.Module):
    """A net of an extra package, as it is: another process imports the package in the way that `library` does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def __reduce__(self) -> Any:
        package = type(self.net).__module__.partition(".")[0]
        return _empty, (type(self), package), self.__dict__


def _empty(kind: type[Packaged], package: str) -> Packaged:
    """Return an object without contents, after importing the package that these need."""
    if package in ("transformers", "timm"):
        library(package)
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    return module


class Tokens(Packaged):
    """Inputs to the features [batch, d] of a Hugging Face model; see `transformer`. pool: None takes its `logits`."""

    def __init__(self, net: nn.Module, padding: int | None, pool: Pool | None) -> None:
        super().__init__(net)
        self.pool = pool
        config: Any = getattr(net, "config", None)
        self.padding = padding if padding is not None else getattr(config, "pad_token_id", None) or 0
        self.words = getattr(config, "vocab_size", None)
        self.main = str(getattr(net, "main_input_name", "input_ids"))

    def forward(self, x: Any) -> Tensor:
        inputs = dict(x) if isinstance(x, Mapping) else {self.main: x}
        ids = inputs.get("input_ids")
        if ids is not None and "attention_mask" not in inputs:
            words = ids != self.padding
            # A text that is all padding is taken as it is: a mean over nothing has no value.
            inputs["attention_mask"] = (words | ~words.any(1, keepdim=True)).long()
        try:
            out: Any = self.net(**inputs, return_dict=True)
        except IndexError as error:
            raise MethodError(
                f"model: {said(error)}: a token id is not among the model's {self.words} words, or a text is longer "
                "than the model takes"
            ) from None
        if self.pool is None:
            return out.logits  # type: ignore[no-any-return]
        if self.pool == "own":
            return out.pooler_output.flatten(1)  # type: ignore[no-any-return]
        return _pooled(out.last_hidden_state, inputs.get("attention_mask"), self.pool)


def _pooled(z: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """Return one vector [batch, d] of each sample, from tokens [batch, length, d] or maps [batch, d, h, w]."""
    if z.ndim == 4:
        z = z.flatten(2).transpose(1, 2)
    weight = z.new_ones(z.shape[:2]) if mask is None else (mask != 0).to(z.dtype)
    if pool == "mean":
        return (z * weight.unsqueeze(-1)).sum(1) / weight.sum(1, keepdim=True).clamp_min(1.0)
    place = torch.arange(1, z.shape[1] + 1, device=z.device, dtype=z.dtype) * weight
    where = place.argmax(1) if pool == "last" else weight.argmax(1)
    return z.gather(1, where[:, None, None].expand(-1, 1, z.shape[2])).squeeze(1)


# -- nets by name -----------------------------------------------------------------------------------------------------


class _Pretrained(Model):
    """Settings of a body that comes with its values.

    frozen: train the head alone; features of each sample are computed once and kept (docs/models.md).
    adapters: train LoRA adapters, the head and, with width, the layer before it. width: Linear `width` and ReLU behind
    the features, which is trained too; bodies of unlike nets get features of one width by it (None: no such layer).
    digest: a hash of the files, found when a run begins; a run goes on only with the same files.
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
        path = table.get("path") if isinstance(table, Mapping) else None
        if not isinstance(path, (str, Path)) or not Path(path).exists():
            return table
        now, before = _digest(Path(path)), table.get("digest")
        if before not in (None, "", now):
            raise ValueError(
                f"{path}: its files are not those with which this was begun (hash {before}, here {now}): put those "
                "there, or begin anew"
            )
        return {**table, "digest": now}

    def _with_width(self, body: nn.Module, features: int, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) with the layer of `width`, if there is one."""
        if self.width is None:
            return body, nn.Linear(features, task.outputs)
        # The frozen part stays first, where it is looked for.
        parts = list(body) if type(body) is nn.Sequential else [body]
        return nn.Sequential(*parts, nn.Linear(features, self.width), nn.ReLU()), nn.Linear(self.width, task.outputs)


class Transformers(_Pretrained):
    """A net of Hugging Face transformers, without its head, from a folder with config.json and model.safetensors.

    path: the folder, absolute or below the current one. Without a file of values they are drawn from the seed; values
    in other forms than safetensors, and adapters, are refused. No code of a model is run. Inputs are token ids [length]
    as whole numbers, of which `padding` (None: the model's padding id, or 0) is masked, a dict with input_ids and
    attention_mask, or images of the size that the model takes. pool: the feature of a text or an image: "mean" over its
    tokens, the "first" or the "last" one, or what the model pools itself ("own").
    """

    name: Literal["transformers"] = "transformers"
    path: Path
    padding: int | None = Field(None, ge=0)
    pool: Pool = "mean"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        place = f"model.path: {self.path}"
        _check_folder(self.path)
        try:
            net, config = self._loaded()
        except FedkinError:
            raise
        except Exception as error:  # of files
            raise ConfigError(
                f"{place}: cannot be opened ({type(error).__name__}: {said(error)}); expected a folder with "
                "config.json and model.safetensors"
            ) from None
        pooler = getattr(net, "pooler", None)
        if self.pool != "own" and pooler is not None and any(True for _ in pooler.parameters()):
            net.pooler = None  # of no use, but it would be trained and sent
        self._check_inputs(task, config)
        sizes = getattr(config, "hidden_sizes", None)
        size = sizes[-1] if sizes else getattr(config, "hidden_size", None) or getattr(config, "hidden_dim", None)
        if not isinstance(size, int):
            raise ConfigError(
                f"{place}: {config.model_type} does not say how long its features are (hidden_size in "
                "config.json); from Python, fedkin.learning.models.transformer takes it with a head of your own"
            )
        body, _ = transformer(
            net, nn.Identity(), adapters=self.adapters or False, frozen=self.frozen,
            padding=self.padding, pool=self.pool,
        )  # fmt: skip
        return self._with_width(body, size, task)

    def _loaded(self) -> tuple[Any, Any]:
        """Return (net, its configuration)."""
        hugging = library("transformers")
        place, source = str(self.path), {"trust_remote_code": False, "local_files_only": True}
        config = hugging.AutoConfig.from_pretrained(place, **source)
        if not any(self.path.glob("*.safetensors")):
            return hugging.AutoModel.from_config(config, trust_remote_code=False), config
        bars = hugging.utils.logging
        shown = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()
        try:
            net, info = hugging.AutoModel.from_pretrained(
                place, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **source
            )
        finally:
            if shown:
                bars.enable_progress_bar()
        _check_values(
            "model", place, [n for n in info["missing_keys"] if self.pool == "own" or not n.startswith("pooler.")]
        )
        return net, config

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


class Timm(_Pretrained):
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
        """Refuse what would go round the hash of the files, and what the task decides."""
        for name in options:
            if name.startswith("pretrained") or name in ("checkpoint_path", "cache_dir"):
                raise ValueError(
                    f"{name}: values come from a .safetensors file, of which a hash is kept: set model.path"
                )
            if name in ("num_classes", "in_chans"):
                raise ValueError(f"{name}: the task decides it; leave it out")
        return options

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        timm = library("timm")
        shape = self.image_shape(task)
        if self.net not in timm.list_models():
            near = nearest(self.net, timm.list_models())
            hint = near if near.startswith("did") else "see timm.list_models()"
            raise ConfigError(f"model.net: timm has no {self.net!r}; {hint}")
        try:
            net = timm.create_model(
                self.net, **{**self.options, "pretrained": False, "num_classes": 0, "in_chans": shape[0]}
            )
            if self.path is not None:
                _load_file(net, self.path)
            with torch.no_grad():
                features = net.eval()(torch.zeros(1, *shape)).shape
        except FedkinError:
            raise
        except Exception as error:  # of settings and shapes that the net does not take
            raise ConfigError(f"model.net: {self.net} for inputs {list(shape)}: {said(error)}") from None
        if len(features) != 2:
            raise ConfigError(f"model.net: {self.net} gives features {list(features)}, expected [1, d]")
        body, _ = backbone(net.train(), nn.Identity(), adapters=self.adapters or False, frozen=self.frozen)
        return self._with_width(body, int(features[1]), task)


def _load_file(net: nn.Module, path: Path) -> None:
    from safetensors.torch import load_file

    if path.suffix != ".safetensors" or not path.is_file():
        raise ConfigError(f"model.path: {path}: expected a .safetensors file; other forms run code when read")
    _check_values("model.path", str(path), net.load_state_dict(load_file(path), strict=False).missing_keys)


def _check_values(setting: str, place: str, missing: list[str]) -> None:
    if missing:
        raise ConfigError(
            f"{setting}: {place}: the files have no values of {sorted(missing)[0]} and {len(missing) - 1} more, which "
            "the net has; expected the values of that net"
        )


def _check_folder(path: Path) -> None:
    """Raise ConfigError for a folder of files that are not those of a net as safetensors."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path: {path}: no config.json in it; expected a folder that save_pretrained wrote")
    if (path / _ADAPTER).exists():
        raise ConfigError(
            f"model.path: {path}: {_ADAPTER}: it is of an adapter, which is not loaded; merge it into the net (peft: "
            "merge_and_unload), and save that"
        )
    files = sorted(file for file in path.iterdir() if file.suffix in _UNREAD)
    if files and not any(path.glob("*.safetensors")):
        raise ConfigError(
            f"model.path: {path}: {files[0].name} is not safetensors (a pickle runs code when it is read); load it "
            "where you trust it, and save it as safetensors (save_pretrained)"
        )


def _digest(path: Path) -> str:
    """Return a hash of the settings and values in a folder, or of one file."""
    files = sorted([*path.glob("*.json"), *path.glob("*.safetensors")]) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(f"{file.name} {_file_hash(str(file.resolve()), stat.st_size, stat.st_mtime_ns)}".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=64)
def _file_hash(file: str, size: int, changed: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
