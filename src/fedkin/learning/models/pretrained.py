"""Pretrained bodies: nets of Hugging Face transformers, of timm, and others, cut before their head.

    fedkin.run("fedavg", federation, model=transformer(model, head="classifier", adapters=True))

Needs the extra: pip install 'fedkin[transformers]'. `examples/pretrained_nets.py` has nets of an experiment by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError, MethodError, imported, nearest
from fedkin.learning.frozen import Frozen
from fedkin.learning.models.custom import cut
from fedkin.learning.models.vision import torchvision_models
from fedkin.settings import Settings, parse
from fedkin.untrusted import error_text

Pool = Literal["mean", "first", "last", "own"]


@cache
def library(name: str) -> Any:
    """Return the package transformers, peft or timm; raises ConfigError if it cannot be imported."""
    # They import torchvision if it is installed; after this call, even one that is built for another torch works.
    with suppress(ConfigError):
        torchvision_models()
    return imported(name, "model", "transformers")


# -- body and head of any model ---------------------------------------------------------------------------------------


class Adapters(Settings):
    """LoRA adapters of the package peft (Hu et al., 2022): W x + (alpha / rank) B A x; only A and B are trained.

    rank: rows of A. alpha: None is the rank, so that the scale is 1. dropout: of the inputs of A. on: endings of the
    names of the layers that get adapters; None: the layers that peft names for the architecture (mostly query and
    value), or every Linear layer if it names none.
    """

    rank: int = Field(8, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    on: tuple[str, ...] | None = Field(None, min_length=1)


def transformer(
    model: nn.Module, head: str | nn.Module = "classifier", *, adapters: Adapters | Mapping[str, Any] | bool = False,
    frozen: bool = False, padding: int | None = None, pool: Pool = "mean",
) -> tuple[nn.Module, nn.Module]:  # fmt: skip
    """Return (body, head) of a Hugging Face model; the model is changed, and must not be used elsewhere.

    head: the name of the module from features to outputs, such as "classifier" or "score", whose outputs are the
    model's `logits`; or a module of your own for features [batch, d], which are then pooled: the "mean" over tokens
    without padding (over positions of an image), the "first" or "last" of these, or the model's "own" (pooler_output).
    adapters: train LoRA adapters and the head only. frozen: train the head only; the features of each sample are
    computed once and kept. Inputs are token ids [batch, length], of which `padding` (None: the model's own
    padding id, or 0) is masked; images; or a dict of the model's inputs (input_ids, attention_mask, ..). Raises
    ConfigError for an unknown head.
    """
    top = head if isinstance(head, nn.Module) else _cut_head(model, head)
    return _assembled(Tokens(model, padding, pool if top is head else None), top, adapters, frozen)


def backbone(
    model: nn.Module, head: str | nn.Module, *, adapters: Adapters | Mapping[str, Any] | bool = False,
    frozen: bool = False,
) -> tuple[nn.Module, nn.Module]:  # fmt: skip
    """Return (body, head) of any other net, such as one of timm; settings as of `transformer`.

    head: the name of the module from features to outputs ("head", "fc"), or a module of your own after the net.

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
    on: Any = None if adapters.on is None else list(adapters.on)
    for end in on or ():
        if not any(f".{name}".endswith(f".{end}") for name, _ in model.named_modules() if name):
            raise ConfigError(f"model.adapters.on: no layer {end!r}; {nearest(end, endings)}")
    peft = library("peft")
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
            f"model.adapters: {error_text(error)}; its Linear layers are {', '.join(endings)}: name those that get "
            "adapters in `on`"
        ) from None


class Packaged(nn.Module):
    """A net of an extra package, unchanged; a process that unpickles it first imports the package by `library`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def __reduce__(self) -> Any:
        package = type(self.net).__module__.partition(".")[0]
        return _empty, (type(self), package), self.__dict__


def _empty(kind: type[Packaged], package: str) -> Packaged:
    """Return an object without contents, after importing the package that its contents need."""
    if package in ("transformers", "timm"):
        library(package)
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    return module


class Tokens(Packaged):
    """Maps inputs to features [batch, d] of a Hugging Face model; see `transformer`. pool: None: its `logits`."""

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
            # A text of padding alone is not masked: a mean over no tokens has no value.
            inputs["attention_mask"] = (words | ~words.any(1, keepdim=True)).long()
        try:
            out: Any = self.net(**inputs, return_dict=True)
        except IndexError as error:
            raise MethodError(
                f"model: {error_text(error)}: a token id is not among the model's {self.words} words, or a text is "
                "longer than the model takes"
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
    positions = torch.arange(1, z.shape[1] + 1, device=z.device, dtype=z.dtype) * weight
    where = positions.argmax(1) if pool == "last" else weight.argmax(1)
    return z.gather(1, where[:, None, None].expand(-1, 1, z.shape[2])).squeeze(1)
